"""`VivaceEngine` in the `TextToAudioStream` of RealtimeTTS, with a stub for the audio device.

`pip install -e ".[test,integrations-test]"`; without RealtimeTTS these tests are skipped.
"""

from __future__ import annotations

import random
import threading
import time
import wave
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.pyaudio_stub import PyAudio, install_loudspeaker
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.voice_sources import LIMIT_S, VoiceUnderTest, voice_under_test
from tests.support.websocket_client import wait_until
from vivace import TTS
from vivace.errors import TextTooLongError, UnknownVoiceError

pytest.importorskip("RealtimeTTS")
pytestmark = pytest.mark.filterwarnings("ignore")
WORDS = ["Hel", "lo ", "there, ", "this ", "is ", "an ", "agent. ", "It ", "speaks", "."]
TEXT = "".join(WORDS)
NUM_INTERRUPTIONS = 200


@pytest.fixture(autouse=True)
def loudspeaker(monkeypatch: pytest.MonkeyPatch) -> None:
    install_loudspeaker(monkeypatch)


@pytest.fixture
def under_test(tmp_path: Path) -> Iterator[VoiceUnderTest]:
    with voice_under_test("in process", tmp_path) as under_test:
        yield under_test


def open_stream(under_test: VoiceUnderTest, **options: Any) -> tuple[Any, Any]:
    from RealtimeTTS import TextToAudioStream

    from vivace.integrations.realtimetts import VivaceEngine

    engine = VivaceEngine(under_test.voice, **options)  # type: ignore[arg-type]
    return TextToAudioStream(engine, log_characters=False), engine


def test_words_of_a_generator_are_spoken_while_it_runs(
    under_test: VoiceUnderTest, tmp_path: Path
) -> None:
    stream, engine = open_stream(under_test, voice="heart", seed=7)
    assert engine.engine_name == "vivace"
    assert engine.get_stream_info() == (8, 1, 24_000)
    assert engine.get_voices() == ["heart", "michael"]
    is_heard = threading.Event()

    def words() -> Iterator[str]:
        yield from WORDS[:-1]
        assert is_heard.wait(LIMIT_S), "nothing is spoken before the text ends"
        yield WORDS[-1]

    stream.feed(words())
    chunks: list[bytes] = []

    def on_chunk(chunk: bytes) -> None:
        chunks.append(chunk)
        is_heard.set()

    stream.play(on_audio_chunk=on_chunk, output_wavfile=str(tmp_path / "out.wav"))
    assert len(b"".join(chunks)) == len(PyAudio.played) == 25 * 1_920 * 2
    assert np.abs(np.frombuffer(bytes(PyAudio.played), np.int16)).max() > 10_000
    with wave.open(str(tmp_path / "out.wav")) as file:
        assert (file.getnframes(), file.getframerate()) == (25 * 1_920, 24_000)
    assert stream.text() == TEXT
    assert under_test.is_free
    stream.feed(TEXT)  # the next turn
    stream.play()
    assert len(PyAudio.played) == 2 * 25 * 1_920 * 2


def test_stop_ends_the_speech_and_frees_the_slot(under_test: VoiceUnderTest) -> None:
    under_test.speak_at_length(0.001)
    stream, _ = open_stream(under_test)
    stream.feed(iter(WORDS))
    stream.play_async()
    wait_until(lambda: len(PyAudio.played) > 0, LIMIT_S)
    stream.stop()
    wait_until(lambda: under_test.is_free, LIMIT_S)
    assert len(PyAudio.played) < 5_000 * 1_920 * 2
    under_test.speak_briefly()
    PyAudio.played.clear()
    stream.feed(TEXT)
    stream.play()
    assert len(PyAudio.played) == 25 * 1_920 * 2


def test_whole_sentences_call_the_callbacks_of_realtimetts(under_test: VoiceUnderTest) -> None:
    pytest.importorskip("stream2sentence")
    stream, engine = open_stream(under_test, live=False)
    assert not engine.can_consume_generators
    spoken: list[str] = []
    stream.feed("The first sentence is here. And this is the second one.")
    stream.play(
        on_sentence_synthesized=spoken.append,
        tokenizer="rule-based",  # the others download data
        fast_sentence_fragment=False,
    )
    assert spoken == ["The first sentence is here.", "And this is the second one."]
    assert len(PyAudio.played) == len(spoken) * 25 * 1_920 * 2


def test_invalid_voices_and_options_are_rejected(under_test: VoiceUnderTest) -> None:
    _, engine = open_stream(under_test)
    with pytest.raises(UnknownVoiceError, match="no voice named 'nobody'"):
        engine.set_voice("nobody")
    engine.set_voice("heart")
    engine.set_voice_parameters(speed=1.0, seed=3)
    with pytest.raises(ValueError, match="no option was given"):
        engine.set_voice_parameters()
    engine.set_voice_parameters(tempo=2)
    with pytest.raises(ValueError, match="no option named tempo"):
        engine.synthesize(TEXT)


def test_text_above_the_limit_raises_after_the_audio_before_it(under_test: VoiceUnderTest) -> None:
    under_test.backend.default = Plan(50)
    stream, _ = open_stream(under_test, max_text_chars=500)
    stream.feed("and on " for _ in iter(int, 1))
    with pytest.raises(TextTooLongError, match="the limit is 500"):
        stream.play()
    assert under_test.is_free


def test_word_timings_arrive_with_the_audio() -> None:
    with TTS.load("mini") as tts:
        under_test = VoiceUnderTest(tts, ScriptedSpeech())
        stream, engine = open_stream(under_test, timings=True, seed=7)
        assert engine.provides_word_timings
        timings: list[Any] = []
        stream.on_word_spoken = timings.append
        stream.feed(iter(WORDS))
        stream.play()
    assert [timing.word for timing in timings] == TEXT.split()[: len(timings)]
    assert len(timings) >= 4  # the player reports one per block
    assert timings[-1].end_time <= len(PyAudio.played) / 48_000 + 0.1


def has_played_more(num_bytes: int) -> bool:
    return len(PyAudio.played) > num_bytes


def test_interruptions_at_random_times_free_all_slots(
    under_test: VoiceUnderTest, record_property: Callable[[str, object], None]
) -> None:
    record_property("interruptions", NUM_INTERRUPTIONS)
    under_test.speak_at_length(0.0005)
    stream, _ = open_stream(under_test)
    chance = random.Random(15)
    for _ in range(NUM_INTERRUPTIONS):
        words = WORDS[: chance.randrange(1, len(WORDS) + 1)]
        stream.feed(iter(words))
        stream.play_async()
        if chance.random() < 0.3:
            before = len(PyAudio.played)
            wait_until(partial(has_played_more, before), LIMIT_S)
        else:
            time.sleep(chance.random() / 50)
        stream.stop()
    wait_until(lambda: under_test.is_free, LIMIT_S)
    under_test.speak_briefly()
    PyAudio.played.clear()
    stream.feed(TEXT)
    stream.play()
    assert len(PyAudio.played) == 25 * 1_920 * 2
