"""Golden probabilities: logits after the logits processors that generate() builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import torch
from environment import Tensors, live_ids, load, save, seeded
from torch import Tensor

TALKER_SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "greedy": {"do_sample": False},
    "penalty_off": {"repetition_penalty": 1.0},
    "penalty_strong": {"repetition_penalty": 1.5},
    "temperature_one": {"temperature": 1.0},
    "temperature_low": {"temperature": 0.3},
    "temperature_high": {"temperature": 2.0},
    "top_k_off": {"top_k": 0},
    "top_k_one": {"top_k": 1},
    "top_k_few": {"top_k": 5},
    "top_k_beyond": {"top_k": 5000},
    "top_p": {"top_p": 0.9},
    "top_p_alone": {"top_p": 0.5, "top_k": 0},
    "top_p_tiny": {"top_p": 0.01},
    "all": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.2},
}
PREDICTOR_SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "greedy": {"dosample": False},
    "temperature_one": {"temperature": 1.0},
    "top_k_off": {"top_k": 0},
    "top_k_few": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "all": {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
}
HISTORY_LENGTHS = [0, 1, 2, 40]  # EOS is banned at 0 and 1


class ProcessorsFoundError(Exception):
    """Stops generate() and holds its logits processors."""


def make_sampling(checkpoints: Path, output: Path) -> None:
    """The probabilities that generate() would draw from, given logits and history."""
    tts = load(checkpoints / "custom_voice")
    live = live_ids(tts)
    logits = make_logits(tts.model.config.talker_config.vocab_size, eos=live[-1])
    history = torch.randint(0, 64, (len(logits), max(HISTORY_LENGTHS)), generator=seeded(3))
    tensors: Tensors = {"talker.logits": logits, "talker.history": history.to(torch.uint8)}
    for name, settings in TALKER_SETTINGS.items():
        processors = find_processors(tts, type(tts.model.talker), settings)
        for length in HISTORY_LENGTHS:
            chances = processors(history[:, :length], logits.clone()).softmax(-1)
            assert chances.sum(-1).allclose(chances[:, live].sum(-1))
            tensors[f"talker.{name}.{length}"] = chances[:, live]

    logits = make_logits(64, eos=None)
    tensors["predictor.logits"] = logits
    for name, settings in PREDICTOR_SETTINGS.items():
        settings = {f"subtalker_{key}": value for key, value in settings.items()}
        processors = find_processors(tts, type(tts.model.talker.code_predictor), settings)
        history = torch.zeros(len(logits), 3, dtype=torch.long)  # must not matter
        tensors[f"predictor.{name}"] = processors(history, logits.clone()).softmax(-1)
    description = {
        "talker_settings": TALKER_SETTINGS,
        "predictor_settings": PREDICTOR_SETTINGS,
        "history_lengths": HISTORY_LENGTHS,
        "columns": live,
    }
    save(output / "sampling", tensors, description)


def make_logits(vocab_size: int, eos: int | None) -> Tensor:
    """Two rows of plain noise, two full of ties, and one whose best is EOS or the last code."""
    logits = 3 * torch.randn(5, vocab_size, generator=seeded(vocab_size))
    logits[2:4] = (2 * logits[2:4]).round() / 2
    logits[4, vocab_size - 1 if eos is None else eos] = 20.0
    return logits


def find_processors(tts: Any, owner: type, settings: dict[str, Any]) -> Any:
    """The logits processors that generate() builds for the talker or for the predictor."""

    def sample(model: Any, input_ids: Tensor, logits_processor: Any, **kwargs: Any) -> None:
        raise ProcessorsFoundError(logits_processor)

    with mock.patch.object(owner, "_sample", sample):
        try:
            tts.generate_custom_voice("a", "ryan", max_new_tokens=4, **settings)
        except ProcessorsFoundError as found:
            return found.args[0]
    raise AssertionError("generate() did not sample")
