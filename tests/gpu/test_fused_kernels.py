"""Each fused kernel against the plain operations that it replaces, at released and odd sizes."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from tests.support.cuda import CUDA, make_norm, random_rows
from tests.support.official_calls import official_items
from tests.support.slots import stored
from tests.support.tiny import Tiny
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.codec.plain import PlainDecoder
from vivace.backends.cuda_graph.layers.frame import DrawKind, SamplingState
from vivace.backends.cuda_graph.slots.table import Number, Scale
from vivace.backends.frame_maker import FrameCodes
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.model import ops
from vivace.prompt import build_prompt
from vivace.sampling import NoiseTable, Shape, draw, shape_scores, talker_scores
from vivace.speech import SamplingParams

pytest.importorskip("triton")
from tests.support.teacher_forced import distance, predictor_logits, share_within, talker_states
from vivace.backends.cuda_graph.codec.fused import FusedDecoder
from vivace.backends.cuda_graph.layers import draw_kernels, products
from vivace.backends.cuda_graph.layers.products import Residual

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.usefixtures("seeded_inference"),
]


@pytest.mark.parametrize(
    ("depth", "columns"), [(1024, 4096), (3072, 1024), (6144, 2048), (96, 32), (64, 192)]
)
@pytest.mark.parametrize("num_rows", [1, 2, 5, 16, 32, 64, 128, 256, 1024])
def test_products_round_like_reference_for_any_batch(
    depth: int, columns: int, num_rows: int
) -> None:
    x, residual = random_rows(num_rows, depth), random_rows(num_rows, columns)
    weight, norm = random_rows(columns, depth, scale=depth**-0.5), make_norm(depth)
    normed = ops.rms_norm(x, norm.weight, norm.eps)
    found = Residual(x, norm).linear(weight)
    assert share_within(found, normed @ weight.T, 1) > 0.99
    later = make_norm(columns)
    summed = Residual(residual, norm).add_linear(x, weight, later)
    assert share_within(summed.rows, residual + x @ weight.T, 1) > 0.99
    assert torch.equal(summed.normalised(), products.rms_norm(summed.rows, later))
    gated = Residual(x, norm).linear(weight, is_gated=True)
    gate, up = (normed @ weight.T).chunk(2, dim=-1)
    assert share_within(gated, ops.gated_mlp(gate, up), 2) > 0.99
    for some in (slice(-1, None), slice(-9, None), slice(-40, None)):
        few = Residual(x[some], norm)
        assert torch.equal(few.linear(weight), found[some])
        assert torch.equal(few.linear(weight, is_gated=True), gated[some])
        few_summed = Residual(residual[some], norm).add_linear(x[some], weight, later)
        assert torch.equal(few_summed.rows, summed.rows[some])
        assert torch.equal(few_summed.normalised(), summed.normalised()[some])


def test_noise_kernel_is_bit_identical_to_noise_table() -> None:
    seeds = torch.tensor([0, 1, 2**40 + 5, 2**63 - 1], device=CUDA)
    frames = torch.tensor([0, 3, 8190, 77], device=CUDA)
    found = draw_kernels.gumbel_noise(seeds, frames, 3072, 2048, 16)
    expected = NoiseTable([3072] + [2048] * 15, CUDA).frames(seeds, frames, 1)
    assert torch.equal(found, torch.cat(expected, dim=-1)[:, 0])


@pytest.mark.parametrize("book", [0, 1])
def test_draw_kernel_equals_sampling_py(book: int) -> None:
    rows = [(0.9, 50, 1.0), (0.0, 50, 1.0), (1.3, 0, 1.0), (0.5, 1, 1.0), (2.0, 2047, 1.0)] * 6
    batch, num_codes = len(rows), 3072 if book == 0 else 2048
    logits = (torch.randn(batch, num_codes, device=CUDA) * 4).bfloat16()
    logits[7, 5], logits[8, 6], logits[9] = torch.nan, torch.inf, -torch.inf
    shape = Shape.of(rows, num_codes, CUDA)
    noise = torch.randn(batch, num_codes, device=CUDA)
    history = torch.rand(batch, num_codes, device=CUDA) < 0.3
    penalty = torch.full((batch,), 1.05, device=CUDA)
    is_early = torch.arange(batch, device=CUDA) % 2 == 0
    table = random_rows(num_codes, 96)
    numbers = torch.zeros(len(Number), batch, dtype=torch.int64, device=CUDA)
    scales = torch.full((len(Scale), batch), 1.05, device=CUDA)
    draws = SamplingState(DrawKind(None, has_top_p=False), numbers, scales, history, is_early)
    rows_of_book = draws.predictor if book else draws.talker
    rows_of_book.temperature.copy_(shape.temperature[:, 0])
    rows_of_book.is_greedy.copy_(shape.is_greedy[:, 0])
    rows_of_book.last.copy_(shape.last[:, 0])
    drawn = FrameCodes(
        codes=torch.zeros(batch, 2, dtype=torch.int64, device=CUDA),
        is_finite=torch.ones(batch, dtype=torch.int8, device=CUDA),
        code_sum=torch.zeros(batch, 96, device=CUDA),
    )
    next_x = torch.empty(batch, 96, device=CUDA, dtype=torch.bfloat16)
    torch.cuda.synchronize()  # the kernel reads its tables before the previous kernel ends
    draw_kernels.draw_code(
        logits, noise, draws, table, next_x, drawn, book, eos=2150, first_special=2048
    )
    if book == 0:
        ids = torch.arange(num_codes, device=CUDA)
        is_banned = (ids >= 2048) & ((ids != 2150) | is_early[:, None])
        scores = talker_scores(logits.float(), history, penalty[:, None], is_banned, shape)
    else:
        scores = shape_scores(logits.float(), shape)
    codes, best = draw(scores, shape.zero_greedy_noise(noise[:, None])[:, 0])
    is_finite = torch.isfinite(best)
    assert torch.equal(drawn.is_finite > 0, is_finite)
    assert not is_finite[7:10].any()
    assert torch.equal(drawn.codes[is_finite, book], codes[is_finite])
    assert torch.equal(next_x[is_finite], table[codes[is_finite]])
    assert torch.equal(drawn.code_sum[is_finite], table[codes[is_finite]].float())


def three_ways(part: Tiny) -> Iterator[tuple[str, CudaGraphBackend]]:
    """The same rounded weights computed in float32, by PyTorch's layers and by the kernels."""
    rounded = part.checkpoint.load_model(CUDA, torch.bfloat16)
    codec = part.checkpoint.load_codec(CUDA)
    for name, weights, layers in (
        ("exact", copy.deepcopy(rounded).float(), "plain"),
        ("plain", rounded, "plain"),
        ("fused", rounded, "fused"),
    ):
        yield (
            name,
            CudaGraphBackend(
                weights, codec, max_streams=2, max_frames=640, layers=layers, is_capturing=False
            ),
        )


