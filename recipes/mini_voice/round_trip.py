"""Encode and decode recordings with a codec in training, to measure the loss of the codec alone.

    python -m recipes.mini_voice.round_trip build/recordings --resume FOLDER --out build/decoded

FOLDER has encoder.safetensors and decoder.safetensors. With `--released`, the codes are those of
codec_encoder.safetensors, and their agreement with the training encoder is shown.

Recordings are {female,male}/NAME/*.wav of `record_voices`; the results are OUT/NAME/*.wav, which
`benchmarks/abx.py judge --clones` reads.
"""

from __future__ import annotations

from pathlib import Path

import soundfile
import torch
import torch.nn.functional as F

from recipes.mini_voice import released_encoder, train_codec
from recipes.mini_voice.common import DEVICE, load_half
from recipes.mini_voice.export import CODEC_ENCODER
from recipes.mini_voice.settings import FRAME, SAMPLE_RATE, load_settings, parser
from vivace.model.conv import CausalState


@torch.no_grad()
def main() -> None:
    options = parser(__doc__)
    options.add_argument("recordings", type=Path)
    options.add_argument("--released", action="store_true", help="use the released encoder")
    args = options.parse_args()
    settings = load_settings(args.smoke, args.set)
    trainer = train_codec.build(settings).eval()
    train_codec.restore(trainer, args.resume)
    encoder = released_encoder.build(settings, trainer).eval() if args.released else None
    if encoder is not None:
        load_half(args.resume / CODEC_ENCODER, encoder)
    same = []
    for path in sorted(args.recordings.glob("*/*/*.wav")):
        wave, rate = soundfile.read(path, dtype="float32")
        assert rate == SAMPLE_RATE, f"{path}: 24 kHz is needed"
        samples = F.pad(torch.from_numpy(wave), (0, -len(wave) % FRAME)).to(DEVICE)
        codes = trainer.encode(samples[None])
        if encoder is not None:
            released = encoder(samples, codes.shape[-1], settings.codec_encoder.delay)[None]
            same.append((released == codes)[0].float())
            codes = released
        made = trainer.decoder(codes, CausalState())[0].float()
        out = args.out / path.parent.name / path.name
        out.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(out, made.clamp(-1, 1).cpu().numpy(), SAMPLE_RATE, "PCM_16")
    if same:
        shares = [f"{100 * share:.1f}" for share in torch.cat(same).mean(0).tolist()]
        print(f"equal codes in each codebook, %: {', '.join(shares)}")


if __name__ == "__main__":
    main()
