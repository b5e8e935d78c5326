"""Every stage of the recipe runs in `--smoke` size with a teacher that makes tones."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.support.project import ROOT
from vivace import TTS
from vivace.errors import UnsupportedRequestError
from vivace.model.speaker_encoder import SpeakerEncoder

pytest.importorskip("tomllib", reason="the recipe reads TOML with Python 3.11's own library")
RECIPE = ROOT / "recipes" / "mini_voice"
KOKORO = """
import numpy as np

SessionOptions = type("SessionOptions", (), {})


class InferenceSession:
    def __init__(self, model, options, providers):
        assert model == "build/kokoro/kokoro_durations.onnx"

    def run(self, _, feed):
        ids = feed["tokens"][0]
        assert feed["style"].shape == (1, 256)
        return [0.3 * np.sin(np.cumsum(np.repeat(0.001 * ids, 600))), np.ones(len(ids))]
"""
SENTENCES = [f"This is sentence {word}, and it says little more." for word in "abcdefghijkl"]


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder with `build/`, lines, and a teacher with a lexicon."""
    from recipes.mini_voice.synthetic_inputs import HIBARI

    assets = tmp_path / "build" / "hibari" / "hibari" / "assets"
    assets.mkdir(parents=True)
    (assets.parent / "__init__.py").write_text(HIBARI)
    letters = [a + b for a in "abcdefgh" for b in "ijklmn"]
    words = {f"str{one}": "" for one in letters} | {f"Br{one}": "" for one in letters}
    for name in ("gold", "silver"):
        packed = gzip.compress(json.dumps(words).encode())
        (assets / f"lexicon_us_{name}.json.gz").write_bytes(packed)
    for name, lines in (("dev", SENTENCES[:4]), ("train", SENTENCES[4:])):
        (tmp_path / "build" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def run(workplace: Path, stage: str, *options: str, sets: dict[str, object] | None = None) -> str:
    """Run one stage in the folder `workplace`."""
    changes = {
        "tokenizer.folder": str(workplace / "tokenizer"), "data.num_templates": 40,
        "data.speakers": ["heart"], "data.num_rare": 30, "data.num_more_templates": 10,
        "data.num_leads": 3,
        "data.max_lines": 24, "data.shards": "build/shards", "train_gan.codes": "build/codec",
        "train_gan.state": "build/gan_state.pt", "train_talker.codes": "build/more",
        "train_talker.decoder": "build/codec/decoder.safetensors", **(sets or {}),
    }  # fmt: skip
    sets_as_options = [f"--set={name}={json.dumps(value)}" for name, value in changes.items()]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            f"recipes.mini_voice.{stage}",
            "--smoke",
            *sets_as_options,
            *options,
        ],
        cwd=workplace,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"{stage}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.slow
def test_stages_run_from_lines_to_checkpoint(workplace: Path) -> None:
    codec, more = ("--out=build/codec", "--seconds=2"), ("--resume=build/codec", "--out=build/more")
    run(workplace, "lines")
    run(workplace, "tokenizer", sets={"tokenizer.num_merges": 40})
    run(workplace, "rare_lines")
    run(workplace, "synthesize")
    run(workplace, "train_codec", *codec)
    run(workplace, "train_listener", *codec)
    run(workplace, "train_all_codec", "--out=build/codec", "--codec-seconds=2", "--until=30")
    run(workplace, "train_gan", "--resume=build/codec", "--out=build/gan", "--until=25")
    read = run(workplace, "more_codes", *more, "--seconds=1", sets={"data.lines_per_shard": 2})
    assert "hours of them new" in read
    run(workplace, "leads", *more)
    run(workplace, "train_talker", "--out=build/talker", "--seconds=2")
    talker = ("--resume=build/talker", "--out=build/talker2", "--seconds=2")
    run(workplace, "train_talker", *talker, sets={"train_talker.num_samples": 0})
    parts = ("--codec=build/gan", "--talker=build/talker2", "--out=build/mini")
    run(workplace, "export", *parts)
    dev = ("--resume=build/gan", "--talker=build/talker2", "--out=build/dev", "--first=0")
    run(workplace, "dev_set", *dev, "--count=2")
    made = {path.name for path in (workplace / "build" / "mini").iterdir()}
    assert {"config.json", "model.safetensors", "speech_tokenizer", "vocab.json"} <= made


