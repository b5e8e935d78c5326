"""`/v1/audio/speech/stream`: vLLM-Omni's messages over real sockets.

The audio is compared with the engine's own on the embedded voice; the rest needs no model.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import (
    Message,
    SocketClient,
    audio,
    connected,
    types,
    wait_until,
)
from vivace import TTS
from vivace.serve.settings import ServeSettings
from vivace.serve.sockets.omni import OmniSession

NUM_FRAMES = 10
NUM_BYTES = NUM_FRAMES * 3_840
LONG, LONG_FRAMES = 1, 6_000  # the seed of a long speech, and its length
SENTENCES = ("This is the first sentence. ", "Here comes the second one.")
PIECES = ("Hel", "lo there, ", "spoken while it is ", "written.")


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    plans = {LONG: Plan(LONG_FRAMES)}
    return ScriptedSpeech(default=Plan(NUM_FRAMES), plans=plans, step_s=0.01)


@pytest.fixture(scope="module")
def scripted(
    backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    settings = ServeSettings(port=0, voices=tmp_path_factory.mktemp("voices"))
    with running(settings, backend.load) as server:
        yield server


def configure(talk: SocketClient, **fields: Any) -> None:
    talk.send("session.config", **{"response_format": "pcm", "seed": 7, **fields})


def is_said(messages: list[Message], tts: TTS, *pieces: str) -> bool:
    """Whether the audio equals the engine's audio of the same live text, up to rounding."""
    received = np.frombuffer(audio(messages), "<i2") / 32_768
    chunks = [chunk.samples for chunk in tts.stream(iter(pieces), seed=7)]
    made = np.concatenate(chunks)
    return len(received) == len(made) and np.abs(received - made).max() < 1e-3


def only(messages: list[Message], type: str) -> list[dict[str, Any]]:
    return [m for m in messages if isinstance(m, dict) and m["type"] == type]


def test_utterance_sends_start_audio_and_done(scripted: Running) -> None:
    with connected(scripted) as talk:
        configure(talk)
        messages = talk.speak(*PIECES)
    assert types(messages) == ["audio.start", "bytes", "audio.done", "session.done"]
    start, done = messages[0], messages[-2]
    assert isinstance(start, dict)
    assert isinstance(done, dict)
    assert (start["sample_rate"], start["channels"], start["format"]) == (24_000, 1, "pcm")
    assert "".join(PIECES).startswith(start["sentence_text"])
    assert done["total_bytes"] == len(audio(messages))
    assert done["error"] is False
    assert messages[-1] == {"type": "session.done", "utterance_index": 0, "total_sentences": 1}


def test_done_message_lists_letters_that_the_checkpoint_does_not_read(scripted: Running) -> None:
    with connected(scripted) as talk:
        configure(talk)
        [done] = only(talk.speak("The name is ", "Мама", ", they say."), "audio.done")
        [other] = only(talk.speak("The name is Mama."), "audio.done")
    assert done["skipped"] == ["Мама"]
    assert "skipped" not in other


def test_session_with_on_unsupported_error_fails_for_unsupported_letters(scripted: Running) -> None:
    with connected(scripted) as talk:
        configure(talk, on_unsupported="error")
        [error] = only(talk.speak("Мама"), "error")
    assert "the letter 'М'" in error["message"]


@pytest.mark.ci
def test_audio_equals_the_engines_live_text_audio(server: Running, embedded: TTS) -> None:
    with connected(server) as talk:
        configure(talk)
        messages = talk.speak(*PIECES)
    assert is_said(messages, embedded, "".join(PIECES))  # independent of how the text was split
    assert not is_said(messages, embedded, "".join(PIECES[:-1]))


def test_audio_starts_before_the_text_ends(server: Running) -> None:
    with connected(server) as talk:
        configure(talk, live="word")
        for piece in PIECES[:3]:
            talk.send("input.text", text=piece)
        first = talk.until("audio.start")
        early = talk.read()
        assert isinstance(early, bytes)
        talk.send("input.text", text=PIECES[3])
        talk.send("input.done")
        rest = talk.until("session.done")
    assert types([*first, early, *rest])[-2:] == ["audio.done", "session.done"]
    assert len(audio(rest)) > len(early)


