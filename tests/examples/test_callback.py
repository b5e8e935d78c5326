"""examples/callback.py and examples/langchain_callback.py speak, and are interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.project import ROOT, load_script
from tests.support.voice_sources import LIMIT_S, VoiceUnderTest, voice_under_test
from tests.support.websocket_client import wait_until

WORDS = ["Hel", "lo ", "there. ", "This ", "is ", "an ", "agent."]


def example(name: str) -> ModuleType:
    return load_script(ROOT / "examples" / f"{name}.py")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


def test_callback_speaks_every_token_and_is_interrupted(tmp_path: Path) -> None:
    with voice_under_test("in process", tmp_path) as under_test:
        chunks: list[Any] = []
        speaker = example("callback").Speaker(under_test.voice, chunks.append, seed=7)
        for _ in range(2):
            for word in WORDS:
                speaker(word)
            speaker.finish()
        assert sum(len(chunk.samples) for chunk in chunks) == 2 * 25 * 1_920

        under_test.speak_at_length(0.001)
        chunks.clear()
        for word in WORDS:
            speaker(word)
        wait_until(lambda: len(chunks) > 0, LIMIT_S)
        speaker.interrupt()
        speaker("More of the same reply. ")
        speaker.finish()
        wait_until(lambda: under_test.is_free, LIMIT_S)


def num_samples(chunks: list[Any]) -> int:
    return sum(len(chunk.samples) for chunk in chunks)


@pytest.fixture
def langchain_speaker(tmp_path: Path) -> Iterator[tuple[Any, list[Any], VoiceUnderTest]]:
    pytest.importorskip("langchain_core")
    with voice_under_test("in process", tmp_path) as under_test:
        chunks: list[Any] = []
        module = example("langchain_callback")
        speaker = module.Speaker(under_test.voice, chunks.append)
        yield module.SpeakingHandler(speaker), chunks, under_test


Spoken = tuple[Any, list[Any], VoiceUnderTest]


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


def test_langchain_blocks_are_spoken_as_tokens(langchain_speaker: Spoken) -> None:
    handler, chunks, _ = langchain_speaker
    text_of = example("langchain_callback").text_of
    blocks = [{"type": "text", "text": "Hello ", "index": 0}, {"type": "thinking", "text": "Hm"}]
    assert text_of(blocks) == "Hello "
    assert text_of(None) == text_of([]) == text_of([{"type": "text"}]) == ""
    for token in (blocks, "", [], [{"type": "text", "text": "there."}]):
        handler.on_llm_new_token(token)
    handler.on_llm_end(None)
    assert num_samples(chunks) == 25 * 1_920


def test_langchain_error_of_the_model_stops_the_speech(langchain_speaker: Spoken) -> None:
    handler, chunks, under_test = langchain_speaker
    under_test.speak_at_length(0.001)
    for word in WORDS:
        handler.on_llm_new_token(word)
    wait_until(lambda: len(chunks) > 0, LIMIT_S)
    handler.on_llm_error(RuntimeError("the model left"))
    wait_until(lambda: under_test.is_free, LIMIT_S)


def test_callback_error_of_its_thread_is_raised_by_finish(tmp_path: Path) -> None:
    def fail(_: Any) -> None:
        raise OSError("no loudspeaker")

    with voice_under_test("in process", tmp_path) as under_test:
        speaker = example("callback").Speaker(under_test.voice, fail)
        speaker("Hello there. ")
        with pytest.raises(OSError, match="no loudspeaker"):
            speaker.finish()
        speaker.finish()  # all slots are free
        wait_until(lambda: under_test.is_free, LIMIT_S)


def test_callback_interrupted_between_replies_speaks_the_next_one(tmp_path: Path) -> None:
    with voice_under_test("in process", tmp_path) as under_test:
        chunks: list[Any] = []
        speaker = example("callback").Speaker(under_test.voice, chunks.append)
        speaker.interrupt()
        speaker.finish()
        assert chunks == []
        speaker("The next reply is spoken. ")
        speaker.finish()
        assert num_samples(chunks) == 25 * 1_920


def test_callback_interrupted_while_it_waits_for_a_token_ends(tmp_path: Path) -> None:
    with voice_under_test("in process", tmp_path) as under_test:
        chunks: list[Any] = []
        speaker = example("callback").Speaker(under_test.voice, chunks.append)
        for word in WORDS:
            speaker(word)
        wait_until(lambda: len(chunks) > 0, LIMIT_S)
        speaker.interrupt()
        wait_until(lambda: under_test.is_free, LIMIT_S)
        speaker.finish()
