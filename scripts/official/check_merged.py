"""Check that a merged checkpoint of `vivace finetune` loads in the official package.

    .venv-official/bin/python scripts/official/check_merged.py FOLDER

Speaks one sentence with the first speaker, greedily, and compares the codes with Vivace's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cases import DEFAULT_SETTINGS
from environment import load
from recorder import Recorder

TEXT = "The rain it raineth every day."
NUM_FRAMES = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    official = load(folder)
    recorder = Recorder(official)
    speaker = next(iter(official.model.config.talker_config.spk_id))
    settings = DEFAULT_SETTINGS | {"max_new_tokens": NUM_FRAMES + 1}
    official.generate_custom_voice(
        text=[TEXT], speaker=[speaker], language=["auto"], non_streaming_mode=True, **settings
    )
    expected = recorder.codes[0].tolist()

    from vivace import TTS

    with TTS.load(folder, device="cpu", dtype="float32") as tts:
        spoken = tts.speak(
            TEXT,
            voice=speaker,
            temperature=0.0,
            predictor_temperature=0.0,
            max_frames=NUM_FRAMES,
            guard=False,
            trim=False,
        )
    found = spoken.codes.tolist()
    same = sum(one == other for one, other in zip(found, expected, strict=False))
    print(f"{folder}: speaker {speaker!r}, {same} of {len(expected)} frames are equal")
    if found != expected:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
