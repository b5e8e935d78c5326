"""What can be asked of `TTS.speak`, `TTS.stream` and `TTS.astream`: names and types, once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_type_hints

from vivace.engine.chunks import ChunkFrames
from vivace.errors import RequestError
from vivace.prompt import TextLayout
from vivace.speech import LiveMode, OnUnsupported, SamplingOptions
from vivace.text.lexicon import LexiconSource
from vivace.voices.find import VoiceSource


class SpeechOptions(SamplingOptions, total=False):
    """What a text is spoken with, whole or streamed."""

    voice: VoiceSource | None
    language: str
    instruct: str | None
    text_layout: TextLayout | None
    live: LiveMode | None
    split: bool
    clean: bool
    keep_emoji: bool
    normalize: bool | None
    lexicon: LexiconSource | None
    on_unsupported: OnUnsupported
    guard: bool
    trim: bool
    speed: float
    timings: bool


class SpeakOptions(SpeechOptions, total=False):
    progress: bool
    verify: bool


class StreamOptions(SpeechOptions, total=False):
    chunk_frames: ChunkFrames


class CheckpointDefault:
    """The default of a sampling option in a signature: the value that the checkpoint gives."""

    def __repr__(self) -> str:
        return "checkpoint default"


def check_names(given: Iterable[str], options: type[SpeechOptions]) -> None:
    """Raise RequestError for names that are no key of `options`."""
    if unknown := sorted(set(given) - options.__annotations__.keys()):
        known = sorted(options.__annotations__)
        near = [word for name in unknown for word in get_close_matches(name, known, 1)]
        hint = f"did you mean {near[0]}?" if near else f"try one of: {', '.join(known)}"
        raise RequestError(f"no option named {', '.join(unknown)}; {hint}")


def show_options(
    method: Callable[..., Any],
    options: type[SpeechOptions],
    defaults: Mapping[str, object],
    *,
    leave_out: Container[str] = (),
) -> None:
    """Let `inspect.signature`, `help` and completion show each option instead of `**options`."""
    signature = inspect.signature(method)
    own = [one for one in signature.parameters.values() if one.kind != one.VAR_KEYWORD]
    shown = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name, CheckpointDefault()),
            annotation=annotation,
        )
        for name, annotation in get_type_hints(options).items()
        if name not in leave_out
    ]
    shown.sort(key=lambda one: one.name in SamplingOptions.__annotations__)
    method.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
