"""The official package's class over TTS: the same methods, arguments, defaults and errors."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vivace.prompt import AUTO, TextLayout
from vivace.tts import TTS
from vivace.voices.voice import Voice

Waveforms = tuple[list[NDArray[np.float32]], int]

SAMPLING_NAMES = {
    "top_k": "top_k",
    "top_p": "top_p",
    "temperature": "temperature",
    "repetition_penalty": "repetition_penalty",
    "subtalker_top_k": "predictor_top_k",
    "subtalker_top_p": "predictor_top_p",
    "subtalker_temperature": "predictor_temperature",
    "seed": "seed",
}
LONG_BASE64 = 256  # a string longer than this, without path separators, is taken for base64


@dataclass
class VoiceClonePromptItem:
    """A reference, taken in: what `create_voice_clone_prompt` makes."""

    ref_code: torch.Tensor | None  # [T, codebooks]
    ref_spk_embedding: torch.Tensor  # [D]
    x_vector_only_mode: bool
    icl_mode: bool
    ref_text: str | None = None


class Qwen3TTSModel:
    """The official wrapper: lists in, lists of waveforms out."""

    def __init__(self, tts: TTS) -> None:
        self.tts = tts
        config = tts.checkpoint.config
        self.model = SimpleNamespace(
            tts_model_type=config.tts_model_type,
            tts_model_size=config.tts_model_size,
            tokenizer_type=config.tokenizer_type,
            get_supported_speakers=self.get_supported_speakers,
            get_supported_languages=self.get_supported_languages,
        )

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, **kwargs: Any
    ) -> Qwen3TTSModel:
        """`device_map` and `dtype` are honoured; how attention runs is the backend's choice."""
        dtype = kwargs.get("dtype", kwargs.get("torch_dtype", "float32"))
        device = kwargs.get("device_map", kwargs.get("device", "auto"))
        return cls(load_tts(pretrained_model_name_or_path, device, dtype, kwargs))

    @property
    def device(self) -> torch.device:
        return self.tts.device

    def get_supported_speakers(self) -> list[str]:
        return self.tts.speakers

    def get_supported_languages(self) -> list[str]:
        """Sorted, with `auto` and without dialects."""
        return sorted(name for name in self.tts.languages if not name.endswith("_dialect"))

    def create_voice_clone_prompt(
        self,
        ref_audio: Any,
        ref_text: str | Sequence[str | None] | None = None,
        x_vector_only_mode: bool | Sequence[bool] = False,
    ) -> list[VoiceClonePromptItem]:
        self._require("base", "create_voice_clone_prompt")
        audios = _listed(ref_audio)
        texts, flags = _spread(ref_text, len(audios)), _spread(x_vector_only_mode, len(audios))
        if len(texts) != len(audios) or len(flags) != len(audios):
            raise ValueError(
                f"Batch size mismatch: ref_audio={len(audios)}, ref_text={len(texts)}, "
                f"x_vector_only_mode={len(flags)}"
            )
        for index, (text, is_vector) in enumerate(zip(texts, flags, strict=True)):
            if not is_vector and not text:
                raise ValueError(
                    "ref_text is required when x_vector_only_mode=False (ICL mode). "
                    f"Bad index={index}"
                )
        return [
            self._enroll(audio, None if is_vector else text)
            for audio, text, is_vector in zip(audios, texts, flags, strict=True)
        ]

    def generate_voice_clone(
        self,
        text: str | Sequence[str],
        language: str | Sequence[str] | None = None,
        ref_audio: Any = None,
        ref_text: str | Sequence[str | None] | None = None,
        x_vector_only_mode: bool | Sequence[bool] = False,
        voice_clone_prompt: Any = None,
        non_streaming_mode: bool = False,
        **kwargs: Any,
    ) -> Waveforms:
        self._require("base", "generate_voice_clone")
        if voice_clone_prompt is None:
            if ref_audio is None:
                raise ValueError("Either `voice_clone_prompt` or `ref_audio` must be provided.")
            voice_clone_prompt = self.create_voice_clone_prompt(
                ref_audio, ref_text, x_vector_only_mode
            )
        voices = [voice_of(item) for item in prompt_items(voice_clone_prompt)]
        texts = _listed(text)
        if len(voices) == 1:
            voices *= len(texts)
        if len(voices) != len(texts):
            raise ValueError(f"Batch size mismatch: prompt={len(voices)}, text={len(texts)}")
        return self._speak(texts, language, voices, None, non_streaming_mode, kwargs)

    def generate_voice_design(
        self,
        text: str | Sequence[str],
        instruct: str | Sequence[str],
        language: str | Sequence[str] | None = None,
        non_streaming_mode: bool = True,
        **kwargs: Any,
    ) -> Waveforms:
        self._require("voice_design", "generate_voice_design")
        texts = _listed(text)
        return self._speak(texts, language, None, instruct, non_streaming_mode, kwargs)

    def generate_custom_voice(
        self,
        text: str | Sequence[str],
        speaker: str | Sequence[str],
        language: str | Sequence[str] | None = None,
        instruct: str | Sequence[str | None] | None = None,
        non_streaming_mode: bool = True,
        **kwargs: Any,
    ) -> Waveforms:
        self._require("custom_voice", "generate_custom_voice")
        texts = _listed(text)
        speakers = _spread(speaker, len(texts))
        known = self.get_supported_speakers()
        if unknown := sorted({s for s in speakers if s and s.lower() not in known}):
            raise ValueError(f"Unsupported speakers: {unknown}. Supported: {known}")
        return self._speak(texts, language, speakers, instruct, non_streaming_mode, kwargs)

    # -- in the words of TTS -----------------------------------------------------------------

    def _require(self, model_type: str, method: str) -> None:
        config = self.tts.checkpoint.config
        if config.tts_model_type != model_type:
            raise ValueError(
                f"model with \ntokenizer_type: {config.tokenizer_type}\n"
                f"tts_model_size: {config.tts_model_size}\n"
                f"tts_model_type: {config.tts_model_type}\n"
                f"does not support {method}, Please check Model Card or Readme for more details."
            )

    def _enroll(self, audio: Any, transcript: str | None, **options: Any) -> VoiceClonePromptItem:
        voice = self.tts.clone(source_of(audio), transcript, append_silence=False, **options)
        return _prompt_item(voice)

    def _languages(self, language: str | Sequence[str] | None, count: int) -> list[str]:
        languages = [name or AUTO for name in _spread(language, count)]
        known = self.get_supported_languages()
        if unknown := sorted({name for name in languages if name.lower() not in known}):
            raise ValueError(f"Unsupported languages: {unknown}. Supported: {known}")
        return languages

    def _instructs(self, instruct: Any, count: int) -> list[str | None]:
        """Blank instructions are none, and a checkpoint that does not follow them gets none."""
        if not self.tts.checkpoint.config.honours_instruct:
            return [None] * count
        return [text or None for text in _spread(instruct, count)]

    def _speak(
        self,
        texts: list[str],
        language: str | Sequence[str] | None,
        voices: Sequence[str | Voice | None] | None,
        instruct: Any,
        non_streaming_mode: bool,
        options: dict[str, Any],
    ) -> Waveforms:
        languages = self._languages(language, len(texts))
        instructs = self._instructs(instruct, len(texts))
        speakers = voices or [None] * len(texts)
        sizes = {
            "text": len(texts),
            "language": len(languages),
            "speaker": len(speakers),
            "instruct": len(instructs),
        }
        if len(set(sizes.values())) > 1:
            found = ", ".join(f"{name}={size}" for name, size in sizes.items())
            raise ValueError(f"Batch size mismatch: {found}")
        audios = [
            self.tts.speak(
                text,
                voice=voice or None,
                language=name,
                instruct=how,
                text_layout=layout_of(non_streaming_mode),
                trim=False,
                **official_sampling(options),
            )
            for text, name, voice, how in zip(texts, languages, speakers, instructs, strict=True)
        ]
        return [audio.samples for audio in audios], self.tts.sample_rate


