"""The `cpu` backend: frames of up to eight slots per sweep over the weights, in C++.

A row's products do not depend on the other rows, so a slot's codes do not depend on its batch.
The codec runs in C++ too. `CpuBackend.open` reads the files of a small or quantized model without
PyTorch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import CodecPrecision, Frames, Samples, Slot
from vivace.backends.cpu.binding import instructions
from vivace.backends.cpu.build import find_refusal, load_library
from vivace.backends.cpu.codec import NativeCodecDecoder, pack_decoder
from vivace.backends.cpu.native_model import NativeModel, NativeSlot, find_unfit, slot_spec
from vivace.backends.cpu.tensors import ModelTensors
from vivace.backends.host import HostBackend, HostSlot, TorchDecoder
from vivace.backends.slots import frame_limit
from vivace.device.threads import default_threads
from vivace.errors import BackendUnavailableError
from vivace.model.config import CodecConfig, ModelConfig
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

if TYPE_CHECKING:
    import torch

    from vivace.model.codec import Codec
    from vivace.model.talker import Qwen3TTS

log = logging.getLogger(__name__)

MAX_STREAMS = 256  # a slot allocates memory only at admission

Rows = NDArray[np.float32]


@dataclass(slots=True, kw_only=True, eq=False)
class CpuSlot(HostSlot):
    native: NativeSlot
    is_watched: bool


class CpuBackend(HostBackend[CpuSlot]):
    name = "cpu"
    max_prompt_rows = 64
    _decoder: NativeCodecDecoder | TorchDecoder

    def __init__(
        self,
        model: Qwen3TTS,
        codec: Codec,
        *,
        max_streams: int | None = None,
        num_threads: int | None = None,  # None: the number of PyTorch
        instruction_set: str = "",
        has_half_cache: bool | None = None,
        codec_precision: CodecPrecision = "auto",
    ) -> None:
        from vivace.backends.cpu.torch_tensors import TorchTensors

        num_threads = num_threads or default_threads()
        tensors = TorchTensors(model, codec, instruction_set)
        self._start(tensors, num_threads, max_streams, instruction_set, has_half_cache)
        precision = pick_precision(codec_precision, has_integers=self._native.has_integers)
        self._decoder = _pack_codec(codec, num_threads, precision)

    @classmethod
    def open(
        cls,
        folder: Path,
        config: ModelConfig,
        codec_config: CodecConfig,
        num_threads: int,
        max_streams: int | None = None,
        codec_precision: CodecPrecision = "auto",
    ) -> CpuBackend:
        """Read a checkpoint without PyTorch: float32, float16 (converted to float32) or quantized.
        Raises BackendUnavailableError if a file is not as expected: PyTorch's reader describes the
        error."""
        from vivace.backends.cpu.file_tensors import open_folder

        backend = cls.__new__(cls)
        with open_folder(folder, config, codec_config) as (tensors, decoder):
            backend._start(tensors, num_threads, max_streams)
            has_integers = backend._native.has_integers
            precision = pick_precision(codec_precision, has_integers=has_integers)
            backend._decoder = pack_decoder(
                decoder, load_library(), num_threads, precision, decoder.note_read
            )
        return backend

    def _start(
        self,
        tensors: ModelTensors,
        num_threads: int,
        max_streams: int | None,
        instruction_set: str = "",
        has_half_cache: bool | None = None,
    ) -> None:
        super().__init__(tensors.config)
        self._tensors, self._num_threads = tensors, num_threads
        self.max_streams = max_streams or MAX_STREAMS
        self._instructions = instructions(instruction_set)
        self._native = NativeModel(tensors, num_threads, instruction_set, has_half_cache)
        # Integer products of eight rows take two to three times as long as those of one row.
        self.shares_work = self._native.has_integers

    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        limit = self.config.talker_config.max_position_embeddings
        max_frames = frame_limit(prompt, sampling, limit)
        spec = slot_spec(sampling, max_frames, prompt.own_row, prompt.num_own_ids, self.watched)
        native = self._native.admit(spec, self.prompt_rows(prompt), prompt.num_shared_rows)
        texts = self._tensors.text_vectors(prompt.trailing_ids)
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

    def prompt_rows(self, prompt: Prompt) -> Rows:
        """The talker's input embeddings: [rows, hidden]."""
        return self._tensors.prompt_rows(prompt)

    def read_attention(
        self, prompt: Prompt, codes: NDArray[np.int64], num_ids: int
    ) -> NDArray[np.float32]:
        spoken = prompt.continued(codes[:-1], (), is_complete=prompt.is_complete)
        rows = self.prompt_rows(spoken)
        return self._native.read_attention(rows, len(prompt) - 1, prompt.own_row, num_ids)

    def extend(self, slot: Slot, text_ids: Sequence[int], is_last: bool) -> None:
        state = self._slots[slot]
        ids = state.extend(text_ids, is_last, self.config.tts_eos_token_id)
        texts = self._tensors.text_vectors(ids)
        self._native.extend(state.native, texts, len(text_ids), is_complete=is_last)

    def new_codec_state(self) -> Any:
        return self._decoder.new_state()

    def decode(self, codes: NDArray[np.int64], state: Any) -> Samples:
        return self._decoder.decode(codes, state)

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
        prefixes = self._native.prefix_bytes
        return {**self._tensors.memory(), "keys and values": keys, "voice cache": prefixes}

    def facts(self) -> dict[str, str]:
        is_torch = isinstance(self._decoder, TorchDecoder)
        return {
            "kernels": f"{self._instructions}, {self._num_threads} thread(s)",
            "codec": "PyTorch" if is_torch else f"C++, {self._decoder.kernels}",
            "passes": f"up to 8 rows at a time, up to {self.max_streams} streams",
        }


def pick_precision(requested: CodecPrecision, *, has_integers: bool) -> CodecPrecision:
    """`auto`: `half` with integer weights. Full weights give the samples of float32."""
    return ("half" if has_integers else "split") if requested == "auto" else requested


def _pack_codec(
    codec: Codec, num_threads: int, precision: CodecPrecision
) -> NativeCodecDecoder | TorchDecoder:
    """The decoder in C++, or in PyTorch where C++ cannot decode."""
    try:
        return pack_decoder(codec.decoder, load_library(), num_threads, precision)
    except BackendUnavailableError as error:
        log.warning("PyTorch decodes the audio: %s", error)
        return TorchDecoder(codec)


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
    import torch

    if model.dtype == torch.bfloat16:
        return "it computes bfloat16 weights in float32; the eager backend rounds like the original"
    return None
