"""The reference backend: plain PyTorch, any device, no compilation.

A slot's codes do not depend on the other slots of its batch. Matrix products round differently for
different numbers of rows. Every pass therefore has the same number: one row on a CPU, where each
row costs time, and `PASS_ROWS` on other devices. Unused rows are padding. Attention runs per slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivace.backends.base import Frames, Samples, Slot, SlotFrames
from vivace.backends.frame_maker import EagerSlot, FrameMaker
from vivace.backends.host import (
    HostBackend,
    TorchDecoder,
    model_memory,
    prompt_rows,
    text_vectors,
)
from vivace.backends.slots import check_adapter, frame_limit
from vivace.model.cache import KeyValueCache
from vivace.model.codec import Codec
from vivace.model.layers import module_bytes
from vivace.model.lora import one_adapter
from vivace.model.talker import Qwen3TTS
from vivace.model.torch_kernels import use_torch_kernels
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

PASS_ROWS = 8
MAX_STREAMS = 256  # a slot allocates memory only at admission


class EagerBackend(HostBackend[EagerSlot]):
    name = "eager"
    max_prompt_rows = 1024

    def __init__(
        self,
        model: Qwen3TTS,
        codec: Codec,
        *,
        max_streams: int | None = None,
        pass_rows: int | None = None,
    ) -> None:
        super().__init__(model.config)
        self.model, self.codec = model, codec
        self._decoder = TorchDecoder(codec)
        self._pass_rows = pass_rows or (1 if model.device.type == "cpu" else PASS_ROWS)
        self.shares_work = self._pass_rows > 1
        self.max_streams = max_streams or MAX_STREAMS
        self._kernels = use_torch_kernels(model)
        with torch.inference_mode():
            self._maker = FrameMaker(model, self._pass_rows)

    # -- the Backend interface ---------------------------------------------------------------

    @torch.inference_mode()
    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        config = self.model.config.talker_config
        check_adapter(prompt, self.model.num_adapters)
        max_frames = frame_limit(prompt, sampling, config.max_position_embeddings)
        cache = KeyValueCache(config.num_hidden_layers)
        return self._slots.add(
            EagerSlot(
                sampling=sampling,
                num_rows=len(prompt),
                max_frames=max_frames,
                is_complete=prompt.is_complete,
                own_row=prompt.own_row,
                num_own=prompt.num_own_ids,
                adapter=prompt.adapter,
                cache=cache,
                hidden=self._prefill(prompt, cache),
                history=torch.zeros(
                    1, config.vocab_size, dtype=torch.bool, device=self.model.device
                ),
                texts=self._text_rows(prompt.trailing_ids, prompt.adapter),
                codec_state=self.warm_codec(prompt),
                head=self.watched,
            )
        )

    @torch.inference_mode()
    def extend(self, slot: Slot, text_ids: Sequence[int], is_last: bool) -> None:
        state = self._slots[slot]
        ids = state.extend(text_ids, is_last, self.model.config.tts_eos_token_id)
        state.texts += self._text_rows(ids, state.adapter)

    @torch.inference_mode()
    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        states = [self._slots[slot] for slot in slots]
        for start in range(0, len(states), self._pass_rows):
            self._maker.run(states[start : start + self._pass_rows], num_frames)
        num_groups = self.model.config.talker_config.num_code_groups
        has_places = any(state.head is not None for state in states)
        made = [_take_frames(state, num_groups) for state in states]
        return Frames.stack(made, num_groups, has_places=has_places)

    def new_codec_state(self) -> Any:
        return self._decoder.new_state()

    def decode(self, codes: NDArray[np.int64], state: Any) -> Samples:
        return self._decoder.decode(codes, state)

    def memory(self) -> dict[str, int]:
        return {**model_memory(self.model), "codec": module_bytes(self.codec)}

    def warmup(self) -> None:
        """This backend compiles and captures nothing."""

    def facts(self) -> dict[str, str]:
        passes = f"{self._pass_rows} row(s) at a time, up to {self.max_streams} streams"
        weights = {"weights": f"{self.model.weights} ({self._kernels})"} if self._kernels else {}
        return {"passes": passes, **weights}

    def prompt_rows(self, prompt: Prompt) -> Tensor:
        """The talker's input embeddings: [rows, hidden]."""
        return prompt_rows(self.model, prompt)

    def _text_rows(self, ids: Sequence[int], adapter: int) -> list[Tensor]:
        return list(text_vectors(self.model, ids, adapter)[:, None, None].unbind(0))

    def _prefill(self, prompt: Prompt, cache: KeyValueCache) -> Tensor:
        talker = self.model.talker
        x = self.prompt_rows(prompt)[None]
        adapters = one_adapter(prompt.adapter, self.model.device)
        return talker(x, talker.rope.span(0, len(prompt), x), cache, adapters)[:, -1:]


def _take_frames(state: EagerSlot, num_groups: int) -> SlotFrames:
    """Take the frames of the current step out of the slot."""
    codes = np.empty((0, num_groups), np.int64)
    if state.codes:
        codes = torch.stack(state.codes).cpu().numpy()
    made = SlotFrames(codes, state.status, state.places)
    state.codes, state.places = [], []
    return made
