"""What backends share that compute in PyTorch's own memory: prompts as rows, and the codec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivace.backends.base import Frames, Immediate, Samples, Slot
from vivace.backends.slots import Slots, SlotState
from vivace.model.codec import Codec
from vivace.model.config import Head
from vivace.model.conv import CausalState
from vivace.model.layers import module_bytes
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt


@dataclass(slots=True, kw_only=True, eq=False)
class HostSlot(SlotState):
    codec_state: Any  # as `HostBackend.new_codec_state` makes it


S = TypeVar("S", bound=HostSlot)


class HostBackend(Immediate, Generic[S]):
    def __init__(self, model: Qwen3TTS, codec: Codec) -> None:
        self.model = model
        self.codec = codec
        self._slots = Slots[S]()
        timing = model.config.timing_config
        self.watched = timing.followed if timing else None

    def release(self, slot: Slot) -> None:
        self._slots.remove(slot)

    def watch(self, head: Head) -> None:
        self.watched = head

    def memory(self) -> dict[str, int]:
        return {"model": module_bytes(self.model), "codec": module_bytes(self.codec)}

    # -- prompts -----------------------------------------------------------------------------

    def text_vectors(self, ids: Sequence[int]) -> Tensor:
        """Vectors of text ids: [ids, hidden]."""
        rows = torch.tensor(ids, dtype=torch.long, device=self.model.device)
        return self.model.talker.text_vectors(rows)

    def prompt_rows(self, prompt: Prompt) -> Tensor:
        """The talker's input embeddings: [rows, hidden]."""
        device = self.model.device
        speaker = None if prompt.speaker is None else torch.from_numpy(prompt.speaker)
        return self.model.talker.rows(
            torch.tensor(prompt.text_ids, device=device),
            torch.from_numpy(prompt.codes).to(device),
            speaker,
        )

    # -- the codec ---------------------------------------------------------------------------

    def new_codec_state(self) -> Any:
        """The state of a stream's audio, for `decode`."""
        return CausalState()

    def decode(self, codes: NDArray[np.int64], state: Any) -> Samples:
        """Codes [frames, codebooks] to samples, continuing `state`."""
        on_device = torch.from_numpy(codes).to(self.codec.device)
        return self.codec.decode(on_device, state).cpu().numpy()

    @torch.inference_mode()
    def render(self, slots: Sequence[Slot], frames: Frames) -> list[Samples]:
        states = [self._slots[slot].codec_state for slot in slots]
        return [self.decode(frames.of(row), state) for row, state in enumerate(states)]

    def warm_codec(self, prompt: Prompt) -> Any:
        """Codec state after the reference recording, which a cloned voice's audio continues."""
        state = self.new_codec_state()
        if prompt.reference is not None:
            self.decode(prompt.reference, state)
        return state
