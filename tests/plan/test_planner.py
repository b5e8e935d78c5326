"""Tests of the planner: the simulation against measurements, and the resulting plans."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from tests.support.project import ROOT
from vivace.cli.main import main
from vivace.errors import RequestError
from vivace.plan import planner
from vivace.plan.figures import Figures, interpolate, load_figures, read_gpu
from vivace.plan.planner import Demand, plan_capacity
from vivace.plan.replica import SimulatedReplica, SimulatedUtterance, percentile
from vivace.plan.traffic import Call, simulate_calls, simulate_streams

WITHIN = 0.25  # of the measurement
SEEDS = range(4)
JITTER_MS = 0.3  # mean delay of a request on its way to the engine
NUM_CALLS = 1_600
ROWS = [
    (model, row["requests_per_s"])
    for model in read_gpu("h200")
    for row in load_figures("h200", model).arrivals
]


def measured(figures: Figures, rate: float) -> dict[str, float]:
    row = next(row for row in figures.arrivals if row["requests_per_s"] == rate)
    return {**row["first_audio_ms"], "requests": row["requests"]}


def simulate_arrivals(
    figures: Figures, rate: float, num_requests: int, num_frames: int, seed: int
) -> list[float]:
    """First audio of the requests of `vivace bench --rates`, which arrive at the same times."""
    generator, jitter, due_s = random.Random(7), random.Random(seed), 0.0
    replica, utterances = SimulatedReplica(figures), list[SimulatedUtterance]()
    for _ in range(num_requests):
        due_s += generator.expovariate(rate)
        utterances.append(SimulatedUtterance(1000 * due_s, num_frames))
        replica.speak(utterances[-1], jitter.expovariate(1 / JITTER_MS))
    replica.run()
    return [utterance.first_audio_ms for utterance in utterances]


def relative_errors(figures: Figures, rate: float) -> tuple[float, float]:
    """Relative errors of the simulated p50 and p95."""
    row = measured(figures, rate)
    firsts = [
        first
        for seed in SEEDS
        for first in simulate_arrivals(figures, rate, int(row["requests"]), 64, seed)
    ]
    p50, p95 = (percentile(firsts, share) for share in (50, 95))
    return p50 / row["p50"] - 1, p95 / row["p95"] - 1


def test_figures_have_both_models_at_four_rates() -> None:
    assert sorted(ROWS) == [(model, rate) for model in ("0.6B", "1.7B") for rate in (5, 10, 20, 40)]


@pytest.mark.parametrize(("model", "rate"), ROWS)
def test_simulated_first_audio_is_near_measurement(model: str, rate: float) -> None:
    p50, p95 = relative_errors(load_figures("h200", model), rate)
    assert abs(p50) < WITHIN
    assert abs(p95) < WITHIN


def test_simulated_first_audio_of_slower_gpu_differs_from_measurement() -> None:
    figures = load_figures("h200", "1.7B")
    slow = {batch: 2 * ms for batch, ms in figures.frame_ms.items()}
    assert min(relative_errors(dataclasses.replace(figures, frame_ms=slow), 20.0)) > WITHIN


@pytest.mark.parametrize("model", ["0.6B", "1.7B"])
def test_simulated_throughput_is_near_measurement(model: str) -> None:
    figures = load_figures("h200", model)
    for row in figures.throughput:
        result = simulate_streams(figures, row["streams"], row["requests"], row["frames"])
        assert result.audio_s / result.seconds == pytest.approx(row["audio_s_per_s"], rel=0.12)


def test_figures_equal_committed_benchmark_results() -> None:
    """Compares results of the same date; scripts/make_plan_figures.py copies newer ones."""
    for model in read_gpu("h200"):
        figures = load_figures("h200", model)
        path = ROOT / "benchmarks" / "results" / f"engine-{model}-half-h200.json"
        result = json.loads(path.read_text("utf-8"))
        if result["machine"]["date"] == figures.source["engine"]["date"]:
            assert list(figures.arrivals) == result["arrivals"]
            assert list(figures.throughput) == result["throughput"]
            assert figures.prompt_ms == result["latency"]["parts"]["prompt_ms"]


# -- replica -----------------------------------------------------------------------------------


def test_first_audio_of_single_request_is_sum_of_stages() -> None:
    figures = load_figures("h200", "0.6B")
    replica, utterance = SimulatedReplica(figures), SimulatedUtterance(5.0, 64)
    replica.speak(utterance)
    replica.run()
    stages = figures.admit(1) + figures.step(1, 1) + figures.render(1, 1)
    assert utterance.first_audio_ms == pytest.approx(stages + figures.host_ms + figures.reader_ms)
    assert (utterance.num_read, utterance.num_underruns) == (64, 0)


def test_requests_above_slots_wait() -> None:
    figures = load_figures("h200", "0.6B")
    result = simulate_streams(dataclasses.replace(figures, num_slots=2), 8, 8, 64)
    assert result.peak_streams == 8
    assert max(result.first_audio_ms) > 20 * min(result.first_audio_ms)


def test_backend_slower_than_real_time_underruns() -> None:
    figures = load_figures("h200", "0.6B")
    slow = dataclasses.replace(figures, frame_ms={1: 100.0, 64: 100.0})
    assert simulate_streams(slow, 1, 1, 64).num_underruns > 0
    assert simulate_streams(figures, 1, 1, 64).num_underruns == 0


def test_batch_time_is_that_of_captured_graph() -> None:
    figures = load_figures("h200", "1.7B")
    assert figures.step(9, 4) == figures.step(16, 4) < figures.step(17, 4)
    assert figures.render(3, 5) == figures.render(4, 4) + figures.render(4, 1)


def test_interpolate_between_and_beyond_known_values() -> None:
    known = {1: 1.0, 3: 2.0, 5: 6.0}
    assert [interpolate(known, at) for at in (0, 1, 2, 3, 4, 6)] == [1.0, 1.0, 1.5, 2.0, 4.0, 8.0]


# -- plans -------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("SEARCH_S", 3.0), ("FINAL_S", 6.0), ("LOSS_S", 4.0)):
        monkeypatch.setattr(planner, name, seconds)


@pytest.fixture
def slow() -> Figures:
    """Figures of a GPU with a quarter of the speed, which shortens the simulation."""
    figures = load_figures("h200", "1.7B")
    return dataclasses.replace(
        figures,
        prompt_ms=4 * figures.prompt_ms,
        frame_ms={batch: 4 * ms for batch, ms in figures.frame_ms.items()},
        codec_ms={batch: [4 * ms for ms in both] for batch, both in figures.codec_ms.items()},
        throughput=({"audio_s_per_s": figures.max_audio_per_s / 4},),
    )


def demand(pause_s: float = 7.0, first_audio_ms: float = 600.0) -> Demand:
    call = Call(utterance_s=5.0, pause_s=pause_s)
    return Demand(num_calls=NUM_CALLS, call=call, first_audio_ms=first_audio_ms)


def test_plan_meets_demand_with_one_gpu_lost(slow: Figures) -> None:
    made = plan_capacity(slow, demand())
    assert (made.num_gpus - 1) * made.max_calls >= NUM_CALLS > (made.num_gpus - 2) * made.max_calls
    assert percentile(made.normal.first_audio_ms, 95) <= 600.0
    spoken = [result.audio_s / result.seconds for result in (made.normal, made.after_loss)]
    assert spoken[1] > spoken[0], "each remaining GPU has more load"
    share = NUM_CALLS * 5 / 12  # hours of audio in an hour
    assert made.cost_of_audio_hour(3.0) == pytest.approx(made.num_gpus * 3.0 / share)


def test_longer_pauses_need_fewer_gpus_and_faster_audio_more(slow: Figures) -> None:
    usual, quiet = plan_capacity(slow, demand()), plan_capacity(slow, demand(pause_s=20.0))
    fast = plan_capacity(slow, demand(first_audio_ms=85.0))
    assert quiet.num_gpus < usual.num_gpus < fast.num_gpus


def test_impossible_demand_or_unknown_gpu_raises_request_error() -> None:
    figures = load_figures("h200", "1.7B")
    with pytest.raises(RequestError, match="allow more time"):
        plan_capacity(figures, Demand(num_calls=1, call=Call(), first_audio_ms=2.0))
    with pytest.raises(RequestError, match="no measurements on GPU 'a100'"):
        load_figures("a100", "1.7B")
    with pytest.raises(RequestError, match=r"0\.6B, 1\.7B"):
        load_figures("h200", "7B")
    with pytest.raises(RequestError, match="calls must be 1"):
        Demand(num_calls=0, call=Call())


def test_simulation_is_deterministic_for_seed() -> None:
    figures = load_figures("h200", "0.6B")
    first, again, other = (
        simulate_calls(figures, 50, Call(), seconds=5, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_plan_command_prints_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--calls", "90", "--gpu", "h200", "--model", "0.6B", "--price", "4"]
    command += ["--first-audio", "30"]
    assert main(command) == 0
    table = capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert f"{report['gpus']} H200 with 0.6B" in table
    assert f"p95 {report['first_audio_ms']['p95']:.0f} ms" in table
    assert f"{report['cost_per_audio_hour']:.4f} per hour of audio" in table
    assert report["cost_per_hour"] == 4 * report["gpus"]
    assert main(["plan", "--calls", "10", "--gpu", "a100"]) == 1
    assert "no measurements on GPU 'a100'" in capsys.readouterr().err