def test_live_field_selects_words_or_sentences(
    scripted: Running,
) -> None:
    with connected(scripted) as talk:
        num_bytes = {}
        for mode in ("word", "sentence"):
            configure(talk, live=mode)
            num_bytes[mode] = len(audio(talk.speak(*SENTENCES)))
        configure(talk, live="letter")
        [error] = talk.until("error")
    assert num_bytes["word"] == NUM_BYTES
    assert num_bytes["sentence"] > 2 * NUM_BYTES  # two utterances and the pause between them
    assert isinstance(error, dict)
    assert error["param"] == "live"


def test_live_setting_applies_to_all_sessions(tmp_path: Path) -> None:
    backend = ScriptedSpeech(default=Plan(NUM_FRAMES))
    settings = ServeSettings(port=0, voices=tmp_path, live="sentence")
    with running(settings, backend.load) as server, connected(server) as talk:
        configure(talk)
        assert len(audio(talk.speak(*SENTENCES))) > 2 * NUM_BYTES


def test_connection_speaks_many_utterances(scripted: Running) -> None:
    with connected(scripted) as talk:
        configure(talk)
        for index, text in enumerate(("One.", "Two.", "Three.")):
            messages = talk.speak(text)
            assert len(audio(messages)) == NUM_BYTES
            assert {m["utterance_index"] for m in messages if isinstance(m, dict)} == {index}


def test_pending_utterances_are_spoken_in_order(scripted: Running) -> None:
    texts = ("One.", "Two.", "Three.")
    with connected(scripted) as talk:
        configure(talk)
        for text in texts:
            talk.send("input.text", text=text)
            talk.send("input.done")
        for index in range(len(texts)):
            messages = talk.until("session.done")
            assert len(audio(messages)) == NUM_BYTES
            assert only(messages, "session.done")[0]["utterance_index"] == index


def test_session_config_applies_until_the_next_one(scripted: Running) -> None:
    with connected(scripted) as talk:
        configure(talk, response_format="wav", sample_rate=16_000)
        assert only(talk.speak("One."), "audio.start")[0]["format"] == "wav"
        assert only(talk.speak("One."), "audio.start")[0]["sample_rate"] == 16_000
        configure(talk)
        assert only(talk.speak("One."), "audio.start")[0]["sample_rate"] == 24_000


@pytest.mark.parametrize("format", ["wav", "mp3", "opus", "flac", "aac"])
def test_every_format_is_streamed(scripted: Running, format: str) -> None:
    with connected(scripted) as talk:
        configure(talk, response_format=format, stream_audio=True)
        content = audio(talk.speak("Hello."))
    with av.open(io.BytesIO(content)) as container:
        num_samples = sum(frame.samples for frame in container.decode(audio=0))
        assert num_samples > container.streams.audio[0].rate // 4


def test_stream_audio_false_sends_one_complete_file(scripted: Running) -> None:
    with connected(scripted) as talk:
        configure(talk, response_format="wav", stream_audio=False)
        messages = talk.speak("Hello.")
    frames = [message for message in messages if isinstance(message, bytes)]
    assert len(frames) == 1
    with wave.open(io.BytesIO(frames[0])) as file:
        samples = file.readframes(file.getnframes())
    assert frames[0][44 : 44 + len(samples)] == samples
    assert b"trainedAlgorithmicMedia" in frames[0][44 + len(samples) :]


def test_messages_of_vllm_omni_client_are_supported(server: Running) -> None:
    """The client's default fields; its voice belongs to the model it was written for."""
    with connected(server) as talk:
        talk.send(
            "session.config",
            voice="Vivian",
            task_type="CustomVoice",
            language="Auto",
            response_format="wav",
            speed=1.0,
            instructions=None,
        )
        messages = talk.speak("Hello ", "world.")
    assert audio(messages)[:4] == b"RIFF"
    assert only(messages, "session.done")[0]["total_sentences"] == 1


def test_input_done_without_text_is_an_empty_utterance(scripted: Running) -> None:
    with connected(scripted) as talk:
        configure(talk)
        assert talk.speak() == [
            {"type": "session.done", "utterance_index": 0, "total_sentences": 0}
        ]
        assert types(talk.speak("One."))[-1] == "session.done"