def load_tts(name: str | Path, device: Any, dtype: Any, hub: dict[str, Any]) -> TTS:
    """A TTS from the words of `from_pretrained`."""
    return TTS.load(
        name,
        device=str(device),
        dtype="auto" if dtype is None else dtype,
        revision=hub.get("revision"),
        cache_dir=hub.get("cache_dir"),
        offline=bool(hub.get("local_files_only", False)),
    )


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _spread(value: Any, count: int) -> list[Any]:
    """One value for all, or a list as it is."""
    values = _listed(value)
    return values * count if len(values) == 1 else values


def layout_of(non_streaming_mode: bool) -> TextLayout:
    return "whole" if non_streaming_mode else "streamed"


def source_of(audio: Any) -> Any:
    """Bare base64, as the official code takes it; everything else is read_audio's to judge."""
    if isinstance(audio, str) and len(audio) > LONG_BASE64 and not {"/", "\\"} & set(audio):
        try:
            return base64.b64decode(audio, validate=True)
        except binascii.Error:
            return audio
    if isinstance(audio, np.ndarray):
        raise ValueError("For numpy waveform input, pass a tuple (audio, sr).")
    return audio


def _prompt_item(voice: Voice) -> VoiceClonePromptItem:
    codes = None if voice.ref_codes is None else torch.from_numpy(voice.ref_codes)
    return VoiceClonePromptItem(
        ref_code=codes,
        ref_spk_embedding=torch.from_numpy(voice.speaker),
        x_vector_only_mode=codes is None,
        icl_mode=codes is not None,
        ref_text=voice.ref_text,
    )


