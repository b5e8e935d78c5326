"""`Qwen3TTSTokenizer` returns the codes and samples of the official package."""

from __future__ import annotations

import base64
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.numpy import load_file

from tests.support.official_calls import GOLDEN
from tests.support.project import ROOT, load_script
from vivace.compat import Qwen3TTSTokenizer
from vivace.errors import CheckpointError

WAVES = load_script(ROOT / "scripts" / "official" / "waves.py")
OFFICIAL = load_file(GOLDEN / "codec.safetensors")


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> Qwen3TTSTokenizer:
    folder = tiny_folder / "base" / "speech_tokenizer"
    return Qwen3TTSTokenizer.from_pretrained(folder, device_map="cpu")


def test_encode_returns_the_official_codes(tokenizer: Qwen3TTSTokenizer) -> None:
    waves = [WAVES.synthetic_wave(3.3), WAVES.synthetic_wave(0.61)]
    encoded = tokenizer.encode(waves, sr=24_000)
    for codes, name in zip(encoded.audio_codes, ("long", "short"), strict=True):
        assert codes.dtype == torch.int64
        np.testing.assert_array_equal(codes.numpy(), OFFICIAL[f"encode.{name}"])
    assert encoded["audio_codes"] is encoded[0] is encoded.audio_codes
    assert list(encoded) == ["audio_codes"]
    (as_tuple,) = tokenizer.encode(waves, sr=24_000, return_dict=False)
    assert torch.equal(as_tuple[0], encoded.audio_codes[0])


@pytest.mark.parametrize("kind", ["path", "base64", "list", "two channels"])
def test_encode_accepts_every_official_form_of_audio(
    tokenizer: Qwen3TTSTokenizer, tmp_path: Path, kind: str
) -> None:
    wave = WAVES.synthetic_wave(0.61)
    buffer = io.BytesIO()
    soundfile.write(buffer, wave, 24_000, subtype="FLOAT", format="WAV")
    (tmp_path / "wave.wav").write_bytes(buffer.getvalue())
    text = base64.b64encode(buffer.getvalue()).decode()
    audio: Any = {
        "path": str(tmp_path / "wave.wav"),
        "base64": f"data:audio/wav;base64,{text}",
        "list": [str(tmp_path / "wave.wav")],
        "two channels": np.stack((wave, wave), axis=1),
    }[kind]
    encoded = tokenizer.encode(audio, sr=24_000 if kind == "two channels" else None)
    np.testing.assert_array_equal(encoded.audio_codes[0].numpy(), OFFICIAL["encode.short"])


def test_decode_accepts_every_official_form_of_codes(tokenizer: Qwen3TTSTokenizer) -> None:
    codes = torch.from_numpy(OFFICIAL["decode.codes"].astype(np.int64))[:40]
    encoded = tokenizer.encode(WAVES.synthetic_wave(0.61), sr=24_000)
    (expected,), rate = tokenizer.decode({"audio_codes": codes})
    assert (expected.shape, expected.dtype, rate) == ((40 * 1920,), np.dtype(np.float32), 24_000)
    for form in (
        {"audio_codes": [codes]},
        {"audio_codes": codes[None]},
        [{"audio_codes": codes}],
        [{"audio_codes": codes.numpy()}],
    ):
        (wave,), _ = tokenizer.decode(form)
        np.testing.assert_array_equal(wave, expected)
    (wave,), _ = tokenizer.decode(encoded)
    assert len(wave) == len(encoded.audio_codes[0]) * 1920
    padded = torch.cat((codes, torch.full_like(codes[:3], -1)))
    (wave,), _ = tokenizer.decode({"audio_codes": padded[None]})
    np.testing.assert_array_equal(wave, expected)
    with pytest.raises(TypeError, match="`encoded` must be"):
        tokenizer.decode(7)


def test_decode_returns_the_official_samples(tokenizer: Qwen3TTSTokenizer) -> None:
    codes = OFFICIAL["decode.codes"].astype(np.int64)[:300]  # longer audio is decoded in chunks
    (wave,), _ = tokenizer.decode([{"audio_codes": codes}])
    for place, part in (("head", wave[:480]), ("tail", wave[-480:])):
        official = OFFICIAL[f"decode.{len(codes)}.{place}"]
        np.testing.assert_allclose(part, official, rtol=0, atol=1e-4)


def test_waveform_without_rate_and_mixed_inputs_are_rejected(
    tokenizer: Qwen3TTSTokenizer,
) -> None:
    wave = WAVES.synthetic_wave(0.61)
    with pytest.raises(ValueError, match="you must provide `sr`"):
        tokenizer.encode(wave)
    with pytest.raises(TypeError, match="Mixed input types"):
        tokenizer.encode([wave, "a.wav"], sr=24_000)


def test_sample_rates_equal_the_official_ones(tokenizer: Qwen3TTSTokenizer) -> None:
    assert tokenizer.get_model_type() == "qwen3_tts_tokenizer_12hz"
    assert tokenizer.get_input_sample_rate() == tokenizer.get_output_sample_rate() == 24_000
    assert tokenizer.get_encode_downsample_rate() == tokenizer.get_decode_upsample_rate() == 1920
    assert tokenizer.feature_extractor.sampling_rate == 24_000
    assert tokenizer.config.decoder_config.num_quantizers == 16
    assert tokenizer.device == torch.device("cpu")


def test_from_pretrained_loads_a_codec_folder_or_a_checkpoint(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = Qwen3TTSTokenizer.from_pretrained(str(tiny_folder / "base"), device_map="cpu")
    assert inside.get_decode_upsample_rate() == 1920
    codec = shutil.copytree(tiny_folder / "base" / "speech_tokenizer", tmp_path / "codec")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(codec))
    name = "Qwen/Qwen3-TTS-Tokenizer-12Hz"
    assert Qwen3TTSTokenizer.from_pretrained(name, device_map="cpu").config == inside.config
    (codec / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks model\.safetensors"):
        Qwen3TTSTokenizer.from_pretrained(name, device_map="cpu")
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        Qwen3TTSTokenizer.from_pretrained(name, foo=1)
