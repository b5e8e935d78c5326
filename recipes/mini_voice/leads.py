"""Encode leads: silence that precedes streamed examples (one minute on a CPU).

With streamed text the talker knows one or two letters when it starts. A lead of silent frames lets
it read more letters before the first word.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from recipes.mini_voice.encode import LEADS
from recipes.mini_voice.lines import load_lines
from recipes.mini_voice.more_codes import encode_waves
from recipes.mini_voice.settings import FRAME, load_settings, parser
from recipes.mini_voice.synthesize import Teacher, read_lines
from recipes.mini_voice.train_codec import build, restore


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(resume=Path("build/checkpoints"))
    args = options.parse_args()
    settings = load_settings(args.smoke, args.set)
    data, size = settings.data, settings.data.lead_frames
    trainer = build(settings).eval()
    restore(trainer, args.resume)
    lines = list(enumerate(load_lines(Path(data.lines))))
    lines = lines[data.num_dev : data.num_dev + data.num_leads]
    silence = np.zeros(size * FRAME, np.int16)
    waves = [np.concatenate((silence, wave)) for _, wave, _ in read_lines(Teacher(data), lines)]
    leads = np.stack([codes[:size] for codes in encode_waves(trainer, waves)])
    args.out.mkdir(parents=True, exist_ok=True)
    np.save(args.out / LEADS, leads)
    kinds = len(np.unique(leads[..., 0]))
    print(f"{len(leads)} leads of {size} frames, {kinds} codes of the first book")


if __name__ == "__main__":
    main()
