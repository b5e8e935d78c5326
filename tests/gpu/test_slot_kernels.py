"""The slot kernels change the slot table like the PyTorch operations."""

from __future__ import annotations

import pytest
import torch

from vivace.backends.cuda_graph.layers.frame import DrawKind, SlotUpdater
from vivace.backends.cuda_graph.slots.table import RING, Number, SlotTable
from vivace.backends.frame_maker import FrameCodes
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.model.config import TalkerConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
KIND = DrawKind(None, has_top_p=False)
PAD = 7


def random_table(config: TalkerConfig, device: torch.device, seed: int) -> SlotTable:
    """A table with slots in every state: running, waiting, ended, full, early, new."""
    draw = torch.Generator().manual_seed(seed)

    def numbers(high: int) -> torch.Tensor:
        return torch.randint(high, (table.num_slots,), generator=draw)

    table = SlotTable(config, 40, 128, 20, torch.device("cpu"), torch.bfloat16, 4)
    slots = slice(0, table.num_slots)
    for number, high in (
        *((Number.STATUS, 5), (Number.HAS_SUM, 2), (Number.IS_COMPLETE, 2)),
        *((Number.NUM_FRAMES, 30), (Number.MAX_FRAMES, 34), (Number.MIN_FRAMES, 20)),
        *((Number.NEXT_TEXT, 20), (Number.NUM_TEXTS, 20), (Number.POSITION, 127)),
        *((Number.SEED, 2**40), (Number.LAST, 50), (Number.PREDICTOR_LAST, 50)),
    ):
        table.numbers[number, slots] = numbers(high)
    table.text_ids.random_(0, 50, generator=draw)
    table.scales.uniform_(generator=draw)
    table.history.copy_(torch.rand(table.history.shape, generator=draw) < 0.1)
    for tensor in (table.hidden, table.code_sum):
        tensor.copy_(torch.randn(tensor.shape, generator=draw))
    for name, value in list(vars(table).items()):
        if isinstance(value, torch.Tensor):
            setattr(table, name, value.to(device))
    table.device = device
    return table


def spoken_codes(table: SlotTable, batch: int, seed: int, device: torch.device) -> FrameCodes:
    draw = torch.Generator().manual_seed(seed)
    groups = table.ring.shape[2]
    codes = torch.randint(64, (batch, groups), generator=draw)
    codes[::5, 0] = table.config.codec_eos_token_id
    code_sum = torch.randn(batch, table.hidden.shape[1], generator=draw)
    is_finite = (torch.rand(batch, generator=draw) < 0.9).to(torch.int8)
    return FrameCodes(codes.to(device), code_sum.to(device), is_finite.to(device))


def state_of(table: SlotTable) -> dict[str, torch.Tensor]:
    """State of all slots, without the ring of the padding row."""
    tensors = {k: v for k, v in vars(table).items() if isinstance(v, torch.Tensor)}
    tensors["ring"] = table.ring[:-1]
    return tensors


def run_frame(
    updater: SlotUpdater, table: SlotTable, rows: torch.Tensor, span: int
) -> list[torch.Tensor]:
    draws, reading = updater.begin(rows, KIND, span)
    seen = [draws.numbers, draws.scales, draws.history, draws.is_early]
    states = None
    if reading is not None:
        x, place = reading
        seen += [x, place.position, place.num_keys]
        states = x * 2
    hidden = updater.settle(rows, draws, states)
    updater.end(rows, draws, spoken_codes(table, len(rows), span, rows.device))
    report = torch.full((len(rows), table.report_size), -7, dtype=torch.int32, device=rows.device)
    updater.report(rows, report)
    return [*seen, hidden, report[rows < table.padding]]


def check(config: TalkerConfig, device: torch.device, span: int, seed: int) -> None:
    from vivace.backends.cuda_graph.layers.slot_kernels import FusedSlotUpdater

    texts = torch.randn(64, config.hidden_size, device=device).bfloat16()
    ours, expected = random_table(config, device, seed), random_table(config, device, seed)
    order = torch.randperm(ours.num_slots, generator=torch.Generator().manual_seed(seed))
    rows = torch.cat((order[:29], torch.full((3,), ours.padding))).to(device)
    plain = SlotUpdater(expected, PAD, lambda ids, slots: texts[ids])
    fused = FusedSlotUpdater(ours, PAD, texts)
    for _ in range(2 * RING):
        found, known = run_frame(fused, ours, rows, span), run_frame(plain, expected, rows, span)
        assert all(torch.equal(*pair) for pair in zip(found, known, strict=True))
        assert state_of(ours).keys() == state_of(expected).keys()
        for name, tensor in state_of(expected).items():
            assert torch.equal(state_of(ours)[name], tensor), name


@pytest.mark.parametrize("span", [0, 128])
@pytest.mark.parametrize("seed", range(3))
def test_slot_kernels_equal_torch_operations(span: int, seed: int) -> None:
    config = Checkpoint.open(EMBEDDED).config.talker_config
    check(config, torch.device("cuda"), span, seed)
