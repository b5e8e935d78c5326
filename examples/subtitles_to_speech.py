"""Speak a batch of subtitle files: every film.srt becomes a film.wav with the same timing.

    python examples/subtitles_to_speech.py film.srt another.srt
    python examples/subtitles_to_speech.py *.srt --model Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice \\
        --voice vivian

All lines of a file are spoken as one batch. A line that is longer than the time until the next line
is spoken again, up to 1.6 times as fast.
"""

import argparse
import re
from pathlib import Path

import numpy as np
import soundfile

from vivace import TTS

CUE = re.compile(r"(\S+) --> (\S+).*\n((?:.+\n?)+)")
MAX_SPEED = 1.6


def seconds(time: str) -> float:
    hours, minutes, rest = time.replace(",", ".").split(":")
    return 3600 * int(hours) + 60 * int(minutes) + float(rest)


def read_cues(path: Path) -> list[tuple[float, str]]:
    """Start times and texts, without tags and line breaks."""
    found = CUE.findall(path.read_text(encoding="utf-8-sig"))
    return [(seconds(start), " ".join(re.sub("<.*?>", "", t).split())) for start, _, t in found]


def speak(tts: TTS, cues: list[tuple[float, str]], voice: str | None) -> np.ndarray:
    audios = tts.speak([text for _, text in cues], voice=voice, seed=7)
    film = np.zeros(0, np.float32)
    for number, ((start_s, text), audio) in enumerate(zip(cues, audios, strict=True)):
        room_s = cues[number + 1][0] - start_s if number + 1 < len(cues) else audio.duration_s
        if audio.duration_s > room_s:
            speed = min(MAX_SPEED, audio.duration_s / room_s)
            audio = tts.speak(text, voice=voice, seed=7, speed=speed)
        start = max(round(start_s * tts.sample_rate), len(film))
        film = np.concatenate([film, np.zeros(start - len(film), np.float32), audio.samples])
    return film


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Speak subtitle files.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--voice")
    given = parser.parse_args()
    with TTS.load(given.model) as tts:
        for path in given.files:
            film = speak(tts, read_cues(path), given.voice)
            soundfile.write(path.with_suffix(".wav"), film, tts.sample_rate)
