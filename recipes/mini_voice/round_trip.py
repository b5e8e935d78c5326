"""Encode and decode recordings with a codec in training, to hear what the codec alone loses.

    python -m recipes.mini_voice.round_trip build/recordings --resume FOLDER --out build/decoded

FOLDER has encoder.safetensors and decoder.safetensors. Recordings are {female,male}/NAME/*.wav of
`record_voices`; the results are OUT/NAME/*.wav, which `benchmarks/abx.py judge --clones` reads.
"""

from __future__ import annotations

from pathlib import Path

import soundfile
import torch
import torch.nn.functional as F

from recipes.mini_voice import train_codec
from recipes.mini_voice.common import DEVICE
from recipes.mini_voice.settings import FRAME, SAMPLE_RATE, load_settings, parser


def main() -> None:
    options = parser(__doc__)
    options.add_argument("recordings", type=Path)
    args = options.parse_args()
    trainer = train_codec.build(load_settings(args.smoke, args.set)).eval()
    train_codec.restore(trainer, args.resume)
    for path in sorted(args.recordings.glob("*/*/*.wav")):
        wave, rate = soundfile.read(path, dtype="float32")
        assert rate == SAMPLE_RATE, f"{path}: 24 kHz is needed"
        samples = F.pad(torch.from_numpy(wave), (0, -len(wave) % FRAME)).to(DEVICE)
        made = train_codec.round_trip(trainer, samples)
        out = args.out / path.parent.name / path.name
        out.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(out, made.clamp(-1, 1).cpu().numpy(), SAMPLE_RATE, "PCM_16")


if __name__ == "__main__":
    main()
