"""Build, save and load the talker in training, and embed its input rows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file
from torch import Tensor

from recipes.mini_voice.common import DEVICE, initialise, load_grown, save_half
from recipes.mini_voice.settings import talker_config
from vivace.model.config import SPEAKER
from vivace.model.talker import Talker
from vivace.text.tokenizer import TextTokenizer


def embed(talker: Talker, text: Tensor, codes: Tensor, speakers: Tensor | None = None) -> Tensor:
    """Rows of text ids [B, T] and codes [B, T, books], NO_CODE where none.

    `speakers` [B, hidden] are the vectors of the rows whose code is SPEAKER.
    """
    rows = talker.text_vectors(text) + talker.code_vectors(codes)
    if speakers is not None:
        rows = rows + torch.where(codes[..., :1] == SPEAKER, speakers[:, None], 0.0)
    return rows.float()


def save(talker: Talker, out: Path) -> None:
    save_state(talker.state_dict(), out)


def save_state(state: dict[str, Tensor], out: Path) -> None:
    """Two files of about the same size."""
    names = sorted(state)
    total, middle, size = sum(state[n].numel() for n in names), 0, 0
    while size < total / 2:
        size += state[names[middle]].numel()
        middle += 1
    save_half(out / "talker_a.safetensors", {n: state[n] for n in names[:middle]})
    save_half(out / "talker_b.safetensors", {n: state[n] for n in names[middle:]})


def load(talker: Talker, folder: Path) -> None:
    state: dict[str, Tensor] = {}
    for path in sorted(folder.glob("talker_?.safetensors")):
        state |= {name: tensor.float() for name, tensor in load_file(path).items()}
    load_grown(talker, state)


def build(settings: SimpleNamespace, tokenizer: TextTokenizer) -> Talker:
    size = -(-tokenizer.vocab_size // 16) * 16
    talker = Talker(talker_config(settings, size))
    initialise(talker)
    return talker.to(DEVICE)
