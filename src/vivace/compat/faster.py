"""The classes of faster-qwen3-tts over TTS: one text per call, whole or in chunks with timings.

Differences: sampling arguments apply to every codebook, two generators may be open at once, and
`is_final` is true for the last chunk.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vivace.compat.arguments import load_tts
from vivace.compat.chunks import TimedChunk, timed_chunks
from vivace.compat.official import Qwen3TTSModel, Waveforms
from vivace.compat.prompts import References
from vivace.compat.sampling import DEFAULT_SAMPLING, Sampling, takes_sampling
from vivace.compat.speaking import request, speak_together
from vivace.compat.tokenizer import Qwen3TTSTokenizer
from vivace.device.choice import pick_device
from vivace.script.request import Request
from vivace.tts import TTS
from vivace.voices.voice import Voice

log = logging.getLogger(__name__)

BACKENDS = ("torch", "ggml", "qwentts")


class FasterQwen3TTS:
    """The class of faster-qwen3-tts; `model` is the official class over the same weights."""

    def __init__(
        self,
        base_model: Qwen3TTSModel | TTS,
        predictor_graph: Any = None,
        talker_graph: Any = None,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        max_seq_len: int = 2048,
    ) -> None:
        self.model = Qwen3TTSModel(base_model) if isinstance(base_model, TTS) else base_model
        self.tts = self.model.tts
        self.predictor_graph, self.talker_graph = predictor_graph, talker_graph
        self.device = device or str(self.tts.device)
        self.dtype = dtype or self.tts.dtype
        self.max_seq_len = max_seq_len
        self.sample_rate = self.tts.sample_rate
        self._references = References(self.tts)

    @classmethod
    def from_pretrained(
        cls,
        model_name: str,
        device: str = "cuda",
        dtype: str | torch.dtype = torch.bfloat16,
        attn_implementation: str = "sdpa",
        max_seq_len: int = 2048,
        backend: str = "torch",
        quant: str = "BF16",
        gguf_talker_path: str | Path | None = None,
        gguf_codec_path: str | Path | None = None,
        qwentts_library_path: str | Path | None = None,
        qwentts_use_fa: bool = True,
        qwentts_clamp_fp16: bool = False,
        qwentts_ref_cache_dir: str | Path | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        qwentts_log_level: str = "warning",
    ) -> FasterQwen3TTS:
        """All three backend names load the same backend. GGUF files are rejected.

        `device` and `dtype` apply to `backend="torch"`; `ggml` picks its own, as the original does.
        Without a CUDA GPU the model runs on another device and a warning is logged.
        """
        if backend not in BACKENDS:
            raise ValueError(
                f"Unsupported backend {backend!r}. Expected 'torch', 'ggml', or 'qwentts'."
            )
        if gguf_talker_path is not None or gguf_codec_path is not None:
            raise NotImplementedError("GGUF files cannot be read; give a folder or a hub id")
        if backend != "torch":
            log.warning("backend %r: %s runs unquantized on vivace's backend", backend, model_name)
            dtype = "auto"
        if str(device).startswith("cuda") and not torch.cuda.is_available():
            log.warning("device %r: no CUDA GPU found; using %s", device, pick_device())
            device, dtype = "auto", "auto"
        tts = load_tts(
            model_name,
            device=device,
            dtype=dtype,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
        )
        return cls(tts, device=str(tts.device), dtype=tts.dtype, max_seq_len=max_seq_len)

    @property
    def speech_tokenizer(self) -> Qwen3TTSTokenizer:
        return self.model.model.speech_tokenizer

    def get_supported_speakers(self) -> list[str]:
        return self.model.get_supported_speakers()

    def get_supported_languages(self) -> list[str]:
        return self.model.get_supported_languages()

    def warmup(self, prefill_len: int = 100) -> None:
        """Generate a few frames, so that the first request is not slowed by the first launches."""
        voice = None
        if self.tts.model_type == "base":
            width = self.tts.checkpoint.config.talker_config.hidden_size
            voice = Voice(name="warm", speaker=np.zeros(width, np.float32))
        text = "a " * max(1, prefill_len // 2)
        wanted = request(text, None, voice, is_whole=True)
        speak_together(self.tts, [wanted], Sampling(max_new_tokens=4, seed=0).ours())

    def _warmup(self, prefill_len: int) -> None:
        self.warmup(prefill_len)

    @takes_sampling("min_new_tokens", "top_p")
    def generate(
        self,
        text: str,
        language: str = "English",
        sampling: Sampling = DEFAULT_SAMPLING,
    ) -> Waveforms:
        """Generate with the default voice: the first preset, or a voice that the model chooses."""
        if self.tts.model_type == "base":
            raise NotImplementedError(
                "A base checkpoint has no default voice. "
                "Use generate_voice_clone() with reference audio."
            )
        speakers = self.model.model.get_supported_speakers()
        wanted = request(text, language, next(iter(speakers), None), is_whole=True)
        return self._whole(wanted, sampling)

    @takes_sampling()
    def generate_voice_clone(
        self,
        text: str,
        language: str | None,
        ref_audio: Any = None,
        ref_text: str = "",
        sampling: Sampling = DEFAULT_SAMPLING,
        xvec_only: bool = False,
        non_streaming_mode: bool | None = None,
        append_silence: bool = True,
        instruct: str | None = None,
        ref_spk: Any = None,
        ref_rvq: Any = None,
        ref_spk_emb: Any = None,
        ref_codes: Any = None,
        voice_clone_prompt: Any = None,
    ) -> Waveforms:
        refuse_ggml(ref_spk, ref_rvq, ref_spk_emb, ref_codes)
        voice = self._references.voice(
            ref_audio, ref_text, xvec_only, append_silence, voice_clone_prompt
        )
        wanted = clone_request(text, language, voice, instruct, non_streaming_mode)
        return self._whole(wanted, sampling)

    @takes_sampling()
    def generate_custom_voice(
        self,
        text: str,
        speaker: str | None,
        language: str,
        instruct: str | None = None,
        non_streaming_mode: bool | None = None,
        sampling: Sampling = DEFAULT_SAMPLING,
    ) -> Waveforms:
        wanted = self._custom_voice(text, speaker, language, instruct, non_streaming_mode)
        return self._whole(wanted, sampling)

    @takes_sampling()
    def generate_voice_design(
        self,
        text: str,
        instruct: str | None,
        language: str,
        non_streaming_mode: bool | None = None,
        sampling: Sampling = DEFAULT_SAMPLING,
    ) -> Waveforms:
        wanted = self._voice_design(text, instruct, language, non_streaming_mode)
        return self._whole(wanted, sampling)

    @takes_sampling()
    def generate_voice_clone_streaming(
        self,
        text: str,
        language: str | None,
        ref_audio: Any = None,
        ref_text: str = "",
        sampling: Sampling = DEFAULT_SAMPLING,
        chunk_size: int = 12,
        xvec_only: bool = False,
        non_streaming_mode: bool | None = None,
        append_silence: bool = True,
        parity_mode: bool = False,
        instruct: str | None = None,
        ref_spk: Any = None,
        ref_rvq: Any = None,
        ref_spk_emb: Any = None,
        ref_codes: Any = None,
        voice_clone_prompt: Any = None,
    ) -> Iterator[TimedChunk]:
        refuse_ggml(ref_spk, ref_rvq, ref_spk_emb, ref_codes)
        voice = self._references.voice(
            ref_audio, ref_text, xvec_only, append_silence, voice_clone_prompt
        )
        wanted = clone_request(text, language, voice, instruct, non_streaming_mode)
        yield from timed_chunks(self.tts, wanted, sampling.ours(), chunk_size)

    @takes_sampling()
    def generate_custom_voice_streaming(
        self,
        text: str,
        speaker: str | None,
        language: str,
        instruct: str | None = None,
        non_streaming_mode: bool | None = None,
        sampling: Sampling = DEFAULT_SAMPLING,
        chunk_size: int = 12,
    ) -> Iterator[TimedChunk]:
        wanted = self._custom_voice(text, speaker, language, instruct, non_streaming_mode)
        yield from timed_chunks(self.tts, wanted, sampling.ours(), chunk_size)

    @takes_sampling()
    def generate_voice_design_streaming(
        self,
        text: str,
        instruct: str | None,
        language: str,
        non_streaming_mode: bool | None = None,
        sampling: Sampling = DEFAULT_SAMPLING,
        chunk_size: int = 12,
    ) -> Iterator[TimedChunk]:
        wanted = self._voice_design(text, instruct, language, non_streaming_mode)
        yield from timed_chunks(self.tts, wanted, sampling.ours(), chunk_size)

    # -- requests ---------------------------------------------------------------------

    def _custom_voice(
        self,
        text: str,
        speaker: str | None,
        language: str,
        instruct: str | None,
        non_streaming_mode: bool | None,
    ) -> Request:
        self._check("custom_voice", language, speaker)
        followed = instruct if self.model.model.config.honours_instruct else None
        is_whole = non_streaming_mode is not False
        return request(text, language, speaker, followed, is_whole=is_whole)

    def _voice_design(
        self, text: str, instruct: str | None, language: str, non_streaming_mode: bool | None
    ) -> Request:
        self._check("voice_design", language)
        is_whole = non_streaming_mode is not False
        return request(text, language, None, instruct, is_whole=is_whole)

    def _check(self, model_type: str, language: str, speaker: str | None = None) -> None:
        """Raise the errors of the original for a model, language or speaker."""
        if self.tts.model_type != model_type:
            kind = model_type.replace("_", " ")
            raise ValueError(f"Loaded model does not support {kind} generation")
        self.model._validate_languages([language])
        self.model._validate_speakers([speaker])

    def _whole(self, wanted: Request, sampling: Sampling) -> Waveforms:
        (audio,) = speak_together(self.tts, [wanted], sampling.ours())
        return [audio.samples], self.sample_rate


def clone_request(
    text: str,
    language: str | None,
    voice: Voice,
    instruct: str | None,
    non_streaming_mode: bool | None,
) -> Request:
    if instruct and not voice.is_in_context:
        log.warning("instruct is unreliable with a voice that has only a speaker vector")
    return request(text, language, voice, instruct, is_whole=non_streaming_mode or False)


def refuse_ggml(*references: Any) -> None:
    if any(reference is not None for reference in references):
        raise NotImplementedError(
            "ref_spk/ref_rvq cached qwentts.cpp references require backend='ggml'. "
            "Use voice_clone_prompt for precomputed prompts."
        )


class Qwen3TTSCudaGraphs(FasterQwen3TTS):
    """The class of qwen3-tts-cuda-graphs, as faster-qwen3-tts was first called.

    Clones use only the speaker vector by default; the methods take fewer arguments.
    """

    @takes_sampling("min_new_tokens", "top_p", "seed")
    def generate_voice_clone(
        self,
        text: str,
        language: str | None,
        ref_audio: Any = None,
        ref_text: str = "",
        sampling: Sampling = DEFAULT_SAMPLING,
        xvec_only: bool = True,
        **options: Any,
    ) -> Waveforms:
        options = {**asdict(sampling), "xvec_only": xvec_only, **options}
        return super().generate_voice_clone(text, language, ref_audio, ref_text, **options)

    @takes_sampling("min_new_tokens", "top_p", "seed")
    def generate_voice_clone_streaming(
        self,
        text: str,
        language: str | None,
        ref_audio: Any = None,
        ref_text: str = "",
        sampling: Sampling = DEFAULT_SAMPLING,
        chunk_size: int = 12,
        xvec_only: bool = True,
        **options: Any,
    ) -> Iterator[TimedChunk]:
        options = {**asdict(sampling), "xvec_only": xvec_only, **options}
        return super().generate_voice_clone_streaming(
            text, language, ref_audio, ref_text, chunk_size=chunk_size, **options
        )
