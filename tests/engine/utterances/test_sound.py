"""NaN samples fail their own request, and silent speech is not a success."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.recording_backend import stop_after
from tests.support.slots import plain_backend
from vivace import TTS
from vivace.backends.base import Frames
from vivace.errors import NumericError, RunawayError

TEXT = "Hello there, said the user."


@pytest.fixture
def tts(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as loaded:
        yield loaded


def change_sound(
    tts: TTS, monkeypatch: pytest.MonkeyPatch, change: Callable[[int, Any], Any]
) -> None:
    render = plain_backend(tts).render

    def changed(slots: Sequence[int], frames: Frames) -> list[Any]:
        rendered = render(slots, frames)
        return [change(slot, samples) for slot, samples in zip(slots, rendered, strict=True)]

    monkeypatch.setattr(tts.engine.backend, "render", changed)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_samples_fail_only_their_request(
    tts: TTS, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"min_frames": 12, "max_frames": 12, "chunk_frames": 3}
    expected = np.concatenate([chunk.samples for chunk in tts.stream(TEXT, seed=1, **options)])
    good = tts.stream(TEXT, seed=1, **options)
    received = [next(good).samples]
    bad = tts.stream(TEXT, seed=2, **options)
    next(bad)
    last = max(tts.engine.backend._slots)  # type: ignore[attr-defined]

    def spoil(slot: int, samples: Any) -> Any:
        if slot == last:
            samples[-1] = value
        return samples

    change_sound(tts, monkeypatch, spoil)
    with pytest.raises(NumericError, match="samples stopped being finite at frame 3"):
        next(bad)
    received += [chunk.samples for chunk in good]
    assert np.array_equal(np.concatenate(received), expected)
    assert tts.engine.num_running == 0


def test_silent_speech_is_repeated_then_raises(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    said = stop_after(tts, monkeypatch, 5)
    change_sound(tts, monkeypatch, lambda slot, samples: np.zeros_like(samples))
    with pytest.raises(RunawayError, match="silent, twice"):
        tts.speak(TEXT, min_frames=100)
    assert said.num_prompts == 2


def test_silent_first_attempt_is_replaced(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(tts, monkeypatch, 5)
    change_sound(tts, monkeypatch, lambda slot, samples: samples * (slot > 0))
    audio = tts.speak(TEXT, min_frames=100)
    assert audio.finish_reason == "stop"
    assert audio.samples.any()


def test_silence_with_given_seed_is_returned_as_stall(
    tts: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(tts, monkeypatch, 5)
    change_sound(tts, monkeypatch, lambda slot, samples: np.zeros_like(samples))
    audio = tts.speak(TEXT, seed=1, min_frames=100)
    assert audio.finish_reason == "stall"
    assert len(audio.samples) == 5 * 1920
    assert list(tts.stream(TEXT, seed=1, min_frames=100))[-1].finish_reason == "stall"
    assert tts.speak(TEXT, seed=1, min_frames=100, guard=False).finish_reason == "stop"


def test_single_audible_frame_counts_as_speech(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(tts, monkeypatch, 5)
    count = iter(range(1000))
    change_sound(tts, monkeypatch, lambda slot, samples: samples * (next(count) == 2))
    stream = tts.stream(TEXT, seed=1, min_frames=100, chunk_frames=1)
    assert list(stream)[-1].finish_reason == "stop"
