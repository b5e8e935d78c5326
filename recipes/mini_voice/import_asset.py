"""Convert the shipped voice to training checkpoints and copy the other files beside them.

    python -m recipes.mini_voice.import_asset --out build/checkpoints [--shared FOLDER]

Decoder, talker, predictor and the encoders come from `src/vivace/assets/mini`. `export` restores
the same asset from them. Training encoder, discriminators, listener and codes are not part of it.
They are read from `--shared`, `MINI_VOICE_SHARED`, or `shared/mini_voice` beside the checkout.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from recipes.mini_voice.common import save_half
from recipes.mini_voice.export import CODEC_ENCODER
from recipes.mini_voice.talker_files import save_state
from vivace.checkpoint_files import SPEAKER_ENCODER
from vivace.model.config_file import load_codec_config, load_model_config

ROOT = Path(__file__).parents[2]
ASSET = ROOT / "src" / "vivace" / "assets" / "mini"
SHARED_VARIABLE = "MINI_VOICE_SHARED"
SHARED_FILES = (
    "encoder.safetensors", "discriminators.safetensors", "listener.safetensors",
    "codes_a.npy", "codes_b.npy", "utterances.npz",
)  # fmt: skip


def import_asset(asset: Path, out: Path) -> None:
    """Write the trained parts of a checkpoint folder: decoder, talker and any encoders."""
    codec = asset / "speech_tokenizer"
    save_half(out / "decoder.safetensors", _part(codec / "model.safetensors", "decoder."))
    save_state(_part(asset / "model.safetensors", "talker."), out)
    if load_model_config(asset / "config.json").can_clone:
        encoder = _part(asset / "model.safetensors", SPEAKER_ENCODER)
        save_half(out / "speaker_encoder.safetensors", encoder)
        # Without cloning, an untrained encoder has no mark.
        if load_codec_config(codec / "config.json").has_encoder:
            save_half(out / CODEC_ENCODER, _part(codec / "model.safetensors", "encoder."))


def _part(path: Path, prefix: str) -> dict[str, Tensor]:
    found = {
        name.removeprefix(prefix): tensor
        for name, tensor in load_file(path).items()
        if name.startswith(prefix)
    }
    if not found:
        raise SystemExit(f"{path} has no weights under {prefix!r}")
    return found


def copy_shared(shared: Path, out: Path) -> None:
    if missing := [name for name in SHARED_FILES if not (shared / name).is_file()]:
        raise SystemExit(
            f"{shared} lacks {', '.join(missing)}; name the folder that has them with --shared or "
            f"{SHARED_VARIABLE}, or make them: train_all_codec and train_listener do"
        )
    for name in SHARED_FILES:
        shutil.copy(shared / name, out / name)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--asset", type=Path, default=ASSET)
    options.add_argument("--out", type=Path, default=Path("build/checkpoints"))
    default = os.environ.get(SHARED_VARIABLE) or ROOT.parent / "shared" / "mini_voice"
    options.add_argument("--shared", type=Path, default=Path(default))
    args = options.parse_args()
    import_asset(args.asset, args.out)
    copy_shared(args.shared, args.out)


if __name__ == "__main__":
    main()
