"""Slots, prompts as rows and the codec, for backends that compute in the host's memory.

PyTorch is imported by the functions that need it: the `cpu` backend may run without it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import Frames, Samples, Slot, SynchronousBackend
from vivace.backends.slots import Slots, SlotState
from vivace.model.config import Head, ModelConfig
from vivace.prompt import Prompt

if TYPE_CHECKING:
    from torch import Tensor

    from vivace.model.codec import Codec
    from vivace.model.talker import Qwen3TTS


@dataclass(slots=True, kw_only=True, eq=False)
class HostSlot(SlotState):
    codec_state: Any  # as `HostBackend.new_codec_state` makes it


S = TypeVar("S", bound=HostSlot)


class HostBackend(SynchronousBackend, Generic[S]):
    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._slots = Slots[S]()
        timing = config.timing_config
        self.watched = timing.followed if timing else None

    def release(self, slot: Slot) -> None:
        self._slots.remove(slot)

    def watch(self, head: Head) -> None:
        self.watched = head

    # -- the codec ---------------------------------------------------------------------------

    @abstractmethod
    def new_codec_state(self) -> Any:
        """The state of a stream's audio, for `decode`."""

    @abstractmethod
    def decode(self, codes: NDArray[np.int64], state: Any) -> Samples:
        """Codes [frames, codebooks] to samples, continuing `state`."""

    def render(self, slots: Sequence[Slot], frames: Frames) -> list[Samples]:
        states = [self._slots[slot].codec_state for slot in slots]
        return [self.decode(frames.of(row), state) for row, state in enumerate(states)]

    def warm_codec(self, prompt: Prompt) -> Any:
        """Codec state after the reference recording, which a cloned voice's audio continues."""
        state = self.new_codec_state()
        if prompt.reference is not None:
            self.decode(prompt.reference, state)
        return state


class TorchDecoder:
    """Decodes with a codec of PyTorch."""

    kernels = "PyTorch"

    def __init__(self, codec: Codec) -> None:
        codec.fold()
        self._codec = codec

    def new_state(self) -> Any:
        from vivace.model.conv import CausalState

        return CausalState()

    def decode(self, codes: NDArray[np.int64], state: Any) -> Samples:
        """Codes [frames, codebooks] to samples, continuing `state`."""
        import torch

        with torch.inference_mode():
            on_device = torch.from_numpy(codes).to(self._codec.device)
            return self._codec.decode(on_device, state).cpu().numpy()


def model_memory(model: Qwen3TTS) -> dict[str, int]:
    """Bytes of a model and of the adapters beside it."""
    from vivace.model.layers import module_bytes
    from vivace.model.lora import lora_bytes

    adapters = lora_bytes(model)
    return {"model": module_bytes(model) - adapters} | ({"adapters": adapters} if adapters else {})


def text_vectors(model: Qwen3TTS, ids: Sequence[int], adapter: int = 0) -> Tensor:
    """Vectors of text ids: [ids, hidden]."""
    import torch

    from vivace.model.lora import one_adapter

    rows = torch.tensor(ids, dtype=torch.long, device=model.device)
    return model.talker.text_vectors(rows, one_adapter(adapter, model.device))


def prompt_rows(model: Qwen3TTS, prompt: Prompt) -> Tensor:
    """The talker's input embeddings: [rows, hidden]."""
    import torch

    from vivace.model.lora import one_adapter

    speaker = None if prompt.speaker is None else torch.from_numpy(prompt.speaker)
    return model.talker.rows(
        torch.tensor(prompt.text_ids, device=model.device),
        torch.from_numpy(prompt.codes).to(model.device),
        speaker,
        one_adapter(prompt.adapter, model.device),
    )
