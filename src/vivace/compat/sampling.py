"""One set of sampling arguments for all codebooks, with the defaults of faster-qwen3-tts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vivace.compat.arguments import to_sampling

DEFAULT_LIMIT = 2048  # frames; as a default, the runaway guard replaces it


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

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Sampling:
        """Pick the sampling arguments from the arguments of a call."""
        names = (field.name for field in dataclasses.fields(cls))
        return cls(**{name: arguments[name] for name in names if name in arguments})

    def ours(self) -> dict[str, Any]:
        """Fields of `SamplingOptions`; the runaway guard replaces the default limit."""
        merged = dataclasses.asdict(self)
        merged |= {f"subtalker_{name}": merged[name] for name in ("top_k", "top_p", "temperature")}
        merged["subtalker_dosample"] = self.do_sample
        is_limited = self.max_new_tokens != DEFAULT_LIMIT
        return to_sampling(merged, self.max_new_tokens if is_limited else None)
