"""The class of qwen3-tts-cuda-graphs, as faster-qwen3-tts was first called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vivace.compat.chunks import TimedChunk
from vivace.compat.faster import FasterQwen3TTS
from vivace.compat.official import Waveforms


class Qwen3TTSCudaGraphs(FasterQwen3TTS):
    """Its clones use the speaker's vector alone by default, and its arguments are fewer."""

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
        return super().generate_voice_clone(
            text,
            language,
            ref_audio,
            ref_text,
            max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            do_sample=do_sample,
            repetition_penalty=repetition_penalty,
            xvec_only=xvec_only,
            **options,
        )

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
        return super().generate_voice_clone_streaming(
            text,
            language,
            ref_audio,
            ref_text,
            max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            do_sample=do_sample,
            repetition_penalty=repetition_penalty,
            chunk_size=chunk_size,
            xvec_only=xvec_only,
            **options,
        )
