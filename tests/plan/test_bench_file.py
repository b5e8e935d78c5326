"""Tests of `vivace plan --bench`: figures from a report of `vivace bench --json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vivace.cli.main import main
from vivace.errors import RequestError
from vivace.plan import planner
from vivace.plan.bench_file import read_bench
from vivace.plan.traffic import simulate_streams

REPORT = Path(__file__).parents[2] / "benchmarks" / "results" / "backends-0.6B-h200.json"
WITHIN = 0.15  # of the measurement


def test_read_bench_takes_fastest_backend() -> None:
    figures = read_bench(REPORT)
    assert (figures.gpu, figures.num_slots) == ("NVIDIA H200", 64)
    assert figures.source["backend"] == "cuda_graph"
    assert figures.max_audio_per_s == 536.06
    assert all(one <= eight for one, eight in figures.codec_ms.values())


@pytest.mark.parametrize(("streams", "audio_s_per_s"), [(1, 21.54), (8, 149.28), (64, 536.06)])
def test_simulated_throughput_is_near_measurement(streams: int, audio_s_per_s: float) -> None:
    result = simulate_streams(read_bench(REPORT), streams, streams, 32)
    assert result.audio_s / result.seconds == pytest.approx(audio_s_per_s, rel=WITHIN)


def test_plan_command_reads_bench_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SEARCH_S", "FINAL_S", "LOSS_S"):
        monkeypatch.setattr(planner, name, 2.0)  # simulated seconds
    assert main(["plan", "--calls", "100", "--bench", str(REPORT), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["gpu"] == "NVIDIA H200"
    assert report["gpus"] >= 2  # one of them may be lost


def test_plan_command_with_unknown_gpu_suggests_bench_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "--calls", "100", "--gpu", "l4"]) == 1
    assert "--bench FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a report of vivace bench"),
        ("[]", "not a report of vivace bench"),
        ("{}", "no measurements of several streams"),
        ('{"backends": [{"backend": "eager", "audio_s_per_s": "x"}]}', "not a report"),
        ('{"backends": [{"backend": "eager", "refused": "no"}]}', "no measurements of several"),
    ],
)
def test_invalid_bench_file_raises_request_error(
    tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "bench.json"
    path.write_text(content)
    with pytest.raises(RequestError, match=message):
        read_bench(path)


def test_incomplete_bench_file_raises_request_error(tmp_path: Path) -> None:
    report: dict[str, Any] = json.loads(REPORT.read_text())
    path = tmp_path / "bench.json"
    for name in ("latency", "machine", "model"):
        path.write_text(json.dumps({key: one for key, one in report.items() if key != name}))
        with pytest.raises(RequestError, match="not a report of vivace bench"):
            read_bench(path)
    with pytest.raises(RequestError, match="cannot be read"):
        read_bench(tmp_path / "none.json")