@pytest.mark.slow
def test_stages_run_with_second_speaker_and_more_codebooks(workplace: Path) -> None:
    (workplace / "onnxruntime.py").write_text(KOKORO)
    (workplace / "build" / "kokoro").mkdir()
    np.zeros((510, 256), np.float32).tofile(workplace / "build" / "kokoro" / "michael.bin")
    both: dict[str, object] = {"data.speakers": ["heart", "michael"], "codec.num_quantizers": 8}
    run(workplace, "lines")
    run(workplace, "tokenizer", sets={"tokenizer.num_merges": 40})
    run(workplace, "rare_lines")
    run(workplace, "synthesize")
    run(workplace, "train_codec", "--out=build/one", "--seconds=2")
    grown = ("--resume=build/one", "--out=build/codec", "--codec-seconds=2", "--until=30")
    run(workplace, "train_all_codec", *grown, sets={**both, "data.shards": "build/shards2"})
    more = ("--resume=build/codec", "--out=build/more", "--seconds=1", "--speaker=1")
    run(workplace, "more_codes", *more, sets={**both, "data.lines_per_shard": 2})
    run(workplace, "train_talker", "--out=build/talker", "--seconds=2", sets=both)
    encoder = ("--resume=build/codec", "--out=build/codec", "--seconds=2")
    heard = run(workplace, "train_encoder", *encoder, sets={**both, "data.shards": "build/shards2"})
    assert "agreement=[" in heard
    parts = ("--codec=build/codec", "--talker=build/talker", "--out=build/mini")
    run(workplace, "export", *parts, sets=both)
    config = json.loads((workplace / "build" / "mini" / "config.json").read_text())
    assert config["talker_config"]["spk_id"] == {"heart": 1500, "michael": 1501}
    assert config["talker_config"]["num_code_groups"] == 8
    with np.load(workplace / "build" / "more" / "utterances.npz") as kept:
        assert set(kept["lines"] // 1_000_000) == {0, 1}


@pytest.mark.slow
def test_second_speaker_keeps_codes_of_first(workplace: Path) -> None:
    (workplace / "onnxruntime.py").write_text(KOKORO)
    (workplace / "build" / "kokoro").mkdir()
    np.zeros((510, 256), np.float32).tofile(workplace / "build" / "kokoro" / "michael.bin")
    both: dict[str, object] = {"data.speakers": ["heart", "michael"]}
    later = {**both, "data.shards": "build/shards2", "train_gan.codes": "build/two",
             "train_talker.codes": "build/two"}  # fmt: skip
    run(workplace, "lines")
    run(workplace, "tokenizer", sets={"tokenizer.num_merges": 40})
    run(workplace, "synthesize")
    run(workplace, "train_all_codec", "--out=build/codec", "--codec-seconds=2", "--until=30")
    run(workplace, "share_books", "--resume=build/codec", "--out=build/shared", sets=both)
    run(workplace, "synthesize", sets=later)
    run(workplace, "train_speaker", "--resume=build/shared", "--out=build/two", "--seconds=2",
        sets=later)  # fmt: skip
    build = workplace / "build"
    for name in ("encoder.safetensors", "decoder.safetensors"):  # beside codes of the first alone
        shutil.copy(build / "two" / name, build / "shared")
    run(workplace, "train_speaker", "--resume=build/shared", "--out=build/again", "--seconds=0",
        sets=later)  # fmt: skip
    for name in ("encoder.safetensors", "decoder.safetensors", "utterances.npz"):
        assert (build / "two" / name).read_bytes() == (build / "again" / name).read_bytes(), name
    gan = ("--resume=build/two", "--out=build/gan", "--until=25")
    run(workplace, "train_gan", *gan, sets={**later, "train_gan.state": "build/gan2_state.pt"})
    run(workplace, "train_talker", "--out=build/talker", "--seconds=2",
        sets={**later, "train_talker.num_samples": 0})  # fmt: skip
    run(workplace, "export", "--codec=build/gan", "--talker=build/talker", "--out=build/mini",
        sets=both)  # fmt: skip
    with np.load(workplace / "build" / "gan" / "samples.npz") as heard:
        speakers = {int(name.split("_")[1]) // 1_000_000 for name in heard}
    assert speakers == {0, 1}
    config = json.loads((workplace / "build" / "mini" / "config.json").read_text())
    assert config["talker_config"]["spk_id"] == {"heart": 1500, "michael": 1501}


def test_readme_lists_every_stage_of_the_recipe() -> None:
    page = (RECIPE / "README.md").read_text(encoding="utf-8").partition("## Teachers")[0]
    listed = set(re.findall(r"^\| `([\w.]+)[^`]*` \|", page, re.M))
    stages = [path.stem for path in RECIPE.glob("*.py") if "__main__" in path.read_text("utf-8")]
    inside = {"train_codec"}  # a stage of train_all_codec
    assert listed == {*stages, *(path.name for path in RECIPE.glob("*.sh"))} - inside


def test_talker_trains_and_exports_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train from codes with a time limit, resume, and export to the released layout."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(ROOT)
    from recipes.mini_voice import encode, export, train_codec, train_talker
    from recipes.mini_voice.common import Log, save_half
    from recipes.mini_voice.settings import load_settings

    lines, folder = tmp_path / "lines.txt", tmp_path / "parts"
    lines.write_text("\n".join(SENTENCES))
    sets = [f'data.lines="{lines}"', f'data.rare="{tmp_path / "none"}"']
    sets += [f'train_talker.codes="{folder}"', "train_talker.num_samples=0"]
    settings = load_settings(True, sets)
    rng, frames = np.random.default_rng(1), np.full(len(SENTENCES), 30)
    codes = rng.integers(0, 512, (int(frames.sum()), 6)).astype(np.int16)
    labels = rng.integers(0, 170, 2 * len(codes)).astype(np.uint8)
    encode.write(encode.Codes(codes, labels, np.arange(len(frames)), frames, 2), folder)
    np.save(folder / encode.LEADS, codes[:6].reshape(2, 3, 6))
    save_half(folder / "decoder.safetensors", train_codec.build(settings).decoder.state_dict())
    for out, resume in (("first", None), ("second", tmp_path / "first")):
        log = Log(tmp_path / out / "log.jsonl")
        train_talker.run(settings, log, tmp_path / out, seconds=0.5, resume=resume)
    export.export(settings, folder, tmp_path / "second", tmp_path / "voice")
    log_text = (tmp_path / "second" / "log.jsonl").read_text()
    logged = [json.loads(row) for row in log_text.splitlines()]
    assert logged[-1]["steps"] >= 1
    assert np.isfinite(logged[-1]["ce0"])
    config = json.loads((tmp_path / "voice" / "config.json").read_text())
    assert config["reading_config"]["live"] == "sentence"


def test_export_with_speakers_writes_presets_that_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The artificial speaker `training_voices` of the training settings is not a preset."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(ROOT)
    from recipes.mini_voice import export, import_asset, talker_files, train_codec
    from recipes.mini_voice.common import save_half
    from recipes.mini_voice.settings import load_settings, speaker_encoder_config
    from vivace.text.tokenizer import TextTokenizer

    three = 'data.speakers=["heart", "michael", "training_voices"]'
    settings, parts, voice = load_settings(True, [three]), tmp_path / "parts", tmp_path / "voice"
    save_half(parts / "decoder.safetensors", train_codec.build(settings).decoder.state_dict())
    tokenizer = TextTokenizer.from_folder(Path(settings.tokenizer.folder))
    talker_files.save(talker_files.build(settings, tokenizer), parts)
    encoder = SpeakerEncoder(speaker_encoder_config(settings))
    save_half(parts / "speaker_encoder.safetensors", encoder.state_dict())
    export.export(settings, parts, parts, voice, speakers_from=parts)
    noise = np.random.default_rng(1).normal(0, 0.1, 24_000).astype(np.float32)
    with TTS.load(voice, device="cpu") as tts:
        assert (tts.model_type, tts.speakers) == ("custom_voice", ["heart", "michael"])
        cloned = tts.clone((noise, 24_000))
        with pytest.raises(UnsupportedRequestError, match="no trained encoder"):
            tts.clone((noise, 24_000), "Words.")
        for each in ("michael", cloned):
            assert len(tts.speak("Yes.", voice=each, seed=1, max_frames=2).codes) == 2
    import_asset.import_asset(voice, tmp_path / "again")
    written = load_file(parts / "speaker_encoder.safetensors")
    again = load_file(tmp_path / "again" / "speaker_encoder.safetensors")
    assert written.keys() == again.keys()
    assert all(again[name].equal(tensor) for name, tensor in written.items())
