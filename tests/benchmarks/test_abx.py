"""The ABX test of cloned voices."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.benchmarks.conftest import Run

LEVELS = {"ann": 0.1, "bea": 0.3, "carl": 0.5, "dan": 0.7}


def write(path: Path, level: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(np.full(1_600, round(level * 32767), np.int16).tobytes())


class FakeVoiceprint:
    """The level of a clip is its speaker."""

    def __call__(self, samples: NDArray[np.float32], sample_rate: int) -> NDArray[np.float32]:
        angle = 3 * float(samples.mean())
        return np.array([np.sin(angle), np.cos(angle)], np.float32)


class FakeTTS:
    """Clones copy the level of the reference; the other voices have a level of their own."""

    speakers = ("heart",)

    @classmethod
    def load(cls, *_: object, **__: object) -> FakeTTS:
        return cls()

    def __enter__(self) -> FakeTTS:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def clone(self, path: Path) -> float:
        return LEVELS[path.parent.name]

    def speak(self, text: str, *, voice: float | str, seed: int) -> SimpleNamespace:
        level = voice if isinstance(voice, float) else 0.4
        samples = np.full(1_600, level, np.float32)
        return SimpleNamespace(
            samples=samples, sample_rate=16_000, save=lambda path: write(path, level)
        )


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    folder = tmp_path / "recordings"
    for name, sex in zip(LEVELS, ("female", "female", "male", "male"), strict=True):
        for number in range(3):
            write(folder / sex / name / f"{number}.wav", LEVELS[name] + 0.01 * number)
    return folder


def test_abx_rates_clones_recordings_and_embedded_voice(
    run: Run, tmp_path: Path, recordings: Path
) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\nthree\n", "utf-8")
    clones, out = tmp_path / "clones", tmp_path / "abx.json"
    replaced = {"TTS": FakeTTS, "Voiceprint": FakeVoiceprint}
    run("abx.py", "clone", recordings, tmp_path / "lines.txt", "--lines", 2, "--out", clones,
        **replaced)  # fmt: skip
    assert len(list(clones.glob("*/*.wav"))) == 8
    run("abx.py", "judge", recordings, "--clones", clones, "--trials", 40, "--json", out,
        **replaced)  # fmt: skip
    success = json.loads(out.read_text("utf-8"))["success"]
    assert success["clones"]["percent"] == success["recordings"]["percent"] == 100
    # 0.4 is nearer to bea than to ann, and to carl than to dan.
    assert success["embedded"]["by_speaker"] == {"ann": 0, "bea": 100, "carl": 100, "dan": 0}
    assert success["embedded"]["percent"] == 50


def test_abx_fails_clones_of_wrong_speaker(run: Run, tmp_path: Path, recordings: Path) -> None:
    clones, out = tmp_path / "clones", tmp_path / "abx.json"
    for name, other in (("ann", "bea"), ("bea", "ann"), ("carl", "dan"), ("dan", "carl")):
        write(clones / name / "0.wav", LEVELS[other])
    run("abx.py", "judge", recordings, "--clones", clones, "--trials", 20, "--json", out,
        TTS=FakeTTS, Voiceprint=FakeVoiceprint)  # fmt: skip
    assert json.loads(out.read_text("utf-8"))["success"]["clones"]["percent"] == 0


def test_abx_refuses_missing_clones_and_single_speakers(
    run: Run, tmp_path: Path, recordings: Path
) -> None:
    options = {"TTS": FakeTTS, "Voiceprint": FakeVoiceprint}
    write(tmp_path / "clones" / "ann" / "0.wav", 0.1)
    with pytest.raises(SystemExit, match="no clips of bea, carl, dan"):
        run("abx.py", "judge", recordings, "--clones", tmp_path / "clones", "--json",
            tmp_path / "abx.json", **options)  # fmt: skip
    with pytest.raises(SystemExit, match="two speakers of each sex"):
        run("abx.py", "judge", recordings / "female", "--json", tmp_path / "abx.json", **options)
