"""Recordings for tests: tones with pauses, which need no speech model."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SENTENCES = (
    "The rain it raineth every day.",
    "A great while ago the world begun.",
    "But that is all one, our play is done.",
    "And we will strive to please you.",
    "When that I was a little boy.",
    "A foolish thing was but a toy.",
    "By swaggering could I never thrive.",
    "With tosspots still had drunken heads.",
)


def tone(seconds: float, rate: int = 24_000, hertz: float = 220.0) -> NDArray[np.float32]:
    """A tone that rises and falls five times a second."""
    time = np.arange(round(seconds * rate)) / rate
    swell = 0.6 + 0.4 * np.sin(2 * np.pi * 5 * time)
    return (0.3 * swell * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def wav_bytes(samples: NDArray[np.float32], rate: int = 24_000) -> bytes:
    """16-bit WAV of samples [n] or [n, channels]."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return content.getvalue()


def write_ljspeech(folder: Path, num: int = 8, *, seconds: float = 1.8) -> Path:
    """A folder with wavs/ and metadata.csv."""
    (folder / "wavs").mkdir(parents=True)
    rows = []
    for number in range(num):
        text = SENTENCES[number % len(SENTENCES)]
        text = text if number < len(SENTENCES) else f"{text[:-1]} {number}."
        samples = tone(seconds + 0.05 * number, hertz=150 + 20 * number)
        (folder / "wavs" / f"{number:03d}.wav").write_bytes(wav_bytes(samples))
        rows.append(f"{number:03d}|{text}|{text}\n")
    (folder / "metadata.csv").write_text("".join(rows), encoding="utf-8")
    return folder
