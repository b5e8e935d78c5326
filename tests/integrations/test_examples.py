"""Runs the files in examples/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.project import ROOT, load_script
from tests.support.scripted_tts import Plan
from tests.support.voice_sources import LIMIT_S, VoiceAtHand, voice_at_hand
from tests.support.websocket_client import wait_until
from vivace import TTS
from vivace.voices.voice import Voice

WORDS = ["Hel", "lo ", "there. ", "This ", "is ", "an ", "agent."]


def example(name: str) -> ModuleType:
    return load_script(ROOT / "examples" / f"{name}.py")


def test_callback_speaks_every_token_and_is_interrupted(tmp_path: Path) -> None:
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


def num_samples(chunks: list[Any]) -> int:
    return sum(len(chunk.samples) for chunk in chunks)


@pytest.fixture
def langchain_speaker(tmp_path: Path) -> Iterator[tuple[Any, list[Any], VoiceAtHand]]:
    pytest.importorskip("langchain_core")
    with voice_at_hand("in process", tmp_path) as at_hand:
        chunks: list[Any] = []
        yield example("callback").Speaker(at_hand.voice, chunks.append), chunks, at_hand


Spoken = tuple[Any, list[Any], VoiceAtHand]


def fake_model(content: Any) -> Any:
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    return GenericFakeChatModel(messages=iter([AIMessage(content=content)]))


def test_langchain_stream_is_spoken(langchain_speaker: Spoken) -> None:
    speaker, chunks, _ = langchain_speaker
    model = fake_model("Hello there, this is an agent.")
    written = [part.content for part in model.stream("Hi", config={"callbacks": [speaker]})]
    assert len(written) > 3
    assert num_samples(chunks) == 25 * 1_920


@pytest.mark.parametrize(
    "content",
    [
        "Hello there.",
        [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there."}],
        ["Hello ", "there."],
        [{"type": "tool_use", "name": "look", "input": {}}, {"type": "text", "text": "Hello."}],
    ],
)
def test_langchain_invoke_speaks_every_type_of_content(
    langchain_speaker: Spoken, content: Any
) -> None:
    speaker, chunks, _ = langchain_speaker
    fake_model(content).invoke("Hi", config={"callbacks": [speaker]})
    assert num_samples(chunks) == 25 * 1_920


def test_langchain_invoke_without_text_is_silent(langchain_speaker: Spoken) -> None:
    speaker, chunks, _ = langchain_speaker
    content = [{"type": "tool_use", "name": "look", "input": {}}]
    fake_model(content).invoke("Hi", config={"callbacks": [speaker]})
    assert chunks == []


def test_callback_accepts_lists_of_blocks_as_tokens(tmp_path: Path) -> None:
    module = example("callback")
    blocks = [{"type": "text", "text": "Hello ", "index": 0}, {"type": "thinking", "text": "Hm"}]
    assert module.text_of(blocks) == "Hello "
    assert module.text_of(None) == module.text_of([]) == module.text_of([{"type": "text"}]) == ""
    with voice_at_hand("in process", tmp_path) as at_hand:
        chunks: list[Any] = []
        speaker = module.Speaker(at_hand.voice, chunks.append)
        for token in (blocks, "", [], [{"type": "text", "text": "there."}]):
            speaker.on_llm_new_token(token)
        speaker.finish()
        assert num_samples(chunks) == 25 * 1_920


def test_callback_error_of_its_thread_is_raised_by_finish(tmp_path: Path) -> None:
    def fail(_: Any) -> None:
        raise OSError("no loudspeaker")

    with voice_at_hand("in process", tmp_path) as at_hand:
        speaker = example("callback").Speaker(at_hand.voice, fail)
        speaker("Hello there. ")
        with pytest.raises(OSError, match="no loudspeaker"):
            speaker.finish()
        speaker.finish()  # all slots are free
        wait_until(lambda: at_hand.is_free, LIMIT_S)


def test_callback_interrupted_before_its_stream_exists_is_silent(tmp_path: Path) -> None:
    is_opening, may_open = Event(), Event()
    with voice_at_hand("in process", tmp_path) as at_hand:
        chunks: list[Any] = []

        class SlowVoice:
            """A TTS whose streams open only when the test allows it."""

            def stream(self, *args: Any, **options: Any) -> Any:
                is_opening.set()
                assert may_open.wait(LIMIT_S)
                assert isinstance(at_hand.voice, TTS)
                return at_hand.voice.stream(*args, **options)

        speaker = example("callback").Speaker(SlowVoice(), chunks.append)
        for word in WORDS:
            speaker(word)
        assert is_opening.wait(LIMIT_S)
        speaker.interrupt()
        may_open.set()
        speaker("More of the same reply. ")
        speaker.finish()
        assert chunks == []
        speaker("The next reply is spoken. ")
        speaker.finish()
        assert num_samples(chunks) == 25 * 1_920
        wait_until(lambda: at_hand.is_free, LIMIT_S)


def test_callback_interrupted_before_the_first_token_is_silent(tmp_path: Path) -> None:
    with voice_at_hand("in process", tmp_path) as at_hand:
        chunks: list[Any] = []
        speaker = example("callback").Speaker(at_hand.voice, chunks.append)
        speaker.on_chat_model_start({}, [])
        speaker.interrupt()
        speaker("Too late. ")
        speaker.finish()
        assert chunks == []


def test_callback_interrupted_while_it_waits_for_a_token_ends(tmp_path: Path) -> None:
    with voice_at_hand("in process", tmp_path) as at_hand:
        chunks: list[Any] = []
        speaker = example("callback").Speaker(at_hand.voice, chunks.append)
        for word in WORDS:
            speaker(word)
        wait_until(lambda: len(chunks) > 0, LIMIT_S)
        speaker.interrupt()
        wait_until(lambda: at_hand.is_free, LIMIT_S)
        speaker.finish()


def test_comfyui_node_returns_audio(monkeypatch: pytest.MonkeyPatch, tiny_folder: Path) -> None:
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

    def recorded(tts: TTS, audio: Any) -> Voice:
        heard.append(audio)
        return clone(tts, audio)

    monkeypatch.setattr(TTS, "clone", recorded)
    (audio,) = speak("Hello.", str(tiny_folder / "base"), reference=reference)
    assert np.allclose(heard[0][0], given.numpy(), atol=1e-6)
    assert audio["waveform"].shape[2] <= 5 * 1_920
