"""`vivace.sampling`: counted draws, the softmax, and scores equal to the official ones."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from vivace.sampling import (
    NoiseTable,
    Shape,
    draw,
    gumbel,
    philox,
    shape_scores,
    talker_scores,
)
from vivace.speech import BOUNDS, MAX_SEED

CPU = torch.device("cpu")
GOLDEN = Path(__file__).parent / "golden"

# Random123's known answers for philox4x32 with ten rounds: counter, key, output.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def noise(seed: int, frame: int, sizes: list[int]) -> list[Tensor]:
    table = NoiseTable(sizes, CPU)
    return [part[0, 0] for part in table.frames(torch.tensor([seed]), torch.tensor([frame]), 1)]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_equals_the_published_vectors(
    counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]
) -> None:
    a, b, c, d = (torch.tensor(word) for word in counter)
    k0, k1 = (torch.tensor(word) for word in key)
    assert tuple(philox((a, b, c, d), (k0, k1)).tolist()) == words


def test_noise_of_extreme_words_is_finite() -> None:
    assert torch.isfinite(gumbel(torch.tensor([0, 1, 511, 512, 2**32 - 1]))).all()


@given(
    seed=st.integers(0, MAX_SEED),
    first=st.integers(0, 8000),
    others=st.lists(st.integers(0, MAX_SEED), max_size=4),
    num_frames=st.integers(1, 5),
)
@settings(deadline=None, max_examples=40)
def test_noise_depends_on_seed_frame_codebook_and_code_alone(
    seed: int, first: int, others: list[int], num_frames: int
) -> None:
    table = NoiseTable([13, 8], CPU)
    seeds = torch.tensor([*others, seed])
    firsts = torch.tensor([3] * len(others) + [first])
    together = table.frames(seeds, firsts, num_frames)
    for frame in range(num_frames):
        alone = noise(seed, first + frame, [13, 8])
        for part, expected in zip(together, alone, strict=True):
            assert torch.equal(part[-1, frame], expected)


def test_seeds_frames_and_codebooks_have_different_noise() -> None:
    base, residual = noise(7, 3, [64, 64])
    assert not torch.equal(base, residual)
    assert not torch.equal(base, noise(8, 3, [64])[0])
    assert not torch.equal(base, noise(7 + 2**32, 3, [64])[0])
    assert not torch.equal(base, noise(7, 4, [64])[0])


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def draw_many(logits: Tensor, num_draws: int) -> Tensor:
    table = NoiseTable([logits.shape[-1]], CPU)
    frames = table.frames(torch.tensor([12345]), torch.tensor([0]), num_draws)[0][0]
    codes, _ = draw(logits.expand(num_draws, -1), frames)
    return torch.bincount(codes, minlength=logits.shape[-1]).float()


def test_draws_follow_the_softmax() -> None:
    logits = torch.linspace(-2.0, 2.0, 16)
    counts = draw_many(logits, 50_000)
    # 15 degrees of freedom: 37.7 is exceeded with a probability of 0.001.
    assert chi_square(counts, logits.softmax(-1)) < 37.7
    assert chi_square(counts, (logits * 1.1).softmax(-1)) > 37.7  # control


def test_greedy_row_ignores_its_noise_and_its_neighbour_does_not() -> None:
    logits = torch.tensor([[0.0, 0.1, 0.2], [0.0, 0.1, 0.2]])
    loud = torch.tensor([[9.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    shape = Shape.of([(0.0, 0, 1.0), (1.0, 0, 1.0)], 3, CPU)
    codes, _ = draw(shape_scores(logits, shape), shape.zero_greedy_noise(loud[:, None])[:, 0])
    assert codes.tolist() == [2, 0]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_row_with_non_finite_logits_has_a_non_finite_score(bad: float) -> None:
    logits = torch.zeros(2, 8)
    logits[1, 5] = bad
    shape = Shape.of([(0.9, 3, 0.9), (0.9, 3, 0.9)], 8, CPU)
    _, scores = draw(shape_scores(logits, shape), torch.zeros(2, 8))
    assert torch.isfinite(scores).tolist() == [True, False]


def test_every_row_uses_its_own_settings() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    rows = [(0.7, 5, 1.0), (1.3, 0, 0.8), (1.0, 0, 1.0)]
    together = shape_scores(logits, Shape.of(rows, 50, CPU))
    for index, row in enumerate(rows):
        alone = shape_scores(logits[index : index + 1], Shape.of([row], 50, CPU))
        assert torch.equal(together[index], alone[0])
    assert torch.isfinite(together).sum(-1).tolist()[0] == 5
    assert torch.isfinite(together[2]).all()


def test_top_k_larger_than_the_vocabulary_keeps_every_code() -> None:
    scores = shape_scores(torch.randn(1, 8), Shape.of([(1.0, 50, 1.0)], 8, CPU))
    assert torch.isfinite(scores).all()


def test_top_k_larger_than_the_vocabulary_keeps_every_code_beside_a_smaller_one() -> None:
    shape = Shape.of([(1.0, 50, 1.0), (1.0, 3, 1.0)], 8, CPU)
    scores = shape_scores(torch.randn(2, 8, generator=torch.Generator().manual_seed(1)), shape)
    assert torch.isfinite(scores).sum(-1).tolist() == [8, 3]


def test_row_without_top_p_keeps_improbable_codes_beside_a_row_with_top_p() -> None:
    """The softmax of the second code is 0 in float32."""
    shape = Shape.of([(1.0, 0, 1.0), (1.0, 0, 0.5)], 2, CPU)
    scores = shape_scores(torch.tensor([[0.0, -200.0]] * 2), shape)
    assert torch.isfinite(scores).tolist() == [[True, True], [True, False]]


def golden_cases(part: str) -> list[str]:
    return list(json.loads((GOLDEN / "sampling.json").read_text())[f"{part}_settings"])


@pytest.mark.parametrize("num_spoken", [0, 1, 2, 40])
@pytest.mark.parametrize("case", golden_cases("talker"))
def test_talker_probabilities_are_the_official_ones(case: str, num_spoken: int) -> None:
    header = json.loads((GOLDEN / "sampling.json").read_text())
    tensors = load_file(GOLDEN / "sampling.safetensors")
    changes = header["talker_settings"][case]
    logits = tensors["talker.logits"]
    num_rows, vocab_size = logits.shape
    history = torch.zeros(num_rows, vocab_size, dtype=torch.bool)
    history.scatter_(1, tensors["talker.history"][:, :num_spoken].long(), True)
    eos = header["columns"][-1]
    is_banned = (torch.arange(vocab_size) >= vocab_size - 1024)[None].repeat(num_rows, 1)
    is_banned[:, eos] = num_spoken < 2
    row = (changes.get("temperature", 0.9), changes.get("top_k", 50), changes.get("top_p", 1.0))
    if changes.get("do_sample") is False:
        row = (0.0, 0, 1.0)
    penalty = torch.full((num_rows, 1), changes.get("repetition_penalty", 1.05))
    shape = Shape.of([row] * num_rows, vocab_size, CPU)
    scores = talker_scores(logits, history, penalty, is_banned, shape)
    expected = tensors[f"talker.{case}.{num_spoken}"]
    assert torch.allclose(scores.softmax(-1)[:, header["columns"]], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", golden_cases("predictor"))
def test_predictor_probabilities_are_the_official_ones(case: str) -> None:
    header = json.loads((GOLDEN / "sampling.json").read_text())
    tensors = load_file(GOLDEN / "sampling.safetensors")
    changes = header["predictor_settings"][case]
    logits = tensors["predictor.logits"]
    row = (changes.get("temperature", 0.9), changes.get("top_k", 50), changes.get("top_p", 1.0))
    if changes.get("dosample") is False:
        row = (0.0, 0, 1.0)
    scores = shape_scores(logits, Shape.of([row] * len(logits), logits.shape[-1], CPU))
    expected = tensors[f"predictor.{case}"]
    assert torch.allclose(scores.softmax(-1), expected, rtol=0, atol=1e-6)


# -- bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0.0, 1e-30, 30.0, 1e4, 1e30])
def test_scores_at_the_bounds_of_sampling_are_numbers(dtype: torch.dtype, size: float) -> None:
    """Every combination of extreme options, over small, usual and absurd logits."""
    logits = (torch.linspace(-1, 1, 64) * size).to(dtype)[None]
    history, nothing = torch.ones(1, 64, dtype=torch.bool), torch.zeros(1, 64, dtype=torch.bool)
    extremes = [(BOUNDS[n].low, BOUNDS[n].high) for n in ("temperature", "top_p")]
    penalties = (BOUNDS["repetition_penalty"].low, BOUNDS["repetition_penalty"].high)
    rows = itertools.product(extremes[0], (0, 1, 50), extremes[1])
    for row, penalty in itertools.product(rows, penalties):
        shape = Shape.of([row], 64, CPU)
        scores = talker_scores(logits, history, torch.tensor([[penalty]]), nothing, shape)
        assert not scores.isnan().any()
        assert not scores.isposinf().any()
        codes, best = draw(scores, noise(1, 0, [64])[0][None])
        assert best.isfinite().all(), (row, penalty)
        assert scores.softmax(-1).isfinite().all()
        assert 0 <= codes.item() < 64


def test_scores_below_the_lowest_temperature_are_not_numbers() -> None:
    """Control of the test above: the reason for the bound."""
    nothing = torch.zeros(1, 4, dtype=torch.bool)
    shape = Shape.of([(1e-40, 0, 1.0)], 4, CPU)
    scores = talker_scores(torch.full((1, 4), 30.0), nothing, torch.ones(1, 1), nothing, shape)
    assert not scores.isfinite().all()
