"""The completeness check on the embedded voice: damage, false alarms and repairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.support.project import ROOT, load_script
from vivace import TTS
from vivace.engine.utterances.follower import MIN_SHARE

GuardedVoice = Any  # of benchmarks/guarded_voice.py

guarded = load_script(ROOT / "benchmarks" / "guarded_voice.py")

PARTS = ("The kettle was singing.", "Nobody had the heart to stop it.", "Then the lights went out.")
CONTROLS = ["removed sentence", "repeated sentence", "early end", "stall", "invented tail"]
CORRECT = [
    "Good evening, everyone.",
    "Where did you put the keys?",
    "The rain has stopped at last.",
    "Please close the door behind you.",
    "The train leaves in ten minutes.",
    "Bread, milk, eggs and cheese.",
    "We walked along the river.",
    "She had never seen the sea before.",
    "There is nothing to be afraid of.",
    "He opened the window and looked out.",
    "The soup was cold, but nobody complained.",
    "It took them three days to cross the desert.",
    "Every evening the old man fed the birds.",
    "I would rather stay at home tonight.",
    "The bridge was closed because of the storm.",
    "A small boat drifted slowly down the river.",
    "Their house stands at the end of the road.",
    "You should have told me about it earlier.",
    "The children were playing in the garden.",
    "Nobody knew who had written the letter.",
]
NUM_QUICK, NUM_CI = 3, 8  # sentences of a default run and of `.ci/run`


@dataclass(frozen=True)
class Speech:
    text: str
    codes: np.ndarray
    controls: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def voice(embedded: TTS) -> Iterator[object]:
    """A guarded voice. The backend's `step` is restored afterwards."""
    step = embedded.engine.backend.step  # type: ignore[attr-defined]
    yield guarded.GuardedVoice(embedded)
    embedded.engine.backend.step = step  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def speech(voice: GuardedVoice) -> Speech:
    text = " ".join(PARTS)
    spoken = voice.speak(text, 1, is_checked=False)
    encode = voice.tts.tokenizer.encode
    frames = guarded.arrivals(spoken.places, len(encode(text)), MIN_SHARE)
    first, end = (frames[len(encode(" ".join(PARTS[:count])))] for count in (1, 2))
    loudness = np.square(spoken.samples.reshape(len(spoken.codes), -1)).sum(1)
    quiet = spoken.codes[loudness.argmin()][None]
    controls = guarded.damage(spoken.codes, first, end, quiet, spoken.codes[first:end])
    return Speech(text, spoken.codes, controls)


def find_faults(voice: GuardedVoice, text: str, codes: np.ndarray) -> list[str]:
    places = voice.read_places(text, codes)
    return [fault.kind for fault in guarded.find_faults(voice.follower(text), places)]


def test_undamaged_codes_have_no_fault(voice: GuardedVoice, speech: Speech) -> None:
    assert find_faults(voice, speech.text, speech.codes) == []


@pytest.mark.parametrize("name", CONTROLS)
def test_damaged_codes_have_a_fault(voice: GuardedVoice, speech: Speech, name: str) -> None:
    assert set(speech.controls) == set(CONTROLS)
    assert find_faults(voice, speech.text, speech.controls[name])


@pytest.mark.parametrize(
    "index",
    [
        *range(NUM_QUICK),
        *(pytest.param(n, marks=pytest.mark.ci) for n in range(NUM_QUICK, NUM_CI)),
        *(pytest.param(n, marks=pytest.mark.slow) for n in range(NUM_CI, len(CORRECT))),
    ],
)
def test_correct_sentence_raises_no_alarm(voice: GuardedVoice, index: int) -> None:
    spoken = voice.speak(CORRECT[index], index, is_checked=True)
    assert (spoken.num_retries, spoken.missing, spoken.completeness) == (0, (), 1.0)


def test_induced_early_end_is_repaired(voice: GuardedVoice) -> None:
    text = CORRECT[1]
    whole = voice.speak(text, 3, is_checked=False)
    end_at = guarded.arrivals(whole.places, 8, MIN_SHARE)[-1]
    lost = voice.speak(text, 3, is_checked=False, end_at=end_at)
    assert len(lost.codes) == end_at
    spoken = voice.speak(text, 3, is_checked=True, end_at=end_at)
    assert spoken.num_retries >= 1
    assert spoken.missing == ()
    np.testing.assert_array_equal(spoken.codes[: end_at // 2], whole.codes[: end_at // 2])
    assert len(spoken.codes) == pytest.approx(len(whole.codes), rel=0.4)
