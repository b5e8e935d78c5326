"""Compare merged checkpoints of `vivace finetune` in the official package and in Vivace.

    .venv-official/bin/python scripts/official/check_merged.py FOLDER...
    .venv-official/bin/python scripts/official/check_merged.py --checkpoints tiny

Speaks sentences greedily with the first speaker of each folder and compares all codes. With
`--checkpoints`, each checkpoint of that folder is fine-tuned first, as LoRA and with `--full`, on
synthetic recordings, and both merged results are compared.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from cases import DEFAULT_SETTINGS
from environment import load
from recorder import MIN_MARGIN, Recorder
from waves import synthetic_wave

from vivace import TTS
from vivace.audio.encode import to_pcm
from vivace.audio.wav import wav_header
from vivace.finetune.options import DataOptions, TrainOptions
from vivace.finetune.request import FinetuneRequest
from vivace.finetune.run import finetune

TEXTS = ("The rain it raineth every day.", "Hello, world!", "One, two, three. Who is there?")
INSTRUCT = "A calm low voice."
NUM_FRAMES = 24
EPOCHS, LEARNING_RATE = 2, 2e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="*", help="merged checkpoints")
    parser.add_argument("--checkpoints", type=Path, help="folder of bases to fine-tune first")
    arguments = parser.parse_args()
    folders: list[Path] = arguments.folders
    with tempfile.TemporaryDirectory() as place:
        if arguments.checkpoints is not None:
            folders += merge_all(arguments.checkpoints, Path(place))
        if not folders:
            parser.error("give merged checkpoints, or --checkpoints")
        are_equal = [check(folder) for folder in folders]
    raise SystemExit(0 if all(are_equal) else 1)


def merge_all(bases: Path, place: Path) -> list[Path]:
    """Fine-tune each checkpoint of `bases` twice; return the merged folders."""
    merged = []
    for base in sorted(path.parent for path in bases.glob("*/config.json")):
        data = place / f"{base.name}-data"
        write_recordings(data, INSTRUCT if is_design(base) else None)
        for full in (False, True):
            merged.append(place / f"{base.name}-{'full' if full else 'lora'}")
            request = FinetuneRequest(
                data=data,
                output=merged[-1],
                model=str(base),
                name=None if is_design(base) else "me",
                recordings=DataOptions(language="english", check_transcripts=False),
                training=TrainOptions(epochs=EPOCHS, learning_rate=LEARNING_RATE, full=full),
                device="cpu",
                samples=0,
            )
            finetune(request, Silent())
    return merged


def write_recordings(folder: Path, instruct: str | None) -> None:
    folder.mkdir()
    rows = []
    for number in range(8):
        pcm = to_pcm(synthetic_wave(1.8 + 0.1 * number)).astype("<i2").tobytes()
        folder.joinpath(f"{number}.wav").write_bytes(wav_header(24_000, len(pcm)) + pcm)
        text = f"{TEXTS[number % len(TEXTS)]} {number}."
        rows.append(json.dumps({"audio": f"{number}.wav", "text": text, "instruct": instruct}))
    folder.joinpath("metadata.jsonl").write_text("\n".join(rows), "utf-8")


def is_design(folder: Path) -> bool:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return bool(config["tts_model_type"] == "voice_design")


def check(folder: Path) -> bool:
    """Print how many frames are equal; return whether all are."""
    official = load(folder)
    recorder = Recorder(official)
    names = list(official.model.config.talker_config.spk_id)
    speaker = None if is_design(folder) else names[0]
    are_equal = True
    with TTS.load(folder, device="cpu", dtype="float32") as tts:
        for text in TEXTS:
            expected = speak_official(official, recorder, text, speaker)
            found = speak(tts, text, speaker)
            same = sum(one == other for one, other in zip(found, expected, strict=False))
            margin = recorder.margin(0)
            note = f", narrowest choice {margin:.1e}" if margin < MIN_MARGIN else ""
            print(f"{folder.name}: {speaker}: {same} of {len(expected)} frames are equal{note}")
            are_equal = are_equal and found == expected
    return are_equal


def speak_official(tts: Any, recorder: Recorder, text: str, speaker: str | None) -> Any:
    settings = DEFAULT_SETTINGS | {"max_new_tokens": NUM_FRAMES + 1, "non_streaming_mode": True}
    if speaker is None:
        tts.generate_voice_design(text=[text], instruct=[INSTRUCT], language=["auto"], **settings)
    else:
        tts.generate_custom_voice(text=[text], speaker=[speaker], language=["auto"], **settings)
    return recorder.codes[0].tolist()


def speak(tts: TTS, text: str, speaker: str | None) -> Any:
    spoken = tts.speak(
        text,
        voice=speaker,
        instruct=INSTRUCT if speaker is None else None,
        guard=False,
        trim=False,
        split=False,
        temperature=0.0,
        predictor_temperature=0.0,
        max_frames=NUM_FRAMES,
    )
    return spoken.codes.tolist()


class Silent:
    """A reporter of `finetune` that prints nothing."""

    def progress(self, stage: str, done: int, total: int) -> None: ...

    def step(self, epoch: int, loss: float, share: float, left_s: float) -> None: ...

    def epoch(self, judgement: object, is_best: bool) -> None: ...

    def note(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...


if __name__ == "__main__":
    main()