@pytest.mark.parametrize("model", ["custom_voice", "custom_voice_projected"])
def test_fused_layers_are_no_further_from_float32_than_plain_ones(
    tiny: Callable[[str], Tiny], model: str
) -> None:
    """Compare both with float32 on the same rows, over many chunks of keys."""
    part = tiny(model)
    prompt = next(official_items(model)).prompt(part)
    talker, predictor = {}, {}
    for name, backend in three_ways(part):
        backend.admit(prompt, SamplingParams(seed=1))
        torch.cuda.synchronize()  # prompts are read on a stream of their own
        talker[name] = random_talker_logits(backend, len(prompt), 300)
        predictor[name] = random_predictor_logits(backend)
    for logits in (talker, predictor):
        assert distance(logits["fused"], logits["exact"]) < 0.02
        plain = distance(logits["plain"], logits["exact"])
        assert distance(logits["fused"], logits["exact"]) < 1.2 * plain


@pytest.mark.parametrize("model", ["custom_voice", "custom_voice_projected"])
def test_fused_prompts_are_no_further_from_float32_than_plain_ones(
    tiny: Callable[[str], Tiny], model: str
) -> None:
    """Keys and values of all rows and the last state, for more rows than one pass holds."""
    part = tiny(model)
    config, ids = part.checkpoint.config, torch.randint(60, (1100,)).tolist()
    prompt = build_prompt(config, ids, role_ids=[1, 2, 3], layout="whole", preset="ryan")
    found = {}
    for name, backend in three_ways(part):
        row = backend._slots[backend.admit(prompt, SamplingParams(seed=1))].row
        torch.cuda.synchronize()  # prompts are read on a stream of their own
        table = backend._table
        caches = (stored(table, each, row, len(prompt)) for each in (table.keys, table.values))
        found[name] = [*caches, table.hidden[row]]
    for fused, plain, exact in zip(found["fused"], found["plain"], found["exact"], strict=True):
        assert distance(fused, exact) < 0.02
        assert distance(fused, exact) < 1.2 * distance(plain, exact)


