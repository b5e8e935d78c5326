"""Everything the GPU knows of its slots: one column or row per slot, at addresses that never move.

The last row is nobody's: a batch that is not full is padded with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

from vivace.backends.base import SlotStatus
from vivace.model.config import TalkerConfig
from vivace.speech import SamplingParams

STATUSES: tuple[SlotStatus, ...] = ("running", "waiting", "stop", "length", "failed")
RUNNING, WAITING, STOP, LENGTH, FAILED = range(len(STATUSES))
RING = 16  # frames a slot can make before the host must read them


class Number(IntEnum):
    """Rows of `numbers`; the first `NUM_PROGRESS` change with every frame."""

    STATUS = 0
    NUM_FRAMES = 1
    HAS_SUM = 2  # the last frame's embeddings wait to be read by the talker
    NEXT_TEXT = 3
    POSITION = 4  # of the next key and value
    NUM_TEXTS = 5
    IS_COMPLETE = 6
    MAX_FRAMES = 7
    MIN_FRAMES = 8
    SEED = 9
    IS_GREEDY = 10
    LAST = 11  # the rank of the last code that top-k keeps
    PREDICTOR_IS_GREEDY = 12
    PREDICTOR_LAST = 13


NUM_PROGRESS = 5


class Scale(IntEnum):
    """Rows of `scales`."""

    TEMPERATURE = 0
    TOP_P = 1
    PENALTY = 2
    PREDICTOR_TEMPERATURE = 3
    PREDICTOR_TOP_P = 4


def bytes_per_slot(config: TalkerConfig, num_positions: int, dtype: torch.dtype) -> int:
    """Of keys and values; the rest is small beside them."""
    width = config.num_key_value_heads * config.head_dim * dtype.itemsize
    return 2 * config.num_hidden_layers * (num_positions + 1) * width


class SlotTable:
    def __init__(
        self,
        config: TalkerConfig,
        num_slots: int,
        num_positions: int,
        num_texts: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._device = device
        self.config = config
        self.num_slots, self.num_positions, self.num_texts = num_slots, num_positions, num_texts
        rows = num_slots + 1
        self.padding = num_slots  # the row that is nobody's
        kv_shape = (
            config.num_hidden_layers,
            num_slots,
            config.num_key_value_heads,
            num_positions + 1,  # the last position takes what must not be kept
            config.head_dim,
        )
        self.keys = torch.zeros(kv_shape, dtype=dtype, device=device)
        self.values = torch.zeros(kv_shape, dtype=dtype, device=device)
        self.hidden = torch.zeros(rows, config.hidden_size, dtype=dtype, device=device)
        self.code_sum = torch.zeros_like(self.hidden)
        self.history = torch.zeros(rows, config.vocab_size, dtype=torch.bool, device=device)
        self.text_ids = torch.zeros(rows, num_texts + 1, dtype=torch.int32, device=device)
        self.ring = torch.zeros(
            rows, RING, config.num_code_groups, dtype=torch.int32, device=device
        )
        self.numbers = torch.zeros(len(Number), rows, dtype=torch.int64, device=device)
        self.scales = torch.ones(len(Scale), rows, dtype=torch.float32, device=device)
        self.numbers[Number.STATUS, self.padding] = STOP

    @property
    def num_bytes(self) -> dict[str, int]:
        kept = (self.hidden, self.code_sum, self.history, self.text_ids, self.ring)
        return {
            "keys and values": self.keys.nbytes + self.values.nbytes,
            "slots": sum(tensor.nbytes for tensor in kept),
        }

    def upload(self, values: object, dtype: torch.dtype) -> Tensor:
        """Numbers of the host on the device, without waiting for the device."""
        is_cuda = self._device.type == "cuda"
        host = torch.tensor(values, dtype=dtype, pin_memory=is_cuda)
        return host.to(self._device, non_blocking=True)

    def reset(self, row: int, sampling: SamplingParams, position: int, max_frames: int) -> None:
        """Make the row a fresh slot whose prompt fills `position` positions."""
        self.history[row] = False
        predictor = self.config.code_predictor_config
        numbers = {
            Number.POSITION: position,
            Number.MAX_FRAMES: max_frames,
            Number.MIN_FRAMES: min(sampling.min_frames, 2**62),
            Number.SEED: sampling.seed or 0,
            Number.IS_GREEDY: int(sampling.temperature == 0),
            Number.LAST: _last(sampling.top_k, self.config.vocab_size),
            Number.PREDICTOR_IS_GREEDY: int(sampling.residual_temperature == 0),
            Number.PREDICTOR_LAST: _last(sampling.predictor_top_k, predictor.vocab_size),
        }
        scales = {
            Scale.TEMPERATURE: sampling.temperature or 1.0,
            Scale.TOP_P: sampling.top_p,
            Scale.PENALTY: sampling.repetition_penalty,
            Scale.PREDICTOR_TEMPERATURE: sampling.residual_temperature or 1.0,
            Scale.PREDICTOR_TOP_P: sampling.predictor_top_p,
        }
        self.numbers[:, row] = self.upload([numbers.get(n, 0) for n in Number], torch.int64)
        self.scales[:, row] = self.upload([scales[s] for s in Scale], torch.float32)

    def append_texts(self, row: int, start: int, ids: Sequence[int], is_complete: bool) -> int:
        """Queue text ids after the first `start`; returns how many there are now.

        Ids past the last frame a slot can make would never be read, and are not kept.
        """
        ids = ids[: self.num_texts - start]
        end = start + len(ids)
        if ids:
            self.text_ids[row, start:end] = self.upload(ids, torch.int32)
        self.numbers[Number.NUM_TEXTS : Number.IS_COMPLETE + 1, row] = self.upload(
            [end, int(is_complete)], torch.int64
        )
        return end


def _last(top_k: int, num_codes: int) -> int:
    return (min(top_k, num_codes) if top_k else num_codes) - 1
