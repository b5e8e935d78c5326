"""The official speech tokenizer over the codec of vivace: audio to codes and codes to audio."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivace.audio.files import read_audio
from vivace.audio.resample import resample
from vivace.audio.sandbox import Sandbox
from vivace.checkpoint import find_folder, load_codec
from vivace.compat.arguments import official_loading, source_of
from vivace.device.choice import pick_device, pick_dtype
from vivace.model.codec import Codec


class EncoderOutput(OrderedDict[str, list[Tensor]]):
    """`audio_codes` as an attribute, by key and by index, as in the official output."""

    def __init__(self, audio_codes: list[Tensor]) -> None:
        super().__init__(audio_codes=audio_codes)

    @property
    def audio_codes(self) -> list[Tensor]:
        """One tensor for each audio, [T, codebooks]."""
        return next(iter(self.values()))

    def to_tuple(self) -> tuple[list[Tensor], ...]:
        return tuple(self.values())

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]


class Qwen3TTSTokenizer:
    """The class of `model.model.speech_tokenizer`; always float32."""

    def __init__(self, codec: Codec | None = None) -> None:
        self.model: Any = codec
        self.config: Any = None if codec is None else codec.config
        self.device: Any = None if codec is None else codec.device
        rate = None if codec is None else codec.config.input_sample_rate
        self.feature_extractor: Any = None if rate is None else SimpleNamespace(sampling_rate=rate)
        self._sandbox = Sandbox()

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, **kwargs: Any
    ) -> Qwen3TTSTokenizer:
        """Load a folder or hub id of a codec, or of a checkpoint that contains a codec."""
        options = official_loading(kwargs)
        device = pick_device(options.pop("device"))
        pick_dtype(options.pop("dtype"), device)
        options["offline"] = bool(options.pop("local_files_only", False))
        absent = {"revision": None, "cache_dir": None}
        folder = find_folder(pretrained_model_name_or_path, **(absent | options), is_codec=True)
        return cls(load_codec(folder, device))

    @torch.inference_mode()
    def encode(self, audios: Any, sr: int | None = None, return_dict: bool = True) -> Any:
        """Codes [T, codebooks] of each audio: a path, base64, an array (with `sr`), or a list."""
        codes = [self.model.encode(signal.to(self.device)) for signal in self._signals(audios, sr)]
        return EncoderOutput(codes) if return_dict else (codes,)

    @torch.inference_mode()
    def decode(self, encoded: Any) -> tuple[list[NDArray[np.float32]], int]:
        """Decode the result of `encode`, a dict {"audio_codes": …} or a list of such dicts."""
        waves = [self.model.decode(codes.to(self.device)) for codes in _code_list(encoded)]
        return [wave.float().cpu().numpy() for wave in waves], self.get_output_sample_rate()

    def get_model_type(self) -> str:
        return str(self.config.model_type)

    def get_input_sample_rate(self) -> int:
        return int(self.config.input_sample_rate)

    def get_output_sample_rate(self) -> int:
        return int(self.config.output_sample_rate)

    def get_encode_downsample_rate(self) -> int:
        return int(self.config.encode_downsample_rate)

    def get_decode_upsample_rate(self) -> int:
        return int(self.config.decode_upsample_rate)

    def load_audio(self, x: str | Path, target_sr: int) -> NDArray[np.float32]:
        """Read a path or base64 string at the rate `target_sr`."""
        recording = read_audio(source_of(x), sandbox=self._sandbox)
        return resample(recording.samples, recording.sample_rate, target_sr)

    def _signals(self, audios: Any, sr: int | None) -> Iterator[Tensor]:
        items = [audios] if isinstance(audios, (str, Path, np.ndarray)) else list(audios)
        for item in items:
            if isinstance(item, np.ndarray) != isinstance(items[0], np.ndarray):
                raise TypeError(
                    "Mixed input types are not supported. Use all paths/base64 or all numpy arrays."
                )
            if not isinstance(item, np.ndarray):
                yield torch.from_numpy(self.load_audio(item, self.get_input_sample_rate()))
                continue
            if sr is None:
                raise ValueError(
                    "For numpy waveform input, you must provide `sr` (original sampling rate)."
                )
            mono = item.mean(axis=-1) if item.ndim > 1 else item
            samples = resample(mono.astype(np.float32), int(sr), self.get_input_sample_rate())
            yield torch.from_numpy(samples)


def _code_list(encoded: Any) -> list[Tensor]:
    """One tensor [T, codebooks] for each audio; rows of -1 are padding."""
    if hasattr(encoded, "audio_codes"):
        found = encoded.audio_codes
    elif isinstance(encoded, dict):
        found = encoded["audio_codes"]
    elif isinstance(encoded, list):
        found = [entry["audio_codes"] for entry in encoded]
    else:
        raise TypeError("`encoded` must be an encode output, a dict, or a list of dicts.")
    if isinstance(found, Tensor) and found.dim() == 2:
        found = [found]
    tensors = [torch.as_tensor(codes, dtype=torch.long) for codes in found]
    return [codes[: int((codes[:, 0] > -1).sum())].clamp(min=0) for codes in tensors]
