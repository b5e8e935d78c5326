"""The files in examples/ are run."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scripted_tts import Plan
from talking import wait_until
from voices_at_hand import LIMIT_S, voice_at_hand

from conftest import ROOT, load_script
from vivace import TTS

WORDS = ["Hel", "lo ", "there. ", "This ", "is ", "an ", "agent."]


def example(name: str) -> ModuleType:
    return load_script(ROOT / "examples" / f"{name}.py")


def test_a_callback_speaks_every_token_and_is_interrupted(tmp_path: Path) -> None:
    with voice_at_hand("in process", tmp_path) as at_hand:
        chunks: list[Any] = []
        speaker = example("callback").Speaker(at_hand.voice, chunks.append, seed=7)
        for _ in range(2):
            for word in WORDS:
                speaker(word)
            speaker.finish()
        assert sum(len(chunk.samples) for chunk in chunks) == 2 * 25 * 1_920

        at_hand.backend.default, at_hand.backend.step_s = Plan(5_000), 0.001
        chunks.clear()
        for word in WORDS:
            speaker.on_llm_new_token(word)
        wait_until(lambda: len(chunks) > 0, LIMIT_S)
        speaker.on_llm_error(RuntimeError("the model left"))
        wait_until(lambda: at_hand.is_free, LIMIT_S)


def test_langchain_calls_the_callback(tmp_path: Path) -> None:
    models = pytest.importorskip("langchain_core.language_models.fake_chat_models")
    with voice_at_hand("in process", tmp_path) as at_hand:
        chunks: list[Any] = []
        speaker = example("callback").Speaker(at_hand.voice, chunks.append)
        model = models.GenericFakeChatModel(messages=iter(["Hello there, this is an agent."]))
        written = [part.content for part in model.stream("Hi", config={"callbacks": [speaker]})]
        assert len(written) > 3
        assert sum(len(chunk.samples) for chunk in chunks) == 25 * 1_920


def test_a_comfyui_node_gives_audio(monkeypatch: pytest.MonkeyPatch, tiny_folder: Path) -> None:
    whole = TTS.speak
    monkeypatch.setattr(TTS, "speak", lambda *a, **k: whole(*a, **k, max_frames=5))
    module = example("comfyui_node")
    (node,) = module.NODE_CLASS_MAPPINGS.values()
    assert module.NODE_CLASS_MAPPINGS.keys() == module.NODE_DISPLAY_NAME_MAPPINGS.keys()
    assert node.RETURN_TYPES == ("AUDIO",)
    speak = getattr(node(), node.FUNCTION)
    inputs = node.INPUT_TYPES()
    told = {name: kind[1]["default"] for name, kind in inputs["required"].items()}
    told |= {name: kind[1]["default"] for name, kind in inputs["optional"].items() if kind[1:]}
    (audio,) = speak(**told)
    assert audio["sample_rate"] == 24_000
    assert audio["waveform"].dtype == torch.float32
    assert audio["waveform"].shape[:2] == (1, 1)
    assert torch.equal(audio["waveform"], speak(**told)[0]["waveform"])  # the seed is kept

    given = 0.1 * torch.sin(torch.arange(48_000) / 20)
    reference = {"waveform": given.expand(1, 2, -1), "sample_rate": 24_000}
    heard: list[Any] = []
    clone = TTS.clone
    monkeypatch.setattr(TTS, "clone", lambda tts, audio: heard.append(audio) or clone(tts, audio))
    (audio,) = speak("Hello.", str(tiny_folder / "base"), reference=reference)
    assert np.allclose(heard[0][0], given.numpy(), atol=1e-6)
    assert audio["waveform"].shape[2] <= 5 * 1_920
