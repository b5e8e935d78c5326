"""Tests of the embedded voice as shipped: size, files, loading, official code."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from tests.support.project import ROOT
from vivace import TTS
from vivace.checkpoint import EMBEDDED
from vivace.errors import UnsupportedRequestError

GOLDEN = ROOT / "tests" / "golden"
OFFICIAL = json.loads((GOLDEN / "codes_embedded.json").read_text(encoding="utf-8"))
OFFICIAL_TENSORS = load_file(GOLDEN / "codes_embedded.safetensors")
SEEDS = json.loads((GOLDEN / "embedded_seeds.json").read_text(encoding="utf-8"))
MAX_BYTES = 40_000_000
MAX_LOAD_RATIO = 20.0  # CPU time of a load relative to reading the weights; measured: 3


def test_embedded_voice_is_small_enough_to_ship() -> None:
    assert sum(path.stat().st_size for path in EMBEDDED.rglob("*") if path.is_file()) <= MAX_BYTES


@pytest.mark.parametrize("part", ["", "speech_tokenizer"])
def test_weights_have_16_bits(part: str) -> None:
    with safe_open(EMBEDDED / part / "model.safetensors", framework="pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}  # noqa: SIM118


def test_asset_has_no_training_files() -> None:
    names = {str(path.relative_to(EMBEDDED)) for path in EMBEDDED.rglob("*") if path.is_file()}
    assert names == {
        "config.json",
        "generation_config.json",
        "merges.txt",
        "model.safetensors",
        "preprocessor_config.json",
        "tokenizer_config.json",
        "vocab.json",
        "speech_tokenizer/config.json",
        "speech_tokenizer/configuration.json",
        "speech_tokenizer/model.safetensors",
        "speech_tokenizer/preprocessor_config.json",
    }


def read_weights() -> None:
    for part in ("", "speech_tokenizer"):
        for weight in load_file(EMBEDDED / part / "model.safetensors").values():
            weight.astype(np.float32)


@pytest.mark.usefixtures("unshared_weights")
def test_embedded_voice_loads_by_default_and_quickly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU time is compared with a control in the same run: a busy machine slows both."""
    monkeypatch.chdir(tmp_path)
    load_s, read_s = [], []
    for _ in range(3):
        began = time.process_time()
        read_weights()
        read_s.append(time.process_time() - began)
        began = time.process_time()
        with TTS.load(device="cpu", offline=True) as tts:
            load_s.append(time.process_time() - began)
            assert (tts.model_type, tts.speakers) == ("custom_voice", ["heart", "michael"])
            assert tts.languages == ["auto", "english"]
    assert min(load_s) < MAX_LOAD_RATIO * min(read_s)


def test_checkpoint_name_or_folder_takes_precedence(tiny_folder: Path) -> None:
    with TTS.load(tiny_folder / "base", device="cpu") as tts:
        assert tts.model_type == "base"


def test_embedded_voice_rejects_cloning(embedded: TTS) -> None:
    with pytest.raises(UnsupportedRequestError, match=r"cannot clone a voice; load .*0\.6B-Base"):
        embedded.clone((np.zeros(48_000, dtype=np.float32), 24_000))


@pytest.mark.parametrize("entry", SEEDS, ids=lambda entry: entry["text"])
def test_seed_gives_the_golden_codes(embedded: TTS, entry: dict[str, Any]) -> None:
    """Run scripts/make_embedded_golden.py after a change of the weights."""
    audio = embedded.speak(entry["text"], seed=entry["seed"], normalize=False)
    assert audio.codes.tolist() == entry["codes"]
    assert audio.finish_reason == "stop"


def test_official_goldens_match_the_shipped_weights() -> None:
    digests = {
        name: hashlib.sha256((EMBEDDED / name).read_bytes()).hexdigest()
        for name in OFFICIAL["weights"]
    }
    assert digests == OFFICIAL["weights"]


@pytest.mark.default_cases(3)
@pytest.mark.parametrize("call", OFFICIAL["calls"], ids=lambda call: call["name"])
def test_official_code_gives_the_same_codes(embedded: TTS, call: dict[str, Any]) -> None:
    [item] = call["items"]
    audio = embedded.speak(
        item["text"],
        voice=item["speaker"],
        language=item["language"],
        text_layout="whole" if call["non_streaming_mode"] else "streamed",
        temperature=0,
        trim=False,
        normalize=False,
    )
    prefix = f"{call['name']}.0"
    assert np.array_equal(audio.codes, OFFICIAL_TENSORS[f"{prefix}.codes"])
    expected = OFFICIAL_TENSORS[f"{prefix}.waveform"]
    stride = -(-len(audio.samples) // len(expected))
    assert np.allclose(audio.samples[::stride], expected, rtol=0, atol=5e-5)
