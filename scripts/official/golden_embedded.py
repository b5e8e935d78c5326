"""Golden codes of the embedded voice: the official code loads the voice and speaks greedily."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from cases import DEFAULT_SETTINGS, Call, Item
from environment import ROOT, Tensors, load, save
from golden_codes import WAVEFORM_STRIDE, check_margins, describe_call, speak
from recorder import Recorder

EMBEDDED = ROOT / "src" / "vivace" / "assets" / "mini"
WEIGHTS = ("model.safetensors", "speech_tokenizer/model.safetensors")
LINES = {
    "greeting": ("heart", "Hello there."),
    "question": ("heart", "Have you seen the keys to the old house?"),
    "number": ("heart", "It leaves at ten past three on the second of May."),
    "answer": ("michael", "They are on the table in the hall."),
}


def make_embedded(checkpoints: Path, output: Path) -> None:
    """Needs none of the tiny checkpoints: the weights are in the repository."""
    tts = load(EMBEDDED)
    recorder = Recorder(tts)
    tensors: Tensors = {}
    calls = []
    for call in embedded_calls():
        waveforms = speak(tts, call, {})
        calls.append(describe_call(call, recorder, waveforms))
        tensors[f"{call.name}.0.codes"] = recorder.codes[0].to(torch.int16)
        tensors[f"{call.name}.0.waveform"] = torch.tensor(waveforms[0][::WAVEFORM_STRIDE])
        check_margins("embedded", calls[-1])
    description: dict[str, Any] = {
        "model": "embedded",
        "weights": {name: digest(EMBEDDED / name) for name in WEIGHTS},
        "references": [],
        "calls": calls,
    }
    save(output / "codes_embedded", tensors, description)


def embedded_calls() -> list[Call]:
    settings = {"max_new_tokens": 10 * DEFAULT_SETTINGS["max_new_tokens"]}  # to its own end
    return [
        Call(
            name=f"{name}_{layout}",
            items=(Item(text=text, speaker=speaker),),
            non_streaming_mode=is_whole,
            settings=settings,
        )
        for name, (speaker, text) in LINES.items()
        for layout, is_whole in (("streaming", False), ("offline", True))
    ]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
