"""`vivace bench`: measures a tiny model, counts failures, and times installed peers."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.support.cli_harness import assert_refused, run_here
from vivace.audio.clip import AudioChunk
from vivace.cli.bench import load
from vivace.cli.bench.backends import measure_backends
from vivace.cli.bench.latency import Subject
from vivace.cli.bench.load import percentiles
from vivace.cli.bench.report import plot_arrivals
from vivace.errors import EngineError, QueueFullError
from vivace.tts import TTS

CALM_ROW = {
    "streams": 1,
    "audio_s_per_s": 1.0,
    "first_audio_ms": {"p50": 1.0, "p95": 1.0},
    "underruns": 0,
}
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


def test_every_backend_is_compared_and_one_that_cannot_run_says_why(
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("vivace.cli.bench.backends.PATIENCE_S", float("inf"))  # on a busy machine
    path = tmp_path / "bench.json"
    model = ("--model", tiny_folder / "custom_voice", "--streams", "1", "--batches", "1,3")
    assert run_here("bench", *model, "--json", path, *SHORT) == 0
    rows = json.loads(path.read_text())["backends"]
    refused = [row["backend"] for row in rows if "refused" in row]
    assert refused == ["megakernel", "cuda_graph"]
    measured = [row for row in rows if row["backend"] == "eager"]
    assert [row["streams"] for row in measured] == [1, 3]
    for row in measured:
        assert all(row[f"{part}_ms"] > 0 for part in ("model", "codec", "prompts"))
        whole_ms = sum(row[f"{part}_ms"] for part in ("model", "codec", "host", "prompts"))
        slowest = 0.99 * 80 * row["streams"] / whole_ms  # in all the time that was measured
        assert row["audio_s_per_s"] > slowest - 0.006  # rounded to hundredths
    shown = capsys.readouterr().out
    assert "eager, 3 streams" in shown
    assert "it needs an NVIDIA GPU" in shown


def test_a_backend_that_is_too_slow_is_not_tried_with_more_streams(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivace.cli.bench.backends.PATIENCE_S", 0.0)
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as tts:
        *_, first, second = measure_backends(Subject(tts, {}), [1, 2], num_frames=2)
    assert first["model_ms"] > 0
    assert "it would take about" in second["refused"]


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


def test_a_failing_peer_is_named_and_the_rest_is_measured(
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


def test_percentiles_are_values_of_the_list() -> None:
    assert percentiles(range(100)) == {"p50": 50, "p95": 95, "p99": 99}
    assert percentiles([7.0]) == {"p50": 7.0, "p95": 7.0, "p99": 7.0}
    assert percentiles([]) == {}


def test_first_audio_is_plotted_against_the_request_rate(tmp_path: Path) -> None:
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
def test_a_plot_that_cannot_be_drawn_is_refused_before_measuring(
    options: tuple[str, ...], match: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(run_here("bench", *options), capsys, match)


def test_a_plot_without_matplotlib_is_refused_before_measuring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vivace.cli.bench.bench.find_spec", lambda name: None)
    code = run_here("bench", "--plot", "load.png", "--rates", "1")
    assert_refused(code, capsys, "pip install matplotlib")


# --- The load benchmark, against a scripted model and clock ------------------------------------


class Clock:
    """Stands for the `time` module; only sleeping passes time."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class ScriptedTTS:
    """Streams chunks of given (delay, audio) seconds, or raises the error of a seed."""

    def __init__(
        self, clock: Clock, chunks: Sequence[tuple[float, float]], errors: dict[int, Exception]
    ) -> None:
        self.clock, self.chunks, self.errors = clock, chunks, errors
        self.seeds: list[int] = []

    async def astream(self, text: str, *, seed: int, **options: Any) -> AsyncIterator[AudioChunk]:
        assert options["min_frames"] == options["max_frames"] == 5
        self.seeds.append(seed)
        if seed in self.errors:
            raise self.errors[seed]
        for delay, seconds in self.chunks:
            await self.clock.sleep(delay)
            samples = np.zeros(round(1000 * seconds), np.float32)
            yield AudioChunk(
                samples=samples,
                sample_rate=1000,
                start_s=0.0,
                is_last=False,
                finish_reason=None,
                codes=np.zeros((0, 16), np.int64),
            )


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[ScriptedTTS, Subject]]:
    def make(
        chunks: Sequence[tuple[float, float]], errors: dict[int, Exception] | None = None
    ) -> tuple[ScriptedTTS, Subject]:
        clock = Clock()
        monkeypatch.setattr(load, "time", clock)
        monkeypatch.setattr(asyncio, "sleep", clock.sleep)
        tts = ScriptedTTS(clock, chunks, errors or {})
        return tts, Subject(cast("TTS", tts), {})

    return make


