"""The classes of faster-qwen3-tts over TTS: one text a call, whole or in chunks with timings.

Here sampling arguments reach every codebook, two generators may be open at once, and the last
chunk says that it is the last.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vivace.audio.clip import AudioChunk
from vivace.audio.files import read_audio
from vivace.compat.official import (
    Qwen3TTSModel,
    VoiceClonePromptItem,
    Waveforms,
    load_tts,
    prompt_items,
    source_of,
    voice_of,
)
from vivace.engine.session import chunk_sizes
from vivace.engine.stream import Stream
from vivace.prompt import TextLayout
from vivace.tts import TTS
from vivace.voices.enroll import SILENCE_S
from vivace.voices.voice import Voice

TimedChunk = tuple[NDArray[np.float32], int, dict[str, Any]]

MAX_REFERENCES = 32  # kept in memory, by content
DEFAULTS: dict[str, Any] = {
    "max_new_tokens": 2048,
    "min_new_tokens": 2,
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
    "do_sample": True,
    "repetition_penalty": 1.05,
}


class FasterQwen3TTS:
    def __init__(self, tts: TTS) -> None:
        self.tts = tts
        self.model = Qwen3TTSModel(tts)
        self._references: dict[tuple[str, str | None, bool], Voice] = {}

    @classmethod
    def from_pretrained(
        cls,
        model_name: str,
        device: str = "cuda",
        dtype: Any = torch.bfloat16,
        attn_implementation: str = "sdpa",
        max_seq_len: int = 2048,
        **kwargs: Any,
    ) -> FasterQwen3TTS:
        """`attn_implementation` and `max_seq_len` are accepted; nothing here depends on them."""
        return cls(load_tts(model_name, device, dtype, kwargs))

    @property
    def sample_rate(self) -> int:
        return self.tts.sample_rate

    def get_supported_speakers(self) -> list[str]:
        return self.model.get_supported_speakers()

    def get_supported_languages(self) -> list[str]:
        return self.model.get_supported_languages()

    def warmup(self, prefill_len: int = 100) -> None:
        """Run a few frames, so that the first request does not pay for the first launches."""
        width = self.tts.checkpoint.config.talker_config.hidden_size
        is_base = self.tts.model_type == "base"
        voice = Voice(name="warm", speaker=np.zeros(width, np.float32)) if is_base else None
        instruct = "A voice." if self.tts.model_type == "voice_design" else None
        text = "a " * max(1, prefill_len // 2)
        self.tts.speak(text, voice=voice, instruct=instruct, max_frames=4, seed=0)

    def generate_voice_clone(
        self,
        text: str,
        language: str,
        ref_audio: Any = None,
        ref_text: str = "",
        *,
        xvec_only: bool = False,
        append_silence: bool = True,
        instruct: str | None = None,
        voice_clone_prompt: Any = None,
        non_streaming_mode: bool | None = None,
        **sampling: Any,
    ) -> Waveforms:
        voice = self._clone(ref_audio, ref_text, xvec_only, append_silence, voice_clone_prompt)
        return self._whole(text, language, voice, instruct, non_streaming_mode or False, sampling)

    def generate_voice_clone_streaming(
        self,
        text: str,
        language: str,
        ref_audio: Any = None,
        ref_text: str = "",
        *,
        chunk_size: int = 12,
        xvec_only: bool = False,
        append_silence: bool = True,
        instruct: str | None = None,
        voice_clone_prompt: Any = None,
        non_streaming_mode: bool | None = None,
        **sampling: Any,
    ) -> Iterator[TimedChunk]:
        voice = self._clone(ref_audio, ref_text, xvec_only, append_silence, voice_clone_prompt)
        return self._chunks(
            text, language, voice, instruct, non_streaming_mode or False, chunk_size, sampling
        )

    def generate_custom_voice(
        self,
        text: str,
        speaker: str,
        language: str,
        *,
        instruct: str | None = None,
        non_streaming_mode: bool | None = None,
        **sampling: Any,
    ) -> Waveforms:
        is_whole = non_streaming_mode is not False
        return self._whole(text, language, speaker, instruct, is_whole, sampling)

    def generate_custom_voice_streaming(
        self,
        text: str,
        speaker: str,
        language: str,
        *,
        chunk_size: int = 12,
        instruct: str | None = None,
        non_streaming_mode: bool | None = None,
        **sampling: Any,
    ) -> Iterator[TimedChunk]:
        is_whole = non_streaming_mode is not False
        return self._chunks(text, language, speaker, instruct, is_whole, chunk_size, sampling)

    def generate_voice_design(
        self,
        text: str,
        instruct: str,
        language: str,
        *,
        non_streaming_mode: bool | None = None,
        **sampling: Any,
    ) -> Waveforms:
        is_whole = non_streaming_mode is not False
        return self._whole(text, language, None, instruct, is_whole, sampling)

    def generate_voice_design_streaming(
        self,
        text: str,
        instruct: str,
        language: str,
        *,
        chunk_size: int = 12,
        non_streaming_mode: bool | None = None,
        **sampling: Any,
    ) -> Iterator[TimedChunk]:
        is_whole = non_streaming_mode is not False
        return self._chunks(text, language, None, instruct, is_whole, chunk_size, sampling)

    # -- in the words of TTS -----------------------------------------------------------------

    def _clone(
        self, ref_audio: Any, ref_text: str, xvec_only: bool, append_silence: bool, prompt: Any
    ) -> Voice:
        if prompt is not None:
            items: list[VoiceClonePromptItem] = prompt_items(prompt)
            return voice_of(items[0])
        if ref_audio is None:
            raise ValueError("Either `voice_clone_prompt` or `ref_audio` must be provided.")
        if not xvec_only and not ref_text:
            raise ValueError("ref_text is required when xvec_only=False (ICL mode).")
        recording = read_audio(source_of(ref_audio))
        key = (recording.sha256, None if xvec_only else ref_text, append_silence)
        if key not in self._references:
            while len(self._references) >= MAX_REFERENCES:
                self._references.pop(next(iter(self._references)))
            samples = recording.samples
            if append_silence:  # before the speaker is heard too, unlike `TTS.clone`
                silence = np.zeros(int(SILENCE_S * recording.sample_rate), np.float32)
                samples = np.concatenate((samples, silence))
            audio = (samples, recording.sample_rate)
            self._references[key] = self.tts.clone(audio, key[1], append_silence=False)
        return self._references[key]

    def _options(
        self, instruct: str | None, language: str, is_whole: bool, sampling: dict[str, Any]
    ) -> dict[str, Any]:
        honours_instruct = self.tts.checkpoint.config.honours_instruct
        layout: TextLayout = "whole" if is_whole else "streamed"
        return {
            "language": language,
            "instruct": instruct if honours_instruct and instruct else None,
            "text_layout": layout,
            **sampling_for_all(sampling),
        }

    def _whole(
        self,
        text: str,
        language: str,
        voice: str | Voice | None,
        instruct: str | None,
        is_whole: bool,
        sampling: dict[str, Any],
    ) -> Waveforms:
        options = self._options(instruct, language, is_whole, sampling)
        audio = self.tts.speak(text, voice=voice, trim=False, **options)
        return [audio.samples], self.sample_rate

    def _chunks(
        self,
        text: str,
        language: str,
        voice: str | Voice | None,
        instruct: str | None,
        is_whole: bool,
        chunk_size: int,
        sampling: dict[str, Any],
    ) -> Iterator[TimedChunk]:
        chunk_sizes(chunk_size)  # refuses what is no number of frames
        options = self._options(instruct, language, is_whole, sampling)
        stream = self.tts.stream(text, voice=voice, chunk_frames=_sizes(chunk_size), **options)
        with stream:
            yield from _timed(stream, chunk_size)


def _sizes(chunk_size: int) -> Iterator[int]:
    """A chunk, then always the next one's first frame before its rest."""
    if chunk_size == 1:
        return itertools.repeat(1)
    return itertools.chain([chunk_size], itertools.cycle([1, chunk_size - 1]))


