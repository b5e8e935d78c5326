"""The benchmark of the watermark in smoke size, with replaced networks, speech and judges."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.conftest import FOLDER, Run
from tests.mark.test_watermark import FakeNetwork, speech_like, tone
from tests.support.project import load_script
from vivace.audio.wav import Samples
from vivace.mark.watermark import Watermark


class PatternNetwork(FakeNetwork):
    """Leaves the decision to the pattern of the mark."""

    def score(self, levels: object) -> float:
        return 0.9


class FixedWatermark(Watermark):
    @classmethod
    def load(cls) -> Watermark:
        return Watermark(PatternNetwork())


class Perth:
    """A package whose mark is silence, and whose detector finds it."""

    class PerthImplicitWatermarker:
        def apply_watermark(self, signal: Samples, sample_rate: int) -> Samples:
            return np.zeros_like(signal)

        def get_watermark(self, signal: Samples, sample_rate: int, *, round: bool) -> float:
            return 1.0 - float(signal.any())


def speak(*_: object) -> list[tuple[Samples, str]]:
    return [(speech_like(84_000, seed), "It rained.") for seed in range(2)]


def test_benchmark_reports_detection_and_quality(run: Run, tmp_path: Path) -> None:
    path, transcripts = (
        tmp_path / "watermark.json",
        iter(("It rained.", "It", "It rained.", "It rained.")),
    )
    run(
        "watermark.py",
        *("--json", path, "--work", tmp_path, "--espeak", 0),
        Watermark=FixedWatermark,
        speak=speak,
        make_noises=lambda: [0.1 * speech_like(48_000, seed) for seed in (5, 6)],
        make_tones=lambda: [tone(0.5, 2.0)] * 4,
        make_verified=lambda: {"tones": [tone(0.1, 2.0)] * 3},
        import_module=lambda _: Perth,
        NUM_JOINED=2,
        Recogniser=lambda: lambda *_: next(transcripts),
        NaturalnessJudge=lambda: lambda samples, _: float(samples[0] != 0) + 3,
    )
    report = json.loads(path.read_text(encoding="utf-8"))
    detection, unmarked = report["detection"], report["unmarked"]
    assert detection["seconds"] == [3.5, 3.5]
    for change in ("untouched", "resampled to 8 kHz", "untouched, 2 recordings"):
        assert detection[change]["percent"] == 100.0
    assert unmarked["all"]["clips"] == 8
    assert unmarked["all"]["detected"] == 0
    assert report["verified"]["all"]["clips"] == 3
    for change in report["perth"].values():
        assert change.get("our mark, Perth's detector", {"percent": 0.0})["percent"] == 0.0
    assert report["perth"]["untouched"]["Perth's mark, our detector"]["percent"] == 0.0
    assert report["perth"]["unmarked, Perth's detector"]["embedded voice"]["clips"] == 2
    assert report["quality"]["word_errors_percent"]["before"] == 0.0
    assert report["quality"]["word_errors_percent"]["after"] == 25.0
    assert report["cost"]["mark_ms_per_s"] > 0


@pytest.mark.parametrize(
    ("num_found", "total", "expected"),
    [(0, 500, [0.0, 0.8]), (100, 100, [96.3, 100.0]), (1, 2, [9.5, 90.5])],
)
def test_interval_is_wilsons(
    num_found: int, total: int, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    assert load_script(FOLDER / "watermark.py").wilson(num_found, total) == expected


def test_noise_has_the_given_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    samples = speech_like(24_000)
    noise = load_script(FOLDER / "watermark.py").add_noise(samples, 20) - samples
    ratio_db = 10 * np.log10(np.mean(samples**2) / np.mean(noise**2))
    assert ratio_db == pytest.approx(20, abs=0.2)
