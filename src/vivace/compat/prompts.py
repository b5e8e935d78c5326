"""Voices of the compatible classes: prompts in the official forms, and enrolled recordings.

A prompt is an item, a list of items, or a dict of lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vivace.audio.files import read_audio
from vivace.compat.arguments import source_of
from vivace.tts import TTS
from vivace.voices.enroll import SILENCE_S
from vivace.voices.voice import Voice

MODES = ("x_vector_only_mode", "icl_mode")
MAX_REFERENCES = 32  # kept in memory, by content
LISTS = ("ref_spk_embedding", "ref_code", *MODES)


@dataclass
class VoiceClonePromptItem:
    """An enrolled reference: the result of `create_voice_clone_prompt`."""

    ref_code: torch.Tensor | None  # [T, codebooks]
    ref_spk_embedding: torch.Tensor  # [D]
    x_vector_only_mode: bool
    icl_mode: bool
    ref_text: str | None = None


def item_of(voice: Voice, ref_text: str | None) -> VoiceClonePromptItem:
    codes = None if voice.ref_codes is None else torch.from_numpy(voice.ref_codes)
    return VoiceClonePromptItem(
        ref_code=codes,
        ref_spk_embedding=torch.from_numpy(voice.speaker),
        x_vector_only_mode=codes is None,
        icl_mode=codes is not None,
        ref_text=ref_text,
    )


def voices_of(prompt: Any, ref_text: Any = None) -> list[Voice]:
    """The voices of a prompt. `ref_text` is the transcript of references without one."""
    if isinstance(prompt, dict):
        items = _items_of(prompt)
    else:
        items = list(prompt) if isinstance(prompt, list) else [prompt]
    texts = ref_text if isinstance(ref_text, list) else [ref_text] * len(items)
    if len(texts) != len(items):
        raise ValueError(f"Batch size mismatch: prompt={len(items)}, ref_text={len(texts)}")
    return [_voice_of(item, text) for item, text in zip(items, texts, strict=True)]


def prompt_dict(items: list[VoiceClonePromptItem]) -> dict[str, Any]:
    """The official dict of lists."""
    return {name: [getattr(item, name) for item in items] for name in LISTS}


def _voice_of(item: VoiceClonePromptItem, ref_text: str | None) -> Voice:
    vector = item.ref_spk_embedding.float().cpu().numpy().reshape(-1)
    if not item.icl_mode:
        return Voice(name="cloned", speaker=vector)
    text = item.ref_text or ref_text
    if not text:
        raise ValueError("ref_text is required when voice_clone_prompt uses ICL mode.")
    if item.ref_code is None:
        raise ValueError("voice_clone_prompt: ref_code is required in ICL mode")
    codes = item.ref_code.cpu().numpy().astype(np.int64)
    return Voice(name="cloned", speaker=vector, ref_codes=codes, ref_text=text)


def _items_of(prompt: dict[str, Any]) -> list[VoiceClonePromptItem]:
    if prompt.get("ref_spk_embedding") is None:
        raise ValueError("voice_clone_prompt missing required keys: ['ref_spk_embedding']")
    count = len(prompt["ref_spk_embedding"])
    for name in LISTS:
        value = prompt.get(name)
        if value is not None and (not isinstance(value, list) or len(value) != count):
            raise ValueError(f"voice_clone_prompt[{name!r}] must be a list with length {count}")
    codes = prompt.get("ref_code") or [None] * count
    texts = prompt.get("ref_text") or [None] * count
    modes = [_modes_of(prompt, index, codes[index] is not None) for index in range(count)]
    return [
        VoiceClonePromptItem(code, vector, not is_icl, is_icl, text)
        for code, vector, is_icl, text in zip(
            codes, prompt["ref_spk_embedding"], modes, texts, strict=True
        )
    ]


def _modes_of(prompt: dict[str, Any], index: int, has_code: bool) -> bool:
    """Whether each entry is used in context: decided by its flags, or by the presence of codes."""
    is_vector, is_icl = ((prompt.get(name) or {}) for name in MODES)
    flags = [None if not flag else bool(flag[index]) for flag in (is_vector, is_icl)]
    if None not in flags and flags[0] == flags[1]:
        raise ValueError(
            f"voice_clone_prompt has inconsistent mode flags at index {index}: "
            "x_vector_only_mode and icl_mode must be opposites"
        )
    if flags[1] is not None:
        return bool(flags[1])
    return has_code if flags[0] is None else not flags[0]


class References:
    """Recordings that were enrolled as faster-qwen3-tts does it."""

    def __init__(self, tts: TTS) -> None:
        self._tts = tts
        self._voices: dict[tuple[str, str | None, bool], Voice] = {}

    def voice(
        self, ref_audio: Any, ref_text: str, xvec_only: bool, append_silence: bool, prompt: Any
    ) -> Voice:
        """The voice of a prompt item or of a recording. Equal recordings are enrolled once."""
        if prompt is not None:
            voices = voices_of(prompt, ref_text)
            if len(voices) != 1:
                raise ValueError(f"voice_clone_prompt must have length 1, got {len(voices)}")
            return voices[0]
        if ref_audio is None:
            raise ValueError("ref_audio is required when voice_clone_prompt is not provided")
        if not xvec_only and not ref_text:
            raise ValueError("ref_text is required when xvec_only=False (ICL mode).")
        recording = read_audio(source_of(ref_audio), sandbox=self._tts.loaded.sandbox)
        is_padded = append_silence and not xvec_only
        key = (recording.sha256, None if xvec_only else ref_text, is_padded)
        if key not in self._voices:
            while len(self._voices) >= MAX_REFERENCES:
                self._voices.pop(next(iter(self._voices)))
            # The speaker vector includes the appended silence, unlike in `TTS.clone`.
            silence = np.zeros(int(SILENCE_S * recording.sample_rate * is_padded), np.float32)
            audio = (np.concatenate((recording.samples, silence)), recording.sample_rate)
            self._voices[key] = self._tts.clone(audio, key[1], append_silence=False)
        return self._voices[key]