def prompt_items(prompt: Any) -> list[VoiceClonePromptItem]:
    """Items, a list of them, or the official dict of lists."""
    if isinstance(prompt, dict):
        names = ("ref_code", "ref_spk_embedding", "x_vector_only_mode", "icl_mode", "ref_text")
        count = len(prompt["ref_spk_embedding"])
        columns = [prompt.get(name) or [None] * count for name in names]
        return [
            VoiceClonePromptItem(code, vector, bool(is_vector), bool(is_icl), text)
            for code, vector, is_vector, is_icl, text in zip(*columns, strict=True)
        ]
    return _listed(prompt)


def voice_of(item: VoiceClonePromptItem) -> Voice:
    is_icl = item.icl_mode and item.ref_code is not None
    codes = item.ref_code.cpu().numpy().astype(np.int64) if is_icl else None  # type: ignore[union-attr]
    if is_icl and not item.ref_text:
        raise ValueError("ref_text is required when x_vector_only_mode=False (ICL mode).")
    return Voice(
        name="cloned",
        speaker=item.ref_spk_embedding.float().cpu().numpy(),
        ref_codes=codes,
        ref_text=item.ref_text if is_icl else None,
    )


def official_sampling(options: dict[str, Any]) -> dict[str, Any]:
    """The official names in ours; None leaves the checkpoint's default, others are ignored."""
    given = {name: value for name, value in options.items() if value is not None}
    ours = {SAMPLING_NAMES[name]: given[name] for name in SAMPLING_NAMES if name in given}
    if given.get("do_sample") is False:
        ours["temperature"] = 0.0
        ours.setdefault("predictor_temperature", given.get("subtalker_temperature", 0.9))
    if given.get("subtalker_dosample") is False:
        ours["predictor_temperature"] = 0.0
    if "max_new_tokens" in given:
        ours["max_frames"] = max(1, given["max_new_tokens"] - 1)
    if "min_new_tokens" in given:
        ours["min_frames"] = min(given["min_new_tokens"], ours.get("max_frames", 2**31))
    return ours
