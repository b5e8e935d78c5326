"""Write an input folder of `train_many.sh` whose teachers make tones, to check a GPU machine.

    python -m recipes.mini_voice.synthetic_inputs --out FOLDER [--smoke]

All files are generated: teachers, speaker network, lines, and untrained weights of the sizes in the
settings. The codec has the six codebooks of the shipped voice, so that `train_many.sh` adds two.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from safetensors.numpy import save_file

from recipes.mini_voice import talker_files, train_codec
from recipes.mini_voice.common import save_half
from recipes.mini_voice.discriminators import Discriminators
from recipes.mini_voice.eres2net import MODELS, PACKED, build
from recipes.mini_voice.listener import Listener
from recipes.mini_voice.settings import load_settings, parser
from recipes.mini_voice.voices import pack
from vivace.text.tokenizer import TextTokenizer

HIBARI = """
import numpy as np


class dsp:
    synth = staticmethod(lambda wave, rng: wave + rng.normal(0, 1e-3, len(wave)))


class Session:
    def run(self, _, feed):
        ids = feed["ids"][0]
        tones = np.repeat(0.002 * ids, 2 * 600)
        return [0.2 * np.sin(np.cumsum(tones))[None], np.full((1, len(ids)), 2)]


class Hibari:
    def __init__(self, model, threads):
        self.sess = Session()

    def phonemize(self, text):
        return [text]

    def ids(self, phonemes):
        return [ord(letter) % 170 + 1 for letter in phonemes]
"""
ERES2NET = """
import torch


class ERes2Net(torch.nn.Module):
    def __init__(self, feat_dim, embedding_size):
        super().__init__()
        self.mix = torch.nn.Conv1d(feat_dim, embedding_size, 5, padding=2)

    def forward(self, x):
        return torch.relu(self.mix(x.transpose(1, 2))).mean(-1)
"""
UNITS = 2  # durations of every phoneme in the fake Kokoro
WORDS = ("river", "seven", "yellow", "machine", "under", "bread", "window", "slowly", "and", "the")
NAMES = ("af_ann", "af_eve", "am_max", "bf_amy", "bm_ian", "bm_tom")


def write_teachers(out: Path) -> None:
    (out / "hibari" / "hibari" / "assets").mkdir(parents=True)
    (out / "hibari" / "hibari" / "__init__.py").write_text(HIBARI)
    kokoro = out / "kokoro"
    kokoro.mkdir()
    rng = np.random.default_rng(1)
    for name in (*NAMES, "michael"):
        rng.normal(0, 0.1, (510, 256)).astype(np.float32).tofile(kokoro / f"{name}.bin")
    pack(kokoro, kokoro / "voices.npz")
    write_kokoro(kokoro / "kokoro_durations.safetensors")


def write_kokoro(path: Path) -> None:
    """A graph in the format of `convert_graph`: a tone and two units for every phoneme."""
    nodes = [
        ("Cast", ["tokens"], ["numbers"], {"to": 1}),
        ("Mul", ["numbers", "zero"], ["nothing"], {}),
        ("Add", ["nothing", "units"], ["durations"], {}),
        ("Unsqueeze", ["numbers"], ["column"], {"axes": [2]}),
        ("Mul", ["column", "steps"], ["angles"], {}),
        ("Reshape", ["angles"], ["flat"], {"shape": [1, -1]}),
        ("CumSum", ["flat"], ["phases"], {"axis": 1}),
        ("Sin", ["phases"], ["tones"], {}),
        ("Mul", ["tones", "level"], ["wave"], {}),
    ]
    described = {
        "tensors": ["steps"], "numbers": {"zero": 0.0, "units": float(UNITS), "level": 0.3},
        "nodes": nodes, "outputs": ["wave", "durations"],
    }  # fmt: skip
    steps = np.full((1, 1, UNITS * 600), 1e-3, np.float32)
    save_file({"0": steps}, path, metadata={"graph": json.dumps(described)})


def write_speaker_network(out: Path) -> None:
    (out / MODELS).mkdir(parents=True)
    (out / MODELS / "ERes2Net.py").write_text(ERES2NET)
    save_half(out / PACKED, build(out).state_dict())


def write_lines(out: Path, counts: dict[str, int]) -> None:
    rng = np.random.default_rng(2)
    for name, count in counts.items():
        lines = [
            " ".join(rng.choice(WORDS, rng.integers(4, 12))).capitalize() + f", {name} {number}."
            for number in range(count)
        ]
        (out / f"{name}.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))


def write_weights(settings: SimpleNamespace, out: Path) -> None:
    trainer = train_codec.build(settings)
    trainer.books.vectors.normal_()
    train_codec.save(trainer, out)
    config = settings.train_gan
    save_half(out / "discriminators.safetensors", Discriminators(config).state_dict())
    save_half(out / "listener.safetensors", Listener(config).state_dict())
    tokenizer = TextTokenizer.from_folder(Path(settings.tokenizer.folder))
    talker_files.save(talker_files.build(settings, tokenizer), out)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--lines", type=int, default=24)
    args = options.parse_args()
    torch.manual_seed(1)
    write_teachers(args.out)
    write_speaker_network(args.out / "eres2net")
    write_lines(args.out, {"lines": args.lines, "rare": args.lines})
    write_weights(load_settings(args.smoke, args.set), args.out)


if __name__ == "__main__":
    main()
