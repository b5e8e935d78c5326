"""The `cpu` backend: frames of up to eight slots per sweep over the weights, in C++.

A row's products do not depend on the other rows, so a slot's codes do not depend on its batch.
Prompts become rows in PyTorch. The codec runs in C++ too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vivace.backends.base import Frames, Samples, Slot
from vivace.backends.cpu.binding import instructions
from vivace.backends.cpu.build import find_refusal, load_library
from vivace.backends.cpu.codec import NativeCodecDecoder
from vivace.backends.cpu.native_model import NativeModel, NativeSlot, find_unfit, slot_spec
from vivace.backends.cpu.page_out import page_out
from vivace.backends.host import HostBackend, HostSlot
from vivace.backends.slots import frame_limit
from vivace.errors import BackendUnavailableError
from vivace.model.codec import Codec
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

log = logging.getLogger(__name__)

MAX_STREAMS = 256  # a slot allocates memory only at admission


@dataclass(slots=True, kw_only=True, eq=False)
class CpuSlot(HostSlot):
    native: NativeSlot
    is_watched: bool


class CpuBackend(HostBackend[CpuSlot]):
    name = "cpu"

    def __init__(
        self,
        model: Qwen3TTS,
        codec: Codec,
        *,
        max_streams: int | None = None,
        num_threads: int | None = None,
        instruction_set: str = "",
        has_half_cache: bool | None = None,
    ) -> None:
        super().__init__(model, codec)
        # Integer products of eight rows take two to three times as long as those of one row.
        self.shares_work = not model.talker.codec_head.weight.is_floating_point()
        self.max_streams = max_streams or MAX_STREAMS
        self._num_threads = num_threads or torch.get_num_threads()
        self._instructions = instructions(instruction_set)
        with torch.inference_mode():
            self._native = NativeModel(model, self._num_threads, instruction_set, has_half_cache)
            self._decoder = self._pack_codec()

    @torch.inference_mode()
    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        limit = self.model.config.talker_config.max_position_embeddings
        max_frames = frame_limit(prompt, sampling, limit)
        spec = slot_spec(sampling, max_frames, prompt.own_row, prompt.num_own_ids, self.watched)
        native = self._native.admit(spec, self.prompt_rows(prompt).float())
        texts = self.text_vectors(prompt.trailing_ids).float()
        self._native.extend(native, texts, 0, is_complete=prompt.is_complete)
        return self._slots.add(
            CpuSlot(
                sampling=sampling,
                num_rows=len(prompt),
                max_frames=max_frames,
                is_complete=prompt.is_complete,
                native=native,
                codec_state=self.warm_codec(prompt),
                is_watched=self.watched is not None,
            )
        )

    @torch.inference_mode()
    def extend(self, slot: Slot, text_ids: Sequence[int], is_last: bool) -> None:
        state = self._slots[slot]
        ids = state.extend(text_ids, is_last, self.model.config.tts_eos_token_id)
        texts = self.text_vectors(ids).float()
        self._native.extend(state.native, texts, len(text_ids), is_complete=is_last)

    def new_codec_state(self) -> Any:
        return super().new_codec_state() if self._decoder is None else self._decoder.new_state()

    def decode(self, codes: NDArray[np.int64], state: Any) -> Samples:
        if self._decoder is None:
            return super().decode(codes, state)
        return self._decoder.decode(codes, state)

    def _pack_codec(self) -> NativeCodecDecoder | None:
        """The decoder in C++, or None where PyTorch must decode."""
        try:
            decoder = NativeCodecDecoder(self.codec.decoder, load_library(), self._num_threads)
        except BackendUnavailableError as error:
            log.warning("PyTorch decodes the audio: %s", error)
            return None
        page_out(self.codec)
        return decoder

    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        states = [self._slots[slot] for slot in slots]
        has_places = any(state.is_watched for state in states)
        natives = [state.native for state in states]
        return self._native.step(natives, num_frames, has_places=has_places)

    def release(self, slot: Slot) -> None:
        self._slots.remove(slot).native.free()

    def warmup(self) -> None:
        """The library was compiled when the backend was built."""

    def memory(self) -> dict[str, int]:
        keys = sum(state.native.num_bytes for state in self._slots.values())
        return {**super().memory(), "keys and values": keys}

    def facts(self) -> dict[str, str]:
        return {
            "kernels": f"{self._instructions}, {self._num_threads} thread(s)",
            "codec": "PyTorch" if self._decoder is None else f"C++, {self._decoder.kernels}",
            "passes": f"up to 8 rows at a time, up to {self.max_streams} streams",
        }


def device_refusal(device: torch.device) -> str | None:
    """Why this backend cannot run on a device, or None. The first call compiles the library."""
    if device.type != "cpu":
        return f"it runs on a CPU; the device is {device}"
    return find_refusal()


def unfit(model: Qwen3TTS) -> str | None:
    """Why this backend cannot run the model, or None."""
    return find_unfit(model.config.talker_config)


def slower(model: Qwen3TTS) -> str | None:
    """Why `auto` should use another backend for the model, or None."""
    if model.dtype == torch.bfloat16:
        return "it computes bfloat16 weights in float32; the eager backend rounds like the original"
    return None
