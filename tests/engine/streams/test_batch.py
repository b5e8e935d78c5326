"""Batches: a list of texts is spoken concurrently, and each text as it would be alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.recording_backend import watch_widths
from vivace import TTS
from vivace.backends.base import Frames
from vivace.backends.eager import EagerBackend
from vivace.errors import BatchError, NumericError, RequestError, UnknownVoiceError

TEXTS = ["One text.", "Another text, which is longer.", "The third.", "And the last of them."]
OPTIONS: dict[str, Any] = {"seed": 5, "min_frames": 6, "max_frames": 12}


@pytest.fixture(scope="module")
def alone(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as loaded:
        yield loaded


@pytest.fixture
def together(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TTS]:
    """A backend whose batched step costs as much as a single one."""
    monkeypatch.setattr(
        "vivace.engine.checkpoints.loading.build_backend",
        lambda name, model, codec, room: EagerBackend(model, codec, max_streams=3, pass_rows=4),
    )
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as loaded:
        assert loaded.engine.num_together == 3
        yield loaded


def test_batch_equals_each_text_spoken_alone(alone: TTS) -> None:
    expected = [alone.speak(text, voice="ryan", **OPTIONS) for text in TEXTS]
    assert alone.speak(TEXTS, voice="ryan", **OPTIONS) == expected
    assert alone.speak(tuple(TEXTS), voice="ryan", **OPTIONS) == expected
    assert {audio.usage.seed for audio in expected} == {5}


@pytest.mark.ci
def test_texts_of_a_batch_share_turns_with_equal_audio(
    together: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**OPTIONS, "min_frames": 20, "max_frames": 20}  # three turns
    expected = [together.speak(text, **options) for text in TEXTS]
    widths = watch_widths(together, monkeypatch, 3)
    made = together.speak(TEXTS, **options)
    assert max(widths) == 3, widths
    for audio, other in zip(made, expected, strict=True):
        assert np.array_equal(audio.codes, other.codes)
        assert np.allclose(audio.samples, other.samples, atol=5e-5)


def test_texts_without_seed_draw_their_own_seeds(alone: TTS) -> None:
    audios = alone.speak(["Same.", "Same."], max_frames=4)
    assert audios[0].usage.seed != audios[1].usage.seed


def test_empty_batch_returns_an_empty_list(alone: TTS) -> None:
    assert alone.speak([]) == []


def break_longest(tts: TTS, monkeypatch: pytest.MonkeyPatch, num_ids: int) -> None:
    """Return NaN samples for the utterance with the longest prompt."""
    backend: Any = tts.engine.backend
    admit, render, broken = backend.admit, backend.render, set()

    def watched_admit(prompt: Any, sampling: Any) -> int:
        slot: int = admit(prompt, sampling)
        if len(prompt) >= num_ids:
            broken.add(slot)
        return slot

    def broken_render(slots: Sequence[int], frames: Frames) -> list[Any]:
        rendered = render(slots, frames)
        return [
            np.full_like(samples, np.nan) if slot in broken else samples
            for slot, samples in zip(slots, rendered, strict=True)
        ]

    monkeypatch.setattr(backend, "admit", watched_admit)
    monkeypatch.setattr(backend, "render", broken_render)


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("kind", ["alone", "together"])
def test_failed_text_is_named_and_others_are_returned(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    tts: TTS = request.getfixturevalue(kind)
    expected = [tts.speak(text, **OPTIONS) for text in TEXTS]
    break_longest(tts, monkeypatch, 30)
    with pytest.raises(
        BatchError, match=r"1 of 4 texts failed; text 1 of the batch: .*finite"
    ) as e:
        tts.speak(TEXTS, **OPTIONS)
    assert isinstance(e.value.errors[1], NumericError)
    assert list(e.value.errors) == [1]
    assert e.value.audios[1] is None
    for number in (0, 2, 3):
        assert np.array_equal(e.value.audios[number].codes, expected[number].codes)
    assert tts.engine.num_running == tts.engine.num_waiting == 0


def test_invalid_text_is_rejected_by_index_before_any_step(
    alone: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alone.engine.backend, "admit", lambda *_: pytest.fail("it ran"))
    with pytest.raises(RequestError, match="text 2 of the batch: the text is empty"):
        alone.speak(["One.", "Two.", " "])
    with pytest.raises(RequestError, match="texts of a batch must be strings, not int"):
        alone.speak(["One.", 2])  # type: ignore[list-item]
    with pytest.raises(UnknownVoiceError, match="nobody"):
        alone.speak(["One."], voice="nobody")


def test_interrupt_of_a_batch_frees_all_slots(
    together: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(num_done: int, num_texts: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vivace.engine.synthesizer.show_batch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        together.speak(TEXTS * 5, progress=True, **OPTIONS)
    assert together.engine.num_running == together.engine.num_waiting == 0
    assert together.speak("Again.", **OPTIONS).usage.frames >= 6


def test_progress_of_a_batch_counts_texts(alone: TTS, capsys: pytest.CaptureFixture[str]) -> None:
    alone.speak(["One.", "Two."], progress=True, seed=1, max_frames=2)
    assert capsys.readouterr().err == "\r1 of 2 texts\r2 of 2 texts\n"


@pytest.mark.parametrize("texts", [["One.", "Two."], ("One.",), []])
def test_stream_rejects_a_list(alone: TTS, texts: Any) -> None:
    with pytest.raises(RequestError, match=r"only speak accepts a list, .*iter\(pieces\)"):
        alone.stream(texts)


def test_iterator_is_spoken_as_one_text(alone: TTS) -> None:
    live = alone.speak(iter(["One ", "text."]), **OPTIONS)
    whole = alone.speak("One text.", text_layout="streamed", **OPTIONS)
    assert np.array_equal(live.codes, whole.codes)
