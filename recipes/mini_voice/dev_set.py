"""Write dev sentences for `benchmarks/quality.py collect`: through the codec, and end to end.

python -m recipes.mini_voice.dev_set --resume FOLDER --out FOLDER --first 24 --count 96
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recipes.mini_voice import encode, talker_files
from recipes.mini_voice.common import DEVICE, load_half
from recipes.mini_voice.lines import SPEAKER, load_lines
from recipes.mini_voice.settings import decoder_config, load_settings, parser
from recipes.mini_voice.speak import speak
from vivace.model.codec_decoder import CodecDecoder
from vivace.model.conv import CausalState
from vivace.text.tokenizer import TextTokenizer


def to_int16(decoder: CodecDecoder, codes: Tensor) -> np.ndarray:
    samples = decoder(codes[None].long().to(DEVICE), CausalState())[0]
    return (samples * 32767).round().to(torch.int16).cpu().numpy()


@torch.no_grad()
def main() -> None:
    options = parser(__doc__)
    options.add_argument("--first", type=int, default=24, help="first dev utterance with codes")
    options.add_argument("--count", type=int, default=96)
    options.add_argument("--talker", type=Path, help="talker folder; without it only the codec")
    args = options.parse_args()
    settings = load_settings(args.smoke, args.set)
    decoder = CodecDecoder(decoder_config(settings)).to(DEVICE)
    load_half(args.resume / "decoder.safetensors", decoder)
    codes = encode.read(Path(settings.train_gan.codes))
    known = codes.by_line()
    chosen = codes.lines[: codes.num_dev][args.first : args.first + args.count].tolist()
    arrays: dict[str, Any] = {
        f"made_{line}": to_int16(decoder, torch.from_numpy(known[line])) for line in chosen
    }
    if args.talker is not None:
        lines = load_lines(Path(settings.data.lines))
        tokenizer = TextTokenizer.from_folder(Path(settings.tokenizer.folder))
        talker = talker_files.build(settings, tokenizer)
        talker_files.load(talker, args.talker)
        torch.manual_seed(1)
        spoken = speak(
            talker, tokenizer, [(i // SPEAKER, lines[i % SPEAKER]) for i in chosen],
            is_streaming=False,
            temperature=settings.train_talker.temperature, top_k=settings.train_talker.top_k,
        )  # fmt: skip
        for line, found in zip(chosen, spoken, strict=True):
            if len(found):
                arrays[f"whole_{line}"] = to_int16(decoder, found)
    args.out.mkdir(parents=True, exist_ok=True)
    np.savez(args.out / "dev_set.npz", **arrays)


if __name__ == "__main__":
    main()
