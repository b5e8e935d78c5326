"""`vivace bench`: real numbers of a tiny model, written down; peers timed where they are."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import assert_refused, run_here

from vivace.cli.bench.load import percentiles
from vivace.cli.bench.report import plot_arrivals

SHORT = ("--frames", "3", "--repeats", "1", "--rounds", "1", "--device", "cpu")


def test_everything_is_measured_and_written_with_its_machine(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results" / "bench.json"
    model = ("--model", tiny_folder / "custom_voice")
    loads = ("--streams", "1,2", "--rates", "4", "--seconds", "1", "--json", path)
    assert run_here("bench", *model, *loads, *SHORT) == 0
    shown = capsys.readouterr().out
    report = json.loads(path.read_text())
    assert report["machine"]["torch"]
    latency = report["latency"]
    assert 0 < latency["first_audio_ms"] < 10_000
    parts = latency["parts"]
    per_frame = sum(parts[f"{part}_ms_per_frame"] for part in ("model", "codec", "host"))
    speed = 80 * 3 / (3 * per_frame + parts["prompt_ms"])
    assert 0.05 < speed / latency["times_real_time"] < 20  # the same unit, on a busy machine
    assert [row["chunk_frames"] for row in latency["chunks"]] == [1, 2, 4, 8, 12]
    assert [row["requests"] for row in report["throughput"]] == [1, 2]
    assert report["arrivals"][0]["requests"] > 0
    assert f"{latency['first_audio_ms']:.1f} ms" in shown
    assert "2 streams" in shown


class FakePeer:
    """Takes a tenth of a second for two seconds of audio: 20 times real time at most."""

    @classmethod
    def from_pretrained(cls, folder: str, **placing: Any) -> FakePeer:
        assert Path(folder).is_dir()
        assert placing["device_map"] == "cpu"
        return cls()

    def generate_custom_voice(self, text: str, **options: Any) -> tuple[list[np.ndarray], int]:
        assert options["max_new_tokens"] == 4
        return [np.zeros(48_000, np.float32)], 24_000


@pytest.fixture
def compare(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[type], str]:
    """What is shown of a comparison with this as the official package's class."""

    def compare(kind: type) -> str:
        module = types.ModuleType("qwen_tts")
        module.Qwen3TTSModel = kind  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "qwen_tts", module)
        monkeypatch.setitem(sys.modules, "faster_qwen3_tts", None)
        model = ("--model", tiny_folder / "custom_voice", "--streams", "1")
        assert run_here("bench", *model, "--compare", *SHORT) == 0
        return capsys.readouterr().out

    return compare


def test_peers_that_are_installed_are_timed_and_others_are_named(
    compare: Callable[[type], str],
) -> None:
    shown = compare(FakePeer)
    assert "qwen-tts (official)" in shown
    assert "times faster" in shown
    assert "faster-qwen3-tts" in shown
    assert "not installed" in shown


def test_a_peer_that_breaks_is_named_and_costs_nothing_else(
    compare: Callable[[type], str],
) -> None:
    shown = compare(object)
    assert "could not be timed (AttributeError" in shown
    assert "times real time, one stream" in shown


def test_a_base_model_needs_a_voice(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_here("bench", "--model", tiny_folder / "base", *SHORT)
    assert_refused(code, capsys, "--voice me.wav")


@pytest.mark.parametrize("option", ["--streams", "--frames", "--repeats", "--seconds"])
@pytest.mark.parametrize("bad", ["0", "a", "-2", ""])
def test_bad_numbers_are_refused(option: str, bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run_here("bench", option, bad)
    assert caught.value.code == 2
    assert f"{option}: needs a" in capsys.readouterr().err


def test_percentiles_are_of_what_was_seen() -> None:
    assert percentiles(range(100)) == {"p50": 50, "p95": 95, "p99": 99}
    assert percentiles([7.0]) == {"p50": 7.0, "p95": 7.0, "p99": 7.0}
    assert percentiles([]) == {}


def test_waiting_is_drawn_against_load(tmp_path: Path) -> None:
    rows = [{"requests_per_s": n, "first_audio_ms": percentiles([n, 2 * n])} for n in (1, 2, 4)]
    path = tmp_path / "pictures" / "load.png"
    plot_arrivals({"a model": rows, "another": rows}, path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--plot", "load.png"), "--rates 1,2,4"),
        (("--plot", "load.txt", "--rates", "1"), ".png"),
    ],
)
def test_a_picture_that_could_not_be_drawn_is_refused_beforehand(
    options: tuple[str, ...], match: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(run_here("bench", *options), capsys, match)


def test_a_picture_without_matplotlib_is_refused_beforehand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vivace.cli.bench.bench.find_spec", lambda name: None)
    code = run_here("bench", "--plot", "load.png", "--rates", "1")
    assert_refused(code, capsys, "pip install matplotlib")
