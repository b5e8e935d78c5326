"""The sampling arguments of faster-qwen3-tts: one set for all codebooks, declared once."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, TypeVar

from vivace.compat.arguments import repeat_for_subtalker, to_sampling

DEFAULT_LIMIT = 2048  # frames; as a default, the runaway guard replaces it

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Sampling:
    max_new_tokens: int = DEFAULT_LIMIT  # frames
    min_new_tokens: int = 2
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    do_sample: bool = True
    repetition_penalty: float = 1.05
    seed: int | None = None  # keyword-only; not an argument of the original

    def ours(self) -> dict[str, Any]:
        """Fields of `SamplingOptions`; the runaway guard replaces the default limit."""
        merged = repeat_for_subtalker(dataclasses.asdict(self))
        is_limited = self.max_new_tokens != DEFAULT_LIMIT
        return to_sampling(merged, self.max_new_tokens if is_limited else None)


DEFAULT_SAMPLING = Sampling()


def takes_sampling(*leave_out: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Replace the parameter `sampling` of a method by the fields of `Sampling` in its signature."""
    fields = {
        field.name: Parameter(
            field.name,
            Parameter.KEYWORD_ONLY if field.name == "seed" else Parameter.POSITIONAL_OR_KEYWORD,
            default=field.default,
            annotation=field.type,
        )
        for field in dataclasses.fields(Sampling)
        if field.name not in leave_out
    }

    def decorate(method: Callable[..., Result]) -> Callable[..., Result]:
        parameters = list(inspect.signature(method).parameters.values())
        place = [each.name for each in parameters].index("sampling")
        parameters[place : place + 1] = fields.values()
        signature = inspect.Signature(sorted(parameters, key=lambda each: each.kind))

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Result:
            given = signature.bind(*args, **kwargs).arguments
            sampling = Sampling(**{name: given.pop(name) for name in fields if name in given})
            return method(**given, **given.pop("options", {}), sampling=sampling)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate
