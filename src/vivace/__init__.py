"""Vivace runs Qwen3-TTS.

Public names are imported on first use, so that `import vivace` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vivace._version import __version__

if TYPE_CHECKING:
    from vivace.audio.clip import Audio, AudioChunk
    from vivace.errors import TTSError
    from vivace.speech import SamplingParams, Usage, Word
    from vivace.text.lexicon import Lexicon
    from vivace.tts import TTS
    from vivace.voices.voice import Voice

_HOMES = {
    "TTS": "vivace.tts",
    "TTSError": "vivace.errors",
    "Audio": "vivace.audio.clip",
    "AudioChunk": "vivace.audio.clip",
    "Lexicon": "vivace.text.lexicon",
    "SamplingParams": "vivace.speech",
    "Usage": "vivace.speech",
    "Voice": "vivace.voices.voice",
    "Word": "vivace.speech",
}

__all__ = [
    "TTS",
    "Audio",
    "AudioChunk",
    "Lexicon",
    "SamplingParams",
    "TTSError",
    "Usage",
    "Voice",
    "Word",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vivace' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
