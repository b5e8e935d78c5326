"""`verify=True`: speech is transcribed and compared with its text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.scripted_attention import FollowedBackend
from vivace import TTS
from vivace.checkpoint_files import checked
from vivace.errors import CheckpointError, RequestError
from vivace.recogniser import (
    MAX_WINDOW_S,
    RECOGNISER_RATE,
    Recogniser,
    Verifier,
    check_recogniser,
    windows,
    word_error_rate,
)

TEXT = "Seven grey herons stood beside the old canal."


@pytest.fixture(scope="module")
def loaded() -> Iterator[TTS]:
    with FollowedBackend().load() as tts:
        yield tts


@pytest.fixture
def tts(loaded: TTS, monkeypatch: pytest.MonkeyPatch) -> TTS:
    """A TTS with a recogniser that always returns the same transcript."""
    monkeypatch.setattr("vivace.engine.synthesizer.check_recogniser", lambda: None)
    transcript = "Seven grey herons beside a canal"
    loaded.synthesizer._verifier = Verifier(lambda: lambda samples, rate: transcript)
    return loaded


@pytest.mark.parametrize(
    ("text", "transcript", "expected"),
    [
        ("One two three four.", "one two, three four", 0.0),
        ("One two three four.", "one two four", 0.25),
        ("One two three four.", "one two three three four", 0.25),
        ("One two three four.", "one tow three four", 0.25),
        ("It costs $5.", "It costs five dollars.", 0.0),
        ("Don't stop.", "dont stop", 0.0),
        ("Yes.", "", 1.0),
    ],
)
def test_word_error_rate_counts_edits_per_word(text: str, transcript: str, expected: float) -> None:
    assert word_error_rate(text, transcript) == pytest.approx(expected)


def test_verified_speech_has_a_transcript_and_its_error_rate(tts: TTS) -> None:
    audio = tts.speak(TEXT, seed=1, verify=True)
    assert audio.transcript == "Seven grey herons beside a canal"
    assert audio.word_error_rate == pytest.approx(3 / 8)
    assert audio == tts.speak(TEXT, seed=1)


def test_speech_without_verify_has_no_transcript(tts: TTS) -> None:
    audio = tts.speak(TEXT, seed=1)
    assert (audio.transcript, audio.word_error_rate) == (None, None)


def test_every_text_of_a_batch_is_verified(tts: TTS) -> None:
    audios = tts.speak([TEXT, "Seven grey herons beside a canal."], seed=1, verify=True)
    assert [audio.word_error_rate for audio in audios] == [pytest.approx(3 / 8), 0.0]


def test_verification_does_not_block_the_event_loop(tts: TTS) -> None:
    is_free = Event()

    def recognise(samples: np.ndarray, rate: int) -> str:
        assert is_free.wait(60)
        return TEXT

    tts.synthesizer._verifier = Verifier(lambda: recognise)

    async def main() -> float | None:
        task = asyncio.create_task(tts.aspeak(TEXT, seed=1, verify=True))
        asyncio.get_running_loop().call_later(0.05, is_free.set)  # needs a free loop
        return (await task).word_error_rate

    assert asyncio.run(main()) == 0.0


def test_failed_recogniser_raises_its_error(tts: TTS) -> None:
    def fail(samples: np.ndarray, rate: int) -> str:
        raise CheckpointError("damaged weights")

    tts.synthesizer._verifier = Verifier(lambda: fail)
    with pytest.raises(CheckpointError, match="damaged weights"):
        tts.speak(TEXT, verify=True)


def test_missing_extra_is_named_before_anything_is_spoken(
    loaded: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivace.recogniser.importlib.util.find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"pip install '\.\[quality\]'"):
        check_recogniser()
    backend = loaded.engine.backend
    assert isinstance(backend, FollowedBackend)
    num_admitted = len(backend.admitted)
    with pytest.raises(RequestError, match="faster_whisper"):
        loaded.speak(TEXT, verify=True)
    assert len(backend.admitted) == num_admitted


def test_other_languages_are_rejected(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivace.engine.synthesizer.check_recogniser", lambda: None)
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as tts:
        for language in ("chinese", "auto"):
            with pytest.raises(RequestError, match="verify reads English"):
                tts.speak("Hello.", language=language, verify=True)


def test_weights_with_another_digest_are_rejected(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(b"other")
    with pytest.raises(CheckpointError, match="SHA-256"):
        checked(file, "0" * 64)


@pytest.mark.slow
def test_recogniser_transcribes_the_embedded_voice(embedded: TTS) -> None:
    try:
        check_recogniser()
    except RequestError as error:
        pytest.skip(str(error))
    audio = embedded.speak("The rain has stopped at last.", seed=1, verify=True)
    assert audio.word_error_rate is not None
    assert audio.word_error_rate <= 0.2


# -- long speech -------------------------------------------------------------------------------


def long_speech(*sentences_s: float) -> np.ndarray:
    """Sentences of noise with 0.5 s of silence after each."""
    noise, pause = np.random.default_rng(1), np.zeros(RECOGNISER_RATE // 2)
    parts = [(noise.normal(0, 0.1, round(s * RECOGNISER_RATE)), pause) for s in sentences_s]
    return np.concatenate([one for part in parts for one in part]).astype(np.float32)


@pytest.mark.parametrize("sentences_s", [(1.0,), (27.0,), (9.0, 8.0, 7.0, 9.0), (3.0,) * 40])
def test_long_speech_is_cut_in_pauses_into_windows_that_whisper_reads(
    sentences_s: tuple[float, ...],
) -> None:
    speech = long_speech(*sentences_s)
    found = list(windows(speech))
    np.testing.assert_array_equal(np.concatenate(found), speech)
    assert max(map(len, found)) <= MAX_WINDOW_S * RECOGNISER_RATE
    assert len(found) == 1 or len(speech) > MAX_WINDOW_S * RECOGNISER_RATE
    for window in found[:-1]:
        assert not window[-RECOGNISER_RATE // 10 :].any()


def test_speech_without_a_pause_is_cut_too() -> None:
    found = list(windows(long_speech(100.0)))
    assert max(map(len, found)) <= MAX_WINDOW_S * RECOGNISER_RATE


def test_transcript_of_long_speech_has_the_words_of_all_windows() -> None:
    class Model:
        def transcribe(self, window: np.ndarray, **_: object) -> tuple[list[object], None]:
            seconds = len(window) / RECOGNISER_RATE
            assert seconds <= MAX_WINDOW_S
            return [SimpleNamespace(text=f" {seconds:.1f}")], None

    recogniser = object.__new__(Recogniser)
    recogniser.model = Model()
    speech = long_speech(*[3.0] * 40)
    heard = recogniser(speech, RECOGNISER_RATE).split()
    assert sum(map(float, heard)) == pytest.approx(140.0, abs=0.1 * len(heard))
