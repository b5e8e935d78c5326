"""One set of sampling arguments for all codebooks, with the defaults of faster-qwen3-tts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vivace.compat.arguments import to_sampling

DEFAULT_LIMIT = 2048  # frames; as a default, not a limit for speech that ends by itself


@dataclass(frozen=True, slots=True)
class Sampling:
    max_new_tokens: int = DEFAULT_LIMIT  # frames
    min_new_tokens: int = 2
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    do_sample: bool = True
    repetition_penalty: float = 1.05
    seed: int | None = None

    def ours(self) -> dict[str, Any]:
        """Keywords for `TTS`; the default limit is replaced by its runaway guard."""
        merged = {
            "do_sample": self.do_sample,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "temperature": self.temperature,
            "repetition_penalty": self.repetition_penalty,
            "subtalker_dosample": self.do_sample,
            "subtalker_top_k": self.top_k,
            "subtalker_top_p": self.top_p,
            "subtalker_temperature": self.temperature,
            "min_new_tokens": self.min_new_tokens,
            "seed": self.seed,
        }
        is_limited = self.max_new_tokens != DEFAULT_LIMIT
        return to_sampling(merged, self.max_new_tokens if is_limited else None)
