"""Attributes of the official wrapper over TTS: `.model` and `.processor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivace.checkpoint_files import read_json
from vivace.compat.tokenizer import Qwen3TTSTokenizer
from vivace.text.tokenizer import TextTokenizer
from vivace.tts import TTS

PAD = "<|endoftext|>"
SPEAKER_RATE = 24_000


class LoadedModel:
    """`.model` of the official class: the type, size and configuration of the checkpoint."""

    def __init__(self, tts: TTS) -> None:
        self.tts, self.device, self.dtype = tts, tts.device, tts.dtype
        self.config = tts.checkpoint.config
        self.tts_model_type = self.config.tts_model_type
        self.tts_model_size = self.config.tts_model_size
        self.tokenizer_type = self.config.tokenizer_type
        self.speaker_encoder_sample_rate = SPEAKER_RATE
        self.speech_tokenizer = Qwen3TTSTokenizer(tts.codec)
        path = tts.checkpoint.folder / "generation_config.json"
        self.generate_config = read_json(path) if path.exists() else {}

    def get_supported_speakers(self) -> list[str]:
        return list(self.config.talker_config.spk_id)

    def get_supported_languages(self) -> list[str]:
        names = self.config.talker_config.codec_language_id
        return ["auto", *(name for name in names if "dialect" not in name)]

    def extract_speaker_embedding(self, audio: NDArray[np.float32], sr: int) -> Tensor:
        """Compute the speaker vector of mono samples at 24 kHz."""
        if sr != SPEAKER_RATE:
            raise ValueError(f"Only support 24kHz audio, not {sr} Hz")
        vector = self.tts.clone((audio, sr)).speaker
        return torch.from_numpy(vector).to(self.device, self.dtype)


class Features(dict[str, Any]):
    """Results by key and by name; `to` moves tensors."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def to(self, *where: Any, **options: Any) -> Features:
        return Features({name: value.to(*where, **options) for name, value in self.items()})


class Processor:
    """Converts text to ids. Names of special tokens in the text become those tokens."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer

    def __call__(
        self,
        text: str | Sequence[str] | None = None,
        *,
        return_tensors: str | None = None,
        padding: bool = False,
        **kwargs: Any,
    ) -> Features:
        """Return `input_ids` and `attention_mask` of each text; `padding` pads on the left."""
        if text is None:
            raise ValueError("You need to specify either a `text` input to process.")
        texts = [text] if isinstance(text, str) else text
        rows = [self.tokenizer.encode_marked(one) for one in texts]
        length = max(map(len, rows), default=0) if padding else 0
        blanks = [max(0, length - len(row)) for row in rows]
        pad = self.tokenizer.special_id(PAD)
        padded = list(zip(blanks, rows, strict=True))
        found = {
            "input_ids": [[pad] * blank + row for blank, row in padded],
            "attention_mask": [[0] * blank + [1] * len(row) for blank, row in padded],
        }
        if return_tensors is None:
            return Features(found)
        return Features({name: torch.tensor(value) for name, value in found.items()})

    def decode(self, token_ids: Any, **kwargs: Any) -> str:
        return self.tokenizer.decode([int(token_id) for token_id in token_ids])

    def batch_decode(self, sequences: Any, **kwargs: Any) -> list[str]:
        return [self.decode(sequence) for sequence in sequences]
