"""What can be asked of `TTS.speak`, `TTS.stream` and `TTS.astream`: names and types, once."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from vivace.engine.chunks import ChunkFrames
from vivace.errors import RequestError
from vivace.prompt import TextLayout
from vivace.speech import LiveMode, SamplingOptions
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
    guard: bool
    trim: bool
    speed: float
    timings: bool


class SpeakOptions(SpeechOptions, total=False):
    progress: bool


class StreamOptions(SpeechOptions, total=False):
    chunk_frames: ChunkFrames


def check_names(sampling: Iterable[str]) -> None:
    """A name that is no option is a RequestError; `sampling` is what only sampling may know."""
    if unknown := sorted(set(sampling) - SamplingOptions.__annotations__.keys()):
        known = sorted(StreamOptions.__annotations__)
        near = [word for name in unknown for word in get_close_matches(name, known, 1)]
        hint = f"did you mean {near[0]}?" if near else f"try one of: {', '.join(known)}"
        raise RequestError(f"no option named {', '.join(unknown)}; {hint}")
