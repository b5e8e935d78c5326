"""Figures of spoken samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from vivace.audio.clip import Audio
from vivace.finetune.examples import Transcript
from vivace.finetune.prepare import Clip
from vivace.finetune.speech_judge import SpeechJudge
from vivace.speech import Usage


def spoken(text: str, language: str) -> tuple[Clip, Audio]:
    """A sentence with one second of silence as its speech."""
    codes = np.zeros((12, 16), np.int64)
    transcript = Transcript(text=text, language=language)
    clip = Clip(where=text, transcript=transcript, codes=codes, seconds=1.0, sha256=text)
    audio = Audio(
        samples=np.zeros(24_000, np.float32),
        sample_rate=24_000,
        codes=codes,
        finish_reason="stop",
        usage=Usage(text_tokens=3, frames=12, audio_s=1.0, wall_s=0.1, seed=7),
    )
    return clip, audio


def test_word_errors_leave_out_languages_without_a_recogniser() -> None:
    judge = SpeechJudge(
        base=Path(),
        clips=[],
        folder=Path(),
        device="cpu",
        dtype=torch.float32,
        recognise=lambda samples, rate: "One two.",
        languages=frozenset({"english"}),
    )
    english, german = spoken("One two.", "english"), spoken("Eins zwei.", "german")
    assert judge._word_errors([english, german]) == 0
    assert judge._word_errors([german]) is None
