"""The official package's class over TTS: the same methods, arguments, defaults and errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vivace.compat.arguments import (
    check_sizes,
    listed,
    load_tts,
    merge_defaults,
    official_loading,
    source_of,
    spread,
    to_sampling,
)
from vivace.compat.loaded import LoadedModel, Processor
from vivace.compat.prompts import VoiceClonePromptItem, item_of, prompt_dict, voices_of
from vivace.compat.speaking import request, speak_together
from vivace.speech import AUTO_LANGUAGE, language_name
from vivace.tts import TTS

Waveforms = tuple[list[NDArray[np.float32]], int]


class Qwen3TTSModel:
    """The official wrapper: lists in, lists of waveforms out."""

    def __init__(
        self,
        model: LoadedModel | TTS,
        processor: Any = None,
        generate_defaults: dict[str, Any] | None = None,
    ) -> None:
        self.model = LoadedModel(model) if isinstance(model, TTS) else model
        self.tts, self.device = self.model.tts, self.model.device
        self.processor = processor or Processor(self.tts.tokenizer)
        settled = self.model.generate_config if generate_defaults is None else generate_defaults
        self.generate_defaults: dict[str, Any] = settled

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, **kwargs: Any
    ) -> Qwen3TTSModel:
        """Uses `device_map` and `dtype`; the backend chooses the attention implementation."""
        return cls(load_tts(pretrained_model_name_or_path, **official_loading(kwargs)))

    def get_supported_speakers(self) -> list[str]:
        """Sorted names in lower case."""
        return sorted({name.lower() for name in self.model.get_supported_speakers()})

    def get_supported_languages(self) -> list[str]:
        """Sorted names in lower case, with `auto` and without dialects."""
        return sorted({name.lower() for name in self.model.get_supported_languages()})

    def create_voice_clone_prompt(
        self,
        ref_audio: Any,
        ref_text: str | Sequence[str | None] | None = None,
        x_vector_only_mode: bool | Sequence[bool] = False,
    ) -> list[VoiceClonePromptItem]:
        self._require("base", "create_voice_clone_prompt")
        audios = listed(ref_audio)
        texts = ref_text if isinstance(ref_text, list) else [ref_text] * len(audios)
        is_list = isinstance(x_vector_only_mode, list)
        flags: Any = x_vector_only_mode if is_list else [x_vector_only_mode] * len(audios)
        check_sizes(ref_audio=audios, ref_text=texts, x_vector_only_mode=flags)
        for index, (text, is_vector) in enumerate(zip(texts, flags, strict=True)):
            if not is_vector and not text:
                raise ValueError(
                    "ref_text is required when x_vector_only_mode=False (ICL mode). "
                    f"Bad index={index}"
                )
        voices = [
            self.tts.clone(source_of(audio), None if is_vector else text, append_silence=False)
            for audio, text, is_vector in zip(audios, texts, flags, strict=True)
        ]
        return list(map(item_of, voices, texts))

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
        columns = self._columns(text, language)  # raises before a recording is enrolled
        if voice_clone_prompt is None:
            if ref_audio is None:
                raise ValueError("Either `voice_clone_prompt` or `ref_audio` must be provided.")
            voice_clone_prompt = self.create_voice_clone_prompt(
                ref_audio, ref_text, x_vector_only_mode
            )
        voices = spread(voices_of(voice_clone_prompt, ref_text), len(columns["text"]))
        check_sizes(prompt=voices, text=columns["text"])
        return self._speak({**columns, "voice": voices}, non_streaming_mode, kwargs)

    def generate_voice_design(
        self,
        text: str | Sequence[str],
        instruct: str | Sequence[str],
        language: str | Sequence[str] | None = None,
        non_streaming_mode: bool = True,
        **kwargs: Any,
    ) -> Waveforms:
        self._require("voice_design", "generate_voice_design")
        columns = self._columns(text, language, instruct=instruct)
        return self._speak(columns, non_streaming_mode, kwargs)

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
        followed = instruct if self.model.config.honours_instruct else None
        columns = self._columns(text, language, speaker=speaker, instruct=followed)
        columns["voice"] = columns.pop("speaker")
        self._validate_speakers(columns["voice"])
        return self._speak(columns, non_streaming_mode, kwargs)

    # -- private names that other programs call --------------------------------------------------

    def _validate_languages(self, languages: Sequence[str | None]) -> None:
        """Raise the official error for unknown names. Codes such as `en-US` are accepted."""
        known = self.get_supported_languages()
        if bad := [name for name in languages if not name or language_name(str(name)) not in known]:
            raise ValueError(f"Unsupported languages: {bad}. Supported: {known}")

    def _validate_speakers(self, speakers: Sequence[str | None]) -> None:
        known = self.get_supported_speakers()
        if bad := [name for name in speakers if name and str(name).lower() not in known]:
            raise ValueError(f"Unsupported speakers: {bad}. Supported: {known}")

    def _merge_generate_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        return merge_defaults(self.generate_defaults, kwargs)

    def _prompt_items_to_voice_clone_prompt(
        self, items: list[VoiceClonePromptItem]
    ) -> dict[str, Any]:
        return prompt_dict(items)

    def _build_assistant_text(self, text: str) -> str:
        return f"{self._build_ref_text(text)}<|im_start|>assistant\n"

    def _build_ref_text(self, text: str) -> str:
        return f"<|im_start|>assistant\n{text}<|im_end|>\n"

    def _build_instruct_text(self, instruct: str) -> str:
        return f"<|im_start|>user\n{instruct}<|im_end|>\n"

    def _tokenize_texts(self, texts: Sequence[str]) -> list[torch.Tensor]:
        encoded = (self.processor(text=text, return_tensors="pt", padding=True) for text in texts)
        return [features["input_ids"].to(self.device) for features in encoded]

    # -- calls of TTS -----------------------------------------------------------------

    def _require(self, model_type: str, method: str) -> None:
        model = self.model
        if model.tts_model_type != model_type:
            raise ValueError(
                f"model with \ntokenizer_type: {model.tokenizer_type}\n"
                f"tts_model_size: {model.tts_model_size}\n"
                f"tts_model_type: {model.tts_model_type}\n"
                f"does not support {method}, Please check Model Card or Readme for more details."
            )

    def _columns(self, text: Any, language: Any, **others: Any) -> dict[str, list[Any]]:
        """Lists of equal length, one entry for each text. Raises the official errors."""
        given = {"language": AUTO_LANGUAGE if language is None else language, **others}
        texts = listed(text)
        columns = {name: spread(value, len(texts)) for name, value in given.items()}
        check_sizes(text=texts, **columns)
        self._validate_languages(columns["language"])
        return {"text": texts, **columns}

    def _speak(
        self, columns: dict[str, list[Any]], non_streaming_mode: bool, options: dict[str, Any]
    ) -> Waveforms:
        # The last sampled token never becomes a frame. Without a limit, the checkpoint's applies.
        limit = options.get("max_new_tokens")
        sampling = to_sampling(
            self._merge_generate_kwargs(**options), None if limit is None else limit - 1
        )
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        requests = [request(**row, is_whole=non_streaming_mode) for row in rows]
        audios = speak_together(self.tts, requests, sampling)
        return [audio.samples for audio in audios], self.tts.sample_rate