@pytest.mark.parametrize(
    ("chunks", "num_underruns"),
    [
        ([(0.2, 0.5), (0.5, 0.5), (0.5, 0.5)], 0),  # each arrives just in time
        ([(0.2, 0.5), (0.6, 0.5), (0.5, 0.5)], 1),  # late, then in time for the delayed playback
        ([(0.2, 0.5), (0.6, 0.5), (0.6, 0.5)], 2),
        ([(0.2, 1.0), (0.1, 1.0), (1.8, 0.5)], 0),  # audio in hand covers the delay
        ([(0.2, 1.0), (0.1, 1.0), (2.0, 0.5)], 1),
        ([(0.2, 0.5), (9.0, 0.0)], 0),  # an empty last chunk interrupts nothing
    ],
)
def test_a_stream_is_measured_as_real_time_playback_would_hear_it(
    scripted: Callable[..., tuple[ScriptedTTS, Subject]],
    chunks: list[tuple[float, float]],
    num_underruns: int,
) -> None:
    _, subject = scripted(chunks)
    heard = asyncio.run(load.listen(subject, 5, seed=1))
    assert heard.first_audio_ms == pytest.approx(200)
    assert heard.audio_s == pytest.approx(sum(seconds for _, seconds in chunks))
    assert heard.num_underruns == num_underruns


def test_throughput_is_the_audio_of_all_streams_by_the_time_they_took(
    scripted: Callable[..., tuple[ScriptedTTS, Subject]],
) -> None:
    tts, subject = scripted([(0.1, 0.4), (0.6, 0.4)])
    row = load.measure_throughput(subject, 1, num_frames=5, rounds=3)
    assert row["audio_s_per_s"] == pytest.approx(3 * 0.8 / (3 * 0.7), abs=0.01)
    assert row["requests"] == 3
    assert row["underruns"] == 3
    assert row["first_audio_ms"]["p50"] == pytest.approx(100)
    tts, subject = scripted([(0.1, 0.4)])
    load.measure_throughput(subject, 4, num_frames=5, rounds=2)
    assert len(set(tts.seeds)) == len(tts.seeds) == 8


def test_arrivals_count_refused_and_failed_requests_apart(
    scripted: Callable[..., tuple[ScriptedTTS, Subject]],
) -> None:
    errors = {0: QueueFullError(3, 1.0), 2: RuntimeError("a crash"), 3: EngineError("lost")}
    tts, subject = scripted([(0.0, 0.1)], errors)
    row = load.measure_arrivals(subject, 10.0, seconds=3.0, num_frames=5)
    assert row["requests"] == len(tts.seeds)
    assert 15 <= row["requests"] <= 50  # 30 expected
    assert (row["refused"], row["failed"]) == (1, 2)
    assert row["first_failure"] in ("RuntimeError('a crash')", "EngineError('lost')")
    assert row["streams_with_underruns"] == 0
    _, subject = scripted([(0.0, 0.1)])
    row = load.measure_arrivals(subject, 10.0, seconds=3.0, num_frames=5)
    assert (row["refused"], row["failed"], row["first_failure"]) == (0, 0, None)


def test_a_request_that_the_loop_began_late_has_waited_since_it_was_due(
    scripted: Callable[..., tuple[ScriptedTTS, Subject]],
) -> None:
    tts, subject = scripted([(0.25, 0.1)])
    heard = asyncio.run(load.listen(subject, 5, seed=1, began=tts.clock.now - 3))
    assert heard.first_audio_ms == pytest.approx(3_250)


def test_a_failed_request_is_shown_and_gives_exit_code_1(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(*_: object) -> Any:
        raise RuntimeError("a crash")

    monkeypatch.setattr("vivace.cli.bench.bench.measure_throughput", lambda *a, **k: CALM_ROW)
    monkeypatch.setattr(load, "listen", crash)
    model = ("--model", tiny_folder / "custom_voice", "--streams", "1")
    assert run_here("bench", *model, "--rates", "20", "--seconds", "1", *SHORT) == 1
    shown = capsys.readouterr().out
    assert "0 refused, " in shown
    assert "first failure" in shown
    assert "RuntimeError('a crash')" in shown