def _timed(stream: Stream, chunk_size: int) -> Iterator[TimedChunk]:
    """Chunks held until one more frame shows whether they are the last."""
    held: list[AudioChunk] = []
    num_steps = 0
    for index in itertools.count():
        began = time.perf_counter()
        is_final = True
        for chunk in stream:
            held.append(chunk)
            if sum(len(part.codes) for part in held) > chunk_size:
                is_final = False
                break
        ready, held = (held, []) if is_final else (held[:-1], held[-1:])
        steps = sum(len(part.codes) for part in ready)
        num_steps += steps
        timing = {
            "chunk_index": index,
            "chunk_steps": steps,
            "prefill_ms": stream.admit_ms,
            "decode_ms": 1000 * (time.perf_counter() - began),
            "total_steps_so_far": num_steps,
            "is_final": is_final,
        }
        samples = np.concatenate([part.samples for part in ready])
        yield samples, ready[0].sample_rate, timing
        if is_final:
            return


def sampling_for_all(options: dict[str, Any]) -> dict[str, Any]:
    """One set of arguments for all codebooks, with the defaults of faster-qwen3-tts."""
    unknown = sorted(set(options) - set(DEFAULTS) - {"seed"})
    if unknown:
        raise TypeError(f"unexpected keyword arguments: {', '.join(unknown)}")
    chosen = {**DEFAULTS, **options}
    temperature = chosen["temperature"] if chosen["do_sample"] else 0.0
    sampling = {
        "temperature": temperature,
        "top_k": chosen["top_k"],
        "top_p": chosen["top_p"],
        "predictor_temperature": temperature,
        "predictor_top_k": chosen["top_k"],
        "predictor_top_p": chosen["top_p"],
        "repetition_penalty": chosen["repetition_penalty"],
        "min_frames": max(0, min(chosen["min_new_tokens"], chosen["max_new_tokens"] - 1)),
        "max_frames": max(1, chosen["max_new_tokens"] - 1),
    }
    if chosen.get("seed") is not None:
        sampling["seed"] = chosen["seed"]
    return sampling


class Qwen3TTSCudaGraphs(FasterQwen3TTS):
    """The name of the first release; its clones used the speaker's vector alone by default."""

    def generate_voice_clone(self, *args: Any, xvec_only: bool = True, **options: Any) -> Waveforms:
        return super().generate_voice_clone(*args, xvec_only=xvec_only, **options)

    def generate_voice_clone_streaming(
        self, *args: Any, xvec_only: bool = True, **options: Any
    ) -> Iterator[TimedChunk]:
        return super().generate_voice_clone_streaming(*args, xvec_only=xvec_only, **options)
