"""Write tiny checkpoints with random weights in the layout of the released ones.

    python scripts/make_tiny_checkpoints.py tiny

Five folders of about 1 MB, for tests and for golden values of the official package. Proportions are
those of the 0.6B and 1.7B models; names and shapes come from the classes of Vivace. Every number is
drawn from integers seeded by the name of its tensor, so all machines write the same files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import sys
import zlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tiny_configs import CODEC_CONFIG, EOS_ID, GENERATION_CONFIG, model_config
from tiny_tokenizer import first_added_id, make_merges, make_vocab
from torch import Tensor, nn

from vivace.model.codec import Codec
from vivace.model.config_file import parse_codec_config, parse_model_config
from vivace.model.talker import Qwen3TTS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from recipes.mini_voice.released_layout import (
    AUDIO_PREPROCESSOR_CONFIG,
    MODELSCOPE_CONFIG,
    TEXT_PREPROCESSOR_CONFIG,
    Config,
    tokenizer_config,
)

Shapes = dict[str, tuple[int, ...]]

CHECKPOINTS = {  # folder: (tts_model_type, tts_model_size, seed); 1b7 has a projection
    "custom_voice": ("custom_voice", "0b6", 0),
    "custom_voice_projected": ("custom_voice", "1b7", 1),
    "voice_design": ("voice_design", "1b7", 23),
    "base": ("base", "0b6", 12),
    "base_projected": ("base", "1b7", 32),
}
CODEC_SEED = 1000  # one codec for all folders, as released


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="the output folder")
    output = parser.parse_args().output
    for name in CHECKPOINTS:
        make_checkpoint(output / name)
        size = sum(path.stat().st_size for path in (output / name).rglob("*.*"))
        print(f"{output / name}: {size / 1e6:.2f} MB, weights {fingerprint(output / name)}")


def make_checkpoint(folder: Path) -> None:
    """Write the checkpoint that `folder` is named after."""
    model_type, model_size, seed = CHECKPOINTS[folder.name]
    codec = folder / "speech_tokenizer"
    codec.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    write_json(folder / "config.json", model_config(model_type, model_size))
    write_json(folder / "generation_config.json", GENERATION_CONFIG)
    write_json(folder / "preprocessor_config.json", TEXT_PREPROCESSOR_CONFIG)
    write_json(codec / "config.json", CODEC_CONFIG)
    write_json(codec / "preprocessor_config.json", AUDIO_PREPROCESSOR_CONFIG)
    write_json(codec / "configuration.json", MODELSCOPE_CONFIG)

    weights = make_weights(seed, tensor_shapes(model_config(model_type, model_size)))
    weights["talker.codec_head.weight"][EOS_ID] *= 0.85  # about one greedy utterance in five ends
    halves = {name: tensor.bfloat16() for name, tensor in weights.items()}
    save_file(halves, folder / "model.safetensors", {"format": "pt"})
    codec_weights = make_weights(CODEC_SEED, tensor_shapes(CODEC_CONFIG))
    save_file(codec_weights, codec / "model.safetensors", {"format": "pt"})


def fingerprint(folder: Path) -> str:
    """A digest of all names and numbers in a checkpoint, independent of the file layout."""
    digest = hashlib.sha256()
    for path in (folder / "model.safetensors", folder / "speech_tokenizer" / "model.safetensors"):
        for name, tensor in sorted(load_file(path).items()):
            digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


# --- Names and shapes -------------------------------------------------------------------------


def tensor_shapes(config: Config) -> Shapes:
    """The tensors of the checkpoint, talker or codec, that this config.json belongs to."""
    with torch.device("meta"):
        model: nn.Module
        if config["model_type"] == "qwen3_tts":
            model = Qwen3TTS(parse_model_config(config))
        else:
            model = Codec(parse_codec_config(config))
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


# --- Weights ----------------------------------------------------------------------------------


def make_weights(seed: int, shapes: Shapes) -> dict[str, Tensor]:
    return {name: make_tensor(seed, name, shape) for name, shape in shapes.items()}


def make_tensor(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """Numbers for one tensor, scaled so that signals neither vanish nor overflow."""
    noise = draw_noise(seed, name, shape)
    leaf = name.rpartition(".")[2]
    if leaf == "initialized":
        return torch.ones(shape)
    if leaf == "cluster_usage":
        return 1 + noise.abs()
    if leaf in ("embedding_sum", "embed_sum"):
        usage = make_tensor(seed, name.replace(leaf, "cluster_usage"), shape[:1])
        return gain(name) * usage[:, None] * noise
    if leaf in ("scale", "gamma"):
        return 0.3 + 0.05 * noise
    if leaf in ("alpha", "beta"):
        return 0.3 * noise
    if leaf == "bias":
        return 0.05 * noise
    if re.search(r"norm\.weight$", name):
        return 1 + 0.1 * noise
    return gain(name) / math.sqrt(fan_in(name, shape)) * noise


GAINS = [  # factors of weights; the first matching pattern applies
    (r"codec_head|\.lm_head\.", 2.0),  # large margins, so that rounding changes no choice
    (r"code_predictor\.model\.codec_embedding", 0.3),  # 15 are added to one code and one text
    (r"^decoder\.decoder\.6\.", 0.1),  # audible, rarely clipped
    (r"^decoder\.decoder\.\d\.block\.\d\.conv2", 0.3),  # bounds the sum of residuals
    (r"^encoder\.encoder\.layers", 1.4),  # compensates for ELU
    (r"^encoder\.quantizer.*embed_sum", 0.8),
]


def gain(name: str) -> float:
    return next((factor for pattern, factor in GAINS if re.search(pattern, name)), 1.0)


def fan_in(name: str, shape: tuple[int, ...]) -> int:
    """The number of inputs that are summed into one output."""
    if "embedding" in name:
        return 1
    if re.match(r"decoder\.upsample\.\d\.0\.conv", name):  # transposed, stride = kernel
        return shape[0]
    if re.match(r"decoder\.decoder\.\d\.block\.1\.conv", name):  # transposed, stride = kernel / 2
        return shape[0] * 2
    return math.prod(shape[1:])


def draw_noise(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """Nearly normal numbers, mean 0 and variance 1: sums of four integers, equal on any machine."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    total = torch.randint(0, 2**16, (4, *shape), generator=generator).sum(0)
    return (total - 2 * (2**16 - 1)) / (2**16 / math.sqrt(3))


# --- Files ------------------------------------------------------------------------------------


def write_tokenizer(folder: Path) -> None:
    write_json(folder / "vocab.json", make_vocab())
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in make_merges())]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_json(folder / "tokenizer_config.json", tokenizer_config(first_added_id()))


def write_json(path: Path, value: Config) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
