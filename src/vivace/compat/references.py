"""Enrols recordings as faster-qwen3-tts does, with a cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from vivace.audio.files import read_audio
from vivace.compat.arguments import source_of
from vivace.compat.prompts import voices_of
from vivace.tts import TTS
from vivace.voices.enroll import SILENCE_S
from vivace.voices.voice import Voice

MAX_REFERENCES = 32  # kept in memory, by content


class References:
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