def random_talker_logits(backend: CudaGraphBackend, position: int, num_frames: int) -> Tensor:
    generator = torch.Generator(CUDA).manual_seed(0)
    talker = backend.model.talker
    codes = torch.randint(64, (num_frames,), device=CUDA, generator=generator)
    rows = talker.model.codec_embedding(codes)
    logits: Tensor = talker.codec_head(talker_states(backend, rows, position))
    return logits


def random_predictor_logits(backend: CudaGraphBackend) -> Tensor:
    generator = torch.Generator(CUDA).manual_seed(0)
    width = backend.model.config.talker_config.hidden_size
    hidden = torch.randn(6, width, device=CUDA, generator=generator).bfloat16()
    codes = torch.randint(64, (6, 16), device=CUDA, generator=generator)
    return predictor_logits(backend, hidden.to(backend.model.dtype), codes)


def test_fused_codec_equals_float32(tiny: Callable[[str], Tiny]) -> None:
    codec = tiny("base").checkpoint.load_codec(CUDA)
    decoders = [FusedDecoder(codec, 6), PlainDecoder(codec, 6)]
    for rows, num_frames in (([0, 1], 1), ([1], 8), ([2, 0, 1, 4, 3], 4), ([4], 16), ([4, 0], 2)):
        codes = torch.randint(64, (len(rows), num_frames, 16), device=CUDA)
        found, expected = (d.decode(torch.tensor(rows, device=CUDA), codes) for d in decoders)
        assert torch.allclose(found, expected, rtol=0, atol=5e-5)


def test_half_precision_is_45_db_from_float32_on_a_trained_codec() -> None:
    """The codec of the embedded voice."""
    codec = Checkpoint.open(EMBEDDED).load_codec(CUDA)
    half, plain = FusedDecoder(codec, 4, is_half=True), PlainDecoder(codec, 4)
    config = codec.config.decoder_config
    codes = torch.randint(config.codebook_size, (3, 24, config.num_quantizers), device=CUDA)
    rows = torch.arange(3, device=CUDA)
    expected = torch.cat([plain.decode(rows, part) for part in codes.split(8, dim=1)], dim=1)
    found = torch.cat([half.decode(rows, part) for part in codes.split([1, 7, 16], dim=1)], dim=1)
    error = 20 * torch.log10(expected.norm() / (found - expected).norm())
    sys.stdout.write(f"float16 codec: {float(error):.1f} dB from float32\n")
    assert error > 45


@pytest.mark.parametrize("is_half", [True, False])
def test_codec_samples_do_not_depend_on_batch_or_chunk_sizes(is_half: bool) -> None:
    codec = Checkpoint.open(EMBEDDED).load_codec(CUDA)
    decoder = FusedDecoder(codec, 65, is_half=is_half)
    config, rows = codec.config.decoder_config, torch.arange(64, device=CUDA)
    codes = torch.randint(config.codebook_size, (64, 40, config.num_quantizers), device=CUDA)

    def first_slot(num_slots: int, sizes: Sequence[int]) -> Tensor:
        decoder.reset(rows)
        parts = codes[:num_slots].split(sizes, dim=1)
        return torch.cat([decoder.decode(rows[:num_slots], part)[0] for part in parts])

    alone = first_slot(1, [1] * 40)
    for num_slots, sizes in (
        (2, [1] * 40),
        (64, [1] * 40),
        (1, [8] * 5),
        (1, [16, 16, 8]),
        (8, [4] * 10),
        (64, [8] * 5),
        (3, [16, 1, 2, 16, 4, 1]),
    ):
        assert torch.equal(first_slot(num_slots, sizes), alone)
