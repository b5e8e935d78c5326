"""The planner: its simulation against what was measured, and what its plans promise."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.support.project import ROOT
from vivace.cli.main import main
from vivace.errors import RequestError
from vivace.plan import planner
from vivace.plan.figures import Figures, interpolate, load_figures, models_of
from vivace.plan.planner import Demand, plan_capacity
from vivace.plan.replica import Replica, Talk, percentile
from vivace.plan.traffic import Call, arrivals, calls, together

WITHIN = 0.25  # of what was measured
SEEDS = range(4)
NUM_CALLS = 1_600
ROWS = [
    (model, row["requests_per_s"])
    for model in models_of("h200")
    for row in load_figures("h200", model).arrivals
]


def measured(figures: Figures, rate: float) -> dict[str, float]:
    row = next(row for row in figures.arrivals if row["requests_per_s"] == rate)
    return {**row["first_audio_ms"], "requests": row["requests"]}


def off_by(figures: Figures, rate: float) -> tuple[float, float]:
    """How far the simulated p50 and p95 are from the measured ones, as a share of them."""
    row = measured(figures, rate)
    firsts = [
        first
        for seed in SEEDS
        for first in arrivals(figures, rate, int(row["requests"]), 64, seed).firsts_ms
    ]
    p50, p95 = (percentile(firsts, share) for share in (50, 95))
    return p50 / row["p50"] - 1, p95 / row["p95"] - 1


def test_both_models_were_measured_at_four_rates() -> None:
    assert sorted(ROWS) == [(model, rate) for model in ("0.6B", "1.7B") for rate in (5, 10, 20, 40)]


@pytest.mark.parametrize(("model", "rate"), ROWS)
def test_simulated_first_audio_is_what_was_measured(model: str, rate: float) -> None:
    p50, p95 = off_by(load_figures("h200", model), rate)
    assert abs(p50) < WITHIN
    assert abs(p95) < WITHIN


def test_a_gpu_of_half_the_speed_would_be_found_out() -> None:
    figures = load_figures("h200", "1.7B")
    slow = {batch: 2 * ms for batch, ms in figures.frame_ms.items()}
    assert min(off_by(dataclasses.replace(figures, frame_ms=slow), 20.0)) > WITHIN


@pytest.mark.parametrize("model", ["0.6B", "1.7B"])
def test_simulated_throughput_is_what_was_measured(model: str) -> None:
    figures = load_figures("h200", model)
    for row in figures.throughput:
        heard = together(figures, row["streams"], row["requests"], row["frames"])
        assert heard.audio_s / heard.seconds == pytest.approx(row["audio_s_per_s"], rel=0.1)


def test_the_figures_are_those_of_the_committed_results() -> None:
    """Of the sitting that they name; scripts/make_plan_figures.py takes over another."""
    for model in models_of("h200"):
        figures = load_figures("h200", model)
        path = ROOT / "benchmarks" / "results" / f"engine-{model}-half-h200.json"
        result = json.loads(path.read_text("utf-8"))
        if result["machine"]["date"] == figures.source["engine"]["date"]:
            assert list(figures.arrivals) == result["arrivals"]
            assert list(figures.throughput) == result["throughput"]
            assert figures.prompt_ms == result["latency"]["parts"]["prompt_ms"]


# --- the replica ------------------------------------------------------------------------------


def test_a_request_alone_takes_what_its_stages_take() -> None:
    figures = load_figures("h200", "0.6B")
    replica, talk = Replica(figures), Talk(5.0, 64)
    replica.speak(talk)
    replica.run()
    stages = figures.admit(1) + figures.step(1, 1) + figures.render(1, 1)
    assert talk.first_ms == pytest.approx(stages + figures.host_ms + figures.reader_ms)
    assert (talk.num_read, talk.num_underruns) == (64, 0)


def test_more_than_there_are_slots_wait() -> None:
    figures = load_figures("h200", "0.6B")
    heard = together(dataclasses.replace(figures, num_slots=2), 8, 8, 64)
    assert heard.num_most == 8
    assert max(heard.firsts_ms) > 20 * min(heard.firsts_ms)


def test_a_backend_that_is_too_slow_underruns() -> None:
    figures = load_figures("h200", "0.6B")
    slow = dataclasses.replace(figures, frame_ms={1: 100.0, 64: 100.0})
    assert together(slow, 1, 1, 64).num_underruns > 0
    assert together(figures, 1, 1, 64).num_underruns == 0


def test_a_batch_costs_as_much_as_the_graph_that_it_fits_in() -> None:
    figures = load_figures("h200", "1.7B")
    assert figures.step(9, 4) == figures.step(16, 4) < figures.step(17, 4)
    assert figures.render(3, 5) == figures.render(4, 4) + figures.render(4, 1)


def test_what_lies_between_known_values_and_beyond() -> None:
    known = {1: 1.0, 3: 2.0, 5: 6.0}
    assert [interpolate(known, at) for at in (0, 1, 2, 3, 4, 6)] == [1.0, 1.0, 1.5, 2.0, 4.0, 8.0]


# --- plans ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("SEARCH_S", 3.0), ("FINAL_S", 6.0), ("LOSS_S", 4.0)):
        monkeypatch.setattr(planner, name, seconds)


@pytest.fixture
def slow() -> Figures:
    """Of a GPU that takes four times as long, so that a simulation has less to do."""
    figures = load_figures("h200", "1.7B")
    return dataclasses.replace(
        figures,
        prompt_ms=4 * figures.prompt_ms,
        frame_ms={batch: 4 * ms for batch, ms in figures.frame_ms.items()},
        codec_ms={batch: [4 * ms for ms in both] for batch, both in figures.codec_ms.items()},
        throughput=({"audio_s_per_s": figures.most_audio / 4},),
    )


def demand(pause_s: float = 7.0, first_audio_ms: float = 600.0) -> Demand:
    call = Call(utterance_s=5.0, pause_s=pause_s)
    return Demand(num_calls=NUM_CALLS, call=call, first_audio_ms=first_audio_ms)


def test_a_plan_holds_its_calls_with_one_gpu_lost(slow: Figures) -> None:
    made = plan_capacity(slow, demand())
    assert (made.num_gpus - 1) * made.max_calls >= NUM_CALLS > (made.num_gpus - 2) * made.max_calls
    assert percentile(made.usual.firsts_ms, 95) <= 600.0
    spoken = [heard.audio_s / heard.seconds for heard in (made.usual, made.lost)]
    assert spoken[1] > spoken[0], "each of the others has more to say"
    share = NUM_CALLS * 5 / 12  # hours of audio in an hour
    assert made.cost_of_audio_hour(3.0) == pytest.approx(made.num_gpus * 3.0 / share)


def test_longer_pauses_need_fewer_gpus_and_sooner_audio_more(slow: Figures) -> None:
    usual, quiet = plan_capacity(slow, demand()), plan_capacity(slow, demand(pause_s=20.0))
    hasty = plan_capacity(slow, demand(first_audio_ms=85.0))
    assert quiet.num_gpus < usual.num_gpus < hasty.num_gpus


def test_what_no_gpu_can_do_and_what_was_not_measured_are_refused() -> None:
    figures = load_figures("h200", "1.7B")
    with pytest.raises(RequestError, match="ask for less"):
        plan_capacity(figures, Demand(num_calls=1, call=Call(), first_audio_ms=2.0))
    with pytest.raises(RequestError, match="nothing was measured on 'a100'"):
        load_figures("a100", "1.7B")
    with pytest.raises(RequestError, match=r"0\.6B, 1\.7B"):
        load_figures("h200", "7B")
    with pytest.raises(RequestError, match="calls must be 1"):
        Demand(num_calls=0, call=Call())


def test_a_simulation_is_the_same_twice_and_another_by_its_seed() -> None:
    figures = load_figures("h200", "0.6B")
    first, again, other = (calls(figures, 50, Call(), seconds=5, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_the_command_says_it_in_a_table_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "--calls", "90", "--gpu", "h200", "--model", "0.6B", "--price", "4"]
    asked += ["--first-audio", "30"]
    assert main(asked) == 0
    table = capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert f"{told['gpus']} H200 with 0.6B" in table
    assert f"p95 {told['first_audio_ms']['p95']:.0f} ms" in table
    assert f"{told['cost_per_audio_hour']:.4f} for an hour of audio" in table
    assert told["cost_per_hour"] == 4 * told["gpus"]
    assert main(["plan", "--calls", "10", "--gpu", "a100"]) == 1
    assert "nothing was measured on 'a100'" in capsys.readouterr().err
