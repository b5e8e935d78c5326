"""The class of qwen3-tts-cuda-graphs, as faster-qwen3-tts was first called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vivace.compat.chunks import TimedChunk
from vivace.compat.faster import FasterQwen3TTS
from vivace.compat.official import Waveforms

BOUND = ("self", "options", "__class__")


class Qwen3TTSCudaGraphs(FasterQwen3TTS):
    """Clones use only the speaker vector by default; the methods take fewer arguments."""

    def generate_voice_clone(  # type: ignore[override]
        self,
        text: str,
        language: str | None,
        ref_audio: Any = None,
        ref_text: str = "",
        max_new_tokens: int = 2048,
        temperature: float = 0.9,
        top_k: int = 50,
        do_sample: bool = True,
        repetition_penalty: float = 1.05,
        xvec_only: bool = True,
        **options: Any,
    ) -> Waveforms:
        return super().generate_voice_clone(**_flatten(locals()))

    def generate_voice_clone_streaming(  # type: ignore[override]
        self,
        text: str,
        language: str | None,
        ref_audio: Any = None,
        ref_text: str = "",
        max_new_tokens: int = 2048,
        temperature: float = 0.9,
        top_k: int = 50,
        do_sample: bool = True,
        repetition_penalty: float = 1.05,
        chunk_size: int = 12,
        xvec_only: bool = True,
        **options: Any,
    ) -> Iterator[TimedChunk]:
        return super().generate_voice_clone_streaming(**_flatten(locals()))


def _flatten(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a method that takes `**options`."""
    named = {name: value for name, value in arguments.items() if name not in BOUND}
    return {**named, **arguments["options"]}
