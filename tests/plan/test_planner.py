"""Tests of the planner: the simulation against measurements, and the resulting plans."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from tests.support.project import ROOT
from vivace.cli.bench.load import BUFFER_S, LIVE_FRAMES, RAMP_S
from vivace.cli.main import main
from vivace.errors import RequestError
from vivace.plan import planner
from vivace.plan.figures import Figures, interpolate, load_figures
from vivace.plan.planner import CapacityPlan, Demand, plan_capacity
from vivace.plan.replica import SimulatedReplica, SimulatedUtterance, percentile
from vivace.plan.traffic import Call, simulate_calls, simulate_streams

WITHIN = 0.2  # of the measured p50 of first audio
WITHIN_P95 = {"0.6B": 0.5, "1.7B": 0.2}
NUM_CALLS = 1_600
MODELS = ("0.6B", "1.7B")


def simulate_live(figures: Figures, row: Mapping[str, Any]) -> list[SimulatedUtterance]:
    """The clients of `vivace bench --live`, which play one utterance after another."""
    generator, utterances = random.Random(7), list[SimulatedUtterance]()
    replica = SimulatedReplica(figures, row["live_streams"])
    buffer_ms, end_ms = 1000 * BUFFER_S, 1000 * (RAMP_S + row["seconds"])

    def speak(time_ms: float) -> None:
        num_frames = generator.randint(*LIVE_FRAMES)
        utterances.append(SimulatedUtterance(time_ms, num_frames, speak_again, buffer_ms))
        replica.speak(utterances[-1])

    def speak_again(utterance: SimulatedUtterance) -> None:
        time_ms = max(replica.now, utterance.playback_end_ms - buffer_ms)
        if time_ms < end_ms:
            replica.schedule(time_ms, partial(speak, time_ms))

    for _ in range(row["live_streams"]):
        time_ms = 1000 * generator.uniform(0, RAMP_S)
        replica.schedule(time_ms, partial(speak, time_ms))
    replica.run()
    return utterances


def relative_errors(
    row: Mapping[str, Any], utterances: Sequence[SimulatedUtterance]
) -> tuple[float, float]:
    """Relative errors of the simulated p50 and p95 of first audio of live clients."""
    firsts = [utterance.first_audio_ms for utterance in utterances]
    p50, p95 = (percentile(firsts, share) for share in (50, 95))
    return p50 / row["first_audio_ms"]["p50"] - 1, p95 / row["first_audio_ms"]["p95"] - 1


@pytest.mark.parametrize("model", MODELS)
def test_simulated_live_clients_are_near_measurement(model: str) -> None:
    figures = load_figures("h200", model)
    [row] = figures.live
    utterances = simulate_live(figures, row)
    p50, p95 = relative_errors(row, utterances)
    assert abs(p50) < WITHIN
    assert abs(p95) < WITHIN_P95[model]
    assert len(utterances) == pytest.approx(row["utterances"], rel=0.01)
    assert sum(utterance.num_underruns for utterance in utterances) == row["underruns"] == 0


def test_simulated_first_audio_of_slower_gpu_differs_from_measurement() -> None:
    figures = load_figures("h200", "1.7B")
    [row] = figures.live
    slow = {batch: 2 * ms for batch, ms in figures.frame_ms.items()}
    utterances = simulate_live(dataclasses.replace(figures, frame_ms=slow), row)
    assert min(relative_errors(row, utterances)) > WITHIN


@pytest.mark.parametrize("model", MODELS)
def test_simulated_throughput_equals_measurement(model: str) -> None:
    figures = load_figures("h200", model)
    assert [row["streams"] for row in figures.throughput] == [64, 256]
    for row in figures.throughput:
        result = simulate_streams(figures, row["streams"], row["requests"], row["frames"])
        assert result.audio_s / result.seconds == pytest.approx(row["audio_s_per_s"], rel=0.01)


@pytest.mark.parametrize("model", MODELS)
def test_figures_equal_newest_benchmark_results(model: str) -> None:
    """scripts/make_plan_figures.py copies newer results."""
    figures = load_figures("h200", model)
    path = ROOT / "benchmarks" / "results" / f"engine-{model}-live-h200.json"
    result = json.loads(path.read_text("utf-8"))
    assert list(figures.live) == result["live"]
    assert list(figures.throughput) == result["throughput"]
    assert figures.prompt_ms == result["latency"]["parts"]["prompt_ms"]
    assert figures.frame_ms[1] == result["latency"]["parts"]["model_ms_per_frame"]


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
    for name, seconds in (("SEARCH_S", 2.0), ("FINAL_S", 4.0), ("LOSS_S", 3.0)):
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
    fast = plan_capacity(slow, demand(first_audio_ms=60.0))
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


def test_plan_command_prints_table_or_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans: dict[Demand, CapacityPlan] = {}  # both commands have the same demand

    def plan_once(figures: Figures, demand: Demand) -> CapacityPlan:
        return plans.get(demand) or plans.setdefault(demand, plan_capacity(figures, demand))

    monkeypatch.setattr("vivace.cli.plan.plan_capacity", plan_once)
    command = ["plan", "--calls", "90", "--gpu", "h200", "--model", "0.6B", "--price", "4"]
    command += ["--first-audio", "30"]
    assert main(command) == 0
    table = capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert len(plans) == 1
    report = json.loads(capsys.readouterr().out)
    assert f"{report['gpus']} H200 with 0.6B" in table
    assert f"p95 {report['first_audio_ms']['p95']:.0f} ms" in table
    assert f"{report['cost_per_audio_hour']:.4f} per hour of audio" in table
    assert report["cost_per_hour"] == 4 * report["gpus"]
    assert main(["plan", "--calls", "10", "--gpu", "a100"]) == 1
    assert "no measurements on GPU 'a100'" in capsys.readouterr().err
