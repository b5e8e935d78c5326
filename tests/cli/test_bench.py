"""Tests of `vivace bench`: measurements, failed requests and comparison with other packages."""

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

from tests.support.cli_harness import assert_fails, run_here
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


def test_bench_writes_all_measurements_and_machine(
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(load, "LIVE_FRAMES", (3, 3))
    monkeypatch.setattr(load, "RAMP_S", 0.0)
    path = tmp_path / "results" / "bench.json"
    model = ("--model", tiny_folder / "custom_voice")
    loads = ("--streams", "1,2", "--rates", "4", "--live", "1", "--seconds", "1", "--json", path)
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
    assert report["live"][0]["utterances"] > 0
    assert "1 live stream " in shown
    assert f"{latency['first_audio_ms']:.1f} ms" in shown
    assert "2 streams" in shown


@pytest.mark.ci
def test_bench_reports_reason_for_unavailable_backend(
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("vivace.cli.bench.backends.MAX_MEASUREMENT_S", float("inf"))
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
        slowest = 0.99 * 80 * row["streams"] / whole_ms  # over the whole measurement
        assert row["audio_s_per_s"] > slowest - 0.006  # rounded to hundredths
    shown = capsys.readouterr().out
    assert "eager, 3 streams" in shown
    assert "it needs an NVIDIA GPU" in shown


def test_slow_backend_is_not_measured_with_more_streams(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivace.cli.bench.backends.MAX_MEASUREMENT_S", 0.0)
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as tts:
        *_, first, second = measure_backends(Subject(tts, {}), [1, 2], num_frames=2)
    assert first["model_ms"] > 0
    assert "would take about" in second["refused"]


class FakePeer:
    """Takes 0.1 s for 2 s of audio: at most 20 times real time."""

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
    """The report of a comparison in which `kind` is the class of the official package."""

    def compare(kind: type) -> str:
        module = types.ModuleType("qwen_tts")
        module.Qwen3TTSModel = kind  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "qwen_tts", module)
        monkeypatch.setitem(sys.modules, "faster_qwen3_tts", None)
        model = ("--model", tiny_folder / "custom_voice", "--streams", "1")
        assert run_here("bench", *model, "--compare", *SHORT) == 0
        return capsys.readouterr().out

    return compare


def test_compare_measures_installed_peers_and_lists_missing_ones(
    compare: Callable[[type], str],
) -> None:
    shown = compare(FakePeer)
    assert "qwen-tts (official)" in shown
    assert "times as fast" in shown
    assert "faster-qwen3-tts" in shown
    assert "not installed" in shown


def test_compare_reports_failed_peer(
    compare: Callable[[type], str],
) -> None:
    shown = compare(object)
    assert "failed (AttributeError" in shown
    assert "times real time, one stream" in shown


def test_bench_of_base_model_needs_voice(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_here("bench", "--model", tiny_folder / "base", *SHORT)
    assert_fails(code, capsys, "--voice me.wav")


@pytest.mark.parametrize("option", ["--streams", "--frames", "--repeats", "--seconds"])
@pytest.mark.parametrize("bad", ["0", "a", "-2", ""])
def test_invalid_numbers_are_usage_errors(
    option: str, bad: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run_here("bench", option, bad)
    assert caught.value.code == 2
    assert f"{option}: must be a" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--streams", "--batches", "--live", "--rates"])
def test_more_clients_than_the_limit_are_usage_errors(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_here("bench", option, "1,10001")
    assert "above 0 and at most 10,000, not '10001'" in capsys.readouterr().err


def test_percentiles_are_measured_values() -> None:
    assert percentiles(range(100)) == {"p50": 50, "p95": 95, "p99": 99}
    assert percentiles([7.0]) == {"p50": 7.0, "p95": 7.0, "p99": 7.0}
    assert percentiles([]) == {}


def test_plot_shows_first_audio_against_request_rate(tmp_path: Path) -> None:
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
def test_invalid_plot_fails_before_measurement(
    options: tuple[str, ...], match: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_fails(run_here("bench", *options), capsys, match)


def test_folder_as_json_file_fails_before_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_fails(run_here("bench", "--json", str(tmp_path)), capsys, "it is a folder")


def test_report_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    path, sizes = str(tmp_path / "file" / "a.json"), ("--frames", "2", "--repeats", "1")
    code = run_here("bench", "--json", path, "--streams", "1", "--rounds", "1", *sizes)
    assert code == 1
    assert "vivace: cannot write" in capsys.readouterr().err


def test_report_is_printed_to_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ("--frames", "2", "--repeats", "1", "--streams", "1", "--rounds", "1")
    assert run_here("bench", "--json", "-", *sizes) == 0
    assert json.loads(capsys.readouterr().out)["benchmark"] == "bench"
    assert not list(tmp_path.iterdir())


def test_plot_without_matplotlib_fails_before_measurement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vivace.cli.bench.bench.find_spec", lambda name: None)
    code = run_here("bench", "--plot", "load.png", "--rates", "1")
    assert_fails(code, capsys, "pip install matplotlib")


# -- load, with a scripted model and clock -----------------------------------------------------


class Clock:
    """Replaces the `time` module; time passes only in `sleep`."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class ScriptedTTS:
    """Streams chunks of (delay, audio) seconds, or raises the error of a seed."""

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
        ([(0.2, 0.5), (0.6, 0.5), (0.5, 0.5)], 1),  # one underrun, then in time
        ([(0.2, 0.5), (0.6, 0.5), (0.6, 0.5)], 2),
        ([(0.2, 1.0), (0.1, 1.0), (1.8, 0.5)], 0),  # buffered audio covers the delay
        ([(0.2, 1.0), (0.1, 1.0), (2.0, 0.5)], 1),
        ([(0.2, 0.5), (9.0, 0.0)], 0),  # an empty last chunk is no underrun
    ],
)
def test_client_counts_underruns_of_real_time_playback(
    scripted: Callable[..., tuple[ScriptedTTS, Subject]],
    chunks: list[tuple[float, float]],
    num_underruns: int,
) -> None:
    _, subject = scripted(chunks)
    result = asyncio.run(load.run_client(subject, 5, seed=1))
    assert result.first_audio_ms == pytest.approx(200)
    assert result.audio_s == pytest.approx(sum(seconds for _, seconds in chunks))
    assert result.num_underruns == num_underruns


def test_live_client_reads_in_real_time_and_counts_early_underruns_apart(
    scripted: Callable[..., tuple[ScriptedTTS, Subject]],
) -> None:
    tts, subject = scripted([(0.2, 0.4), (0.7, 0.4), (0.0, 2.0), (0.8, 0.4)])
    result = asyncio.run(load.run_client(subject, 5, seed=1, buffer_s=0.5))
    assert (result.num_underruns, result.num_early) == (2, 1)
    assert result.audio_s == pytest.approx(3.2)
    # The third chunk leaves 2.4 s to play. The client asks for the fourth when 0.5 s are left.
    assert tts.clock.now == pytest.approx(100 + 0.2 + 0.7 + 1.9 + 0.8)


def test_live_streams_follow_each_other_until_the_time_is_over(
    scripted: Callable[..., tuple[ScriptedTTS, Subject]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "LIVE_FRAMES", (5, 5))
    tts, subject = scripted([(0.1, 1.0), (0.1, 1.0), (0.1, 1.0)])
    row = load.measure_live(subject, 3, seconds=30.0)
    assert row["live_streams"] == 3
    assert row["utterances"] == len(set(tts.seeds)) == len(tts.seeds) > 3
    assert row["audio_s"] == pytest.approx(3 * row["utterances"])
    assert (row["underruns"], row["underruns_in_first_second"]) == (0, 0)


def test_throughput_is_audio_of_all_streams_per_second(
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


def test_arrivals_count_rejected_and_failed_requests_separately(
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


def test_late_request_is_measured_from_its_due_time(
    scripted: Callable[..., tuple[ScriptedTTS, Subject]],
) -> None:
    tts, subject = scripted([(0.25, 0.1)])
    result = asyncio.run(load.run_client(subject, 5, seed=1, began=tts.clock.now - 3))
    assert result.first_audio_ms == pytest.approx(3_250)


def test_failed_request_is_reported_with_exit_code_1(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(*_: object) -> Any:
        raise RuntimeError("a crash")

    monkeypatch.setattr("vivace.cli.bench.bench.measure_throughput", lambda *a, **k: CALM_ROW)
    monkeypatch.setattr(load, "run_client", crash)
    model = ("--model", tiny_folder / "custom_voice", "--streams", "1")
    assert run_here("bench", *model, "--rates", "20", "--seconds", "1", *SHORT) == 1
    shown = capsys.readouterr().out
    assert "0 rejected, " in shown
    assert "first failure" in shown
    assert "RuntimeError('a crash')" in shown