# --- Cancelling -------------------------------------------------------------------------------


def test_cancelled_utterance_stops_and_the_next_is_spoken(scripted: Running) -> None:
    with connected(scripted) as talk:
        configure(talk, seed=LONG)
        talk.send("input.text", text="One.")
        talk.send("input.done")
        talk.until("audio.start")
        configure(talk)
        talk.send("input.cancel")
        cancelled = talk.until("audio.cancelled")
        messages = talk.speak("Two.")
    assert len(audio(cancelled)) < LONG_FRAMES * 3_840
    assert len(audio(messages)) == NUM_BYTES
    assert only(messages, "session.done")[0]["utterance_index"] == 1


def test_cancelled_utterance_frees_its_slot(scripted: Running) -> None:
    with connected(scripted) as talk:
        configure(talk, seed=LONG)
        talk.send("input.text", text="This text has no end and nobody writes on ")
        talk.until("audio.start")
        assert scripted.context.streams.num_active == 1
        talk.send("input.cancel")
        talk.until("audio.cancelled")
        wait_until(lambda: scripted.context.streams.num_active == 0)


def test_cancelling_one_context_keeps_the_other(scripted: Running) -> None:
    with connected(scripted) as talk:
        configure(talk, seed=LONG)
        talk.send("input.text", text="Nobody wants to hear this.", context_id="a")
        talk.send("input.done", context_id="a")
        configure(talk)
        talk.send("input.text", text="Two.", context_id="b")
        talk.send("input.done", context_id="b")
        talk.until("audio.start")
        talk.send("input.cancel", context_id="a")
        cancelled = talk.until("audio.cancelled")[-1]
        messages = talk.until("session.done")
    assert cancelled == {"type": "audio.cancelled", "utterance_index": 0, "context_id": "a"}
    assert len(audio(messages)) == NUM_BYTES
    assert {m["context_id"] for m in messages if isinstance(m, dict)} == {"b"}


def test_cancelling_a_pending_utterance_keeps_the_others(
    scripted: Running, backend: ScriptedSpeech
) -> None:
    with connected(scripted) as talk:
        configure(talk)
        backend.is_open.clear()  # no utterance ends before the cancellation
        try:
            for name, text in (("a", "One."), ("b", "Two."), ("c", "Three.")):
                talk.send("input.text", text=text, context_id=name)
                talk.send("input.done", context_id=name)
            talk.send("input.cancel", context_id="b")
            cancelled = talk.until("audio.cancelled")
        finally:
            backend.is_open.set()
        one, other = talk.until("session.done"), talk.until("session.done")
    assert len(audio(one)) == len(audio(other)) == NUM_BYTES
    assert len(only([*cancelled, *one, *other], "audio.cancelled")) == 1
    assert [m["context_id"] for m in only([*one, *other], "session.done")] == ["a", "c"]


def test_cancel_without_an_utterance_is_confirmed(scripted: Running) -> None:
    with connected(scripted) as talk:
        talk.send("input.cancel")
        assert talk.read() == {"type": "audio.cancelled", "utterance_index": None}
        talk.send("input.cancel", context_id="x")
        assert talk.read() == {
            "type": "audio.cancelled",
            "utterance_index": None,
            "context_id": "x",
        }


def test_text_after_cancel_begins_a_new_utterance(scripted: Running) -> None:
    with connected(scripted) as talk:
        configure(talk)
        talk.send("input.text", text="One. Two. Three. ")
        talk.send("input.cancel")
        messages = talk.speak("Two.")
    assert only(messages, "session.done")[0]["utterance_index"] == 1
    assert len(audio(messages[messages.index(only(messages, "audio.cancelled")[0]) :])) == NUM_BYTES


def test_unexpected_exception_returns_generic_error_and_closes(
    scripted: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(OmniSession, "_find_or_begin", fail)
    with connected(scripted) as talk:
        configure(talk)
        talk.send("input.text", text="One.")
        messages, code = talk.until_closed()
    assert (types(messages), code) == (["error"], 1011)
    assert "secret" not in str(messages)


def test_session_close_closes_the_connection(scripted: Running) -> None:
    with connected(scripted) as talk:
        configure(talk)
        talk.send("session.close")
        assert talk.until_closed() == ([], 1000)
