"""G11: runaway speech is ended in time, and every protocol reports an error.

Two kinds: repeated codes (a stall), and speech beyond its frame budget. The retry of a whole speech
is in `tests/serve/http/test_response.py`, what counts as a stall in
`tests/engine/utterances/test_guard.py`. The control is a server without the guard.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.client import IncompleteRead
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.soak_traffic import Remote, ask
from tests.reliability.test_drain_load import MARKED
from tests.reliability.test_midstream_error import SOCKETS, accepts_as_complete
from tests.reliability.test_server_faults import receive
from tests.support.figures import record, seed_of_round
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import wait_until
from vivace.backends.base import Frames, Slot, SlotStatus
from vivace.engine.utterances import utterance as utterance_module
from vivace.engine.utterances.guard import MIN_BUDGET, StallDetector, frame_budget
from vivace.prompt import Prompt
from vivace.serve.settings import ServeSettings
from vivace.speech import SamplingParams
from vivace.text.tokenizer import TextTokenizer

LIMIT_S = 60.0
FRAMES_AHEAD = 16  # that the engine may have made in advance
LONG = Plan(1_000)  # 80 s for "Hello."
RUNAWAYS = {"stall": Plan(never_ends=True), "budget": LONG}
BODY = {"input": "Hello.", "response_format": "pcm"}
PATH = "/v1/audio/speech"


@dataclass
class WatchedSpeech(ScriptedSpeech):
    """A backend that waits for text and records its longest speech."""

    longest: int = 0  # frames
    unfinished: set[Slot] = field(default_factory=set)  # the text is not complete

    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        slot = super().admit(prompt, sampling)
        if not prompt.is_complete:
            self.unfinished.add(slot)
        return slot

    def extend(self, slot: Slot, text_ids: Sequence[int], is_last: bool) -> None:
        if is_last:
            self.unfinished.discard(slot)

    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        frames = super().step(slots, num_frames)
        status: list[SlotStatus] = [
            "waiting" if slot in self.unfinished else one
            for slot, one in zip(slots, frames.status, strict=True)
        ]
        return Frames(frames.codes, frames.lengths, tuple(status))

    def release(self, slot: Slot) -> None:
        self.longest = max(self.longest, self.active_slots[slot].num_made)
        super().release(slot)


@pytest.fixture(scope="module")
def backend() -> WatchedSpeech:
    return WatchedSpeech()


@pytest.fixture(scope="module")
def server(backend: WatchedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    pytest.importorskip("wyoming")
    folder = tmp_path_factory.mktemp("voices")
    settings = ServeSettings(port=0, voices=folder, wyoming_port=0, drain_timeout_s=0.5)
    with running(settings, backend.load) as server:
        yield server


def ask_server(server: Running, **fields: Any) -> tuple[int, bytes]:
    return ask(Remote(server.port, 0), "POST", PATH, {**BODY, **fields})


def receive_wyoming(server: Running) -> bytes:
    assert server.server.wyoming_url is not None
    port = int(server.server.wyoming_url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
        line = json.dumps({"type": "synthesize", "data": {"text": "Hello."}})
        connection.sendall(line.encode() + b"\n")
        received = b""
        while part := connection.recv(65_536):
            received += part
            if b'"audio-stop"' in received:
                break
    return received


@pytest.fixture(params=list(RUNAWAYS))
def runaway(
    request: pytest.FixtureRequest, backend: WatchedSpeech, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WatchedSpeech]:
    monkeypatch.setattr(backend, "default", RUNAWAYS[request.param])
    monkeypatch.setattr(backend, "longest", 0)
    yield backend
    wait_until(lambda: backend.longest > 0 and not backend.active_slots)
    assert backend.longest <= MIN_BUDGET + FRAMES_AHEAD


def test_runaway_over_http_is_an_error_or_truncated(
    server: Running, runaway: WatchedSpeech
) -> None:
    assert receive(server.url, threading.Event()) == MARKED
    status, body = ask_server(server, stream=False)
    assert (status, json.loads(body)["error"]["code"]) == (500, "runaway")


def test_runaway_over_sse_is_an_error_event(server: Running, runaway: WatchedSpeech) -> None:
    with pytest.raises(IncompleteRead) as cut:
        ask_server(server, stream_format="sse")
    assert b'"runaway"' in cut.value.partial
    assert b"speech.audio.done" not in cut.value.partial
    assert b"[DONE]" not in cut.value.partial


@pytest.mark.parametrize("dialect", SOCKETS)
def test_runaway_over_a_socket_is_an_error(
    server: Running, runaway: WatchedSpeech, dialect: str
) -> None:
    assert not accepts_as_complete(server, dialect)


def test_runaway_over_wyoming_is_an_error_event(server: Running, runaway: WatchedSpeech) -> None:
    received = receive_wyoming(server)
    assert b'"error"' in received
    assert b'"audio-stop"' not in received


def test_control_engine_without_runaway_guard_is_detected(
    server: Running, backend: WatchedSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "default", LONG)
    monkeypatch.setattr(backend, "longest", 0)
    monkeypatch.setattr(utterance_module, "frame_budget", lambda num_text_ids: 10**9)
    monkeypatch.setattr(StallDetector, "observe", lambda *_: 0)
    status, audio = ask_server(server)
    assert (status, len(audio)) == (200, 1_000 * 3_840)
    assert accepts_as_complete(server, "omni")
    wait_until(lambda: backend.longest > MIN_BUDGET + FRAMES_AHEAD)


# -- budgets -------------------------------------------------------------------------------------

NUM_TEXTS = 10_000
FRAME_RATE = 12.5
SECONDS_A_LETTER = {  # of ordinary reading, including pauses
    "LATIN": 0.08,  # 150 words per minute
    "CYRILLIC": 0.08,
    "CJK": 0.24,
    "HIRAGANA": 0.14,
    "KATAKANA": 0.14,
    "HANGUL": 0.18,
}
SECONDS_A_DIGIT = 0.5  # "two hundred and thirty"


def script_of(token: str) -> str | None:
    """Return the script of a token of letters, with or without a leading space."""
    word = token.removeprefix(" ")
    if not word or not word.isalpha():
        return None
    scripts = {unicodedata.name(letter, "?").split()[0] for letter in word}
    return scripts.pop() if len(scripts) == 1 and scripts <= SECONDS_A_LETTER.keys() else None


def read_words(ranks: dict[bytes, int]) -> dict[str, list[str]]:
    """Return tokens by script, frequent tokens first (by the rank of their byte pairs)."""
    found: dict[str, list[str]] = {}
    for content in sorted(ranks, key=lambda content: ranks[content]):
        try:
            token = content.decode()
        except UnicodeDecodeError:
            continue
        if (script := script_of(token)) is not None:
            found.setdefault(script, []).append(token)
    return found


def some_text(words: list[str], weights: list[float], chance: random.Random) -> str:
    """Draw tokens with natural frequencies, and numbers now and then."""
    drawn = chance.choices(words, cum_weights=weights, k=chance.randint(1, 120))
    numbers = (f" {chance.randrange(10**6)}" if chance.random() < 0.05 else "" for _ in drawn)
    return "".join(word + number for word, number in zip(drawn, numbers, strict=True)).strip() + "."


def reading_frames(text: str) -> float:
    seconds = sum(SECONDS_A_DIGIT for letter in text if letter.isdigit())
    for letter in text:
        seconds += SECONDS_A_LETTER.get(unicodedata.name(letter, "?").split()[0], 0.0)
    return seconds * FRAME_RATE


@pytest.mark.slow  # reading the released vocabulary takes seconds
def test_frame_budget_is_at_least_1_5_times_the_reading_time(
    real_folder: Path, real_ranks: dict[bytes, int]
) -> None:
    tokenizer = TextTokenizer.from_folder(real_folder)
    by_script = read_words(real_ranks)
    assert by_script.keys() == SECONDS_A_LETTER.keys()
    weights = {
        script: list(accumulate(1 / (rank + 1) for rank in range(len(words))))
        for script, words in by_script.items()
    }
    chance, ratios = random.Random(seed_of_round()), dict[str, float]()
    for number in range(NUM_TEXTS):
        script = list(by_script)[number % len(by_script)]
        text = some_text(by_script[script], weights[script], chance)
        ratio = frame_budget(len(tokenizer.encode(text))) / reading_frames(text)
        ratios[script] = min(ratio, ratios.get(script, ratio))
    least = {f"least_{script.lower()}": round(ratio, 2) for script, ratio in ratios.items()}
    record("G11 budgets", cases=NUM_TEXTS, **least)
    assert min(ratios.values()) >= 1.5, ratios


def test_control_tight_frame_budget_is_detected() -> None:
    """Half the budget would cut off slow speakers."""
    text = "a" * 10 + " 123456" * 40
    assert frame_budget(7 * 40) / 2 < 1.5 * reading_frames(text)
