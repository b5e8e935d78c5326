"""Wraps a backend to record the text ids it is given and to end utterances where a test wants."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from threading import Event
from typing import Any

import numpy as np
import pytest

from vivace import TTS
from vivace.audio.clip import Audio, AudioChunk
from vivace.backends.base import Frames
from vivace.engine.streams.stream import Stream
from vivace.prompt import Prompt

TEXT_ROWS = ("text", "text; speech begins")


@dataclass
class Watch:
    prompts: list[Prompt] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)  # of the text, by prompt
    forgotten: array[int] = field(default_factory=lambda: array("i"))

    @property
    def num_prompts(self) -> int:
        return len(self.prompts)

    def forget(self) -> None:
        """Keep ids only, in little memory."""
        self.forgotten.extend(one for ids in self.ids for one in ids)
        self.ids, self.prompts = [[] for _ in self.ids], []

    def all_ids(self) -> list[int]:
        return [*self.forgotten, *(one for ids in self.ids for one in ids)]

    def texts(self, tts: TTS) -> list[str]:
        """The texts of the prompts, decoded from the ids."""
        tokenizer = tts.tokenizer
        return [tokenizer.decode(ids) for ids in self.ids]


def text_ids(prompt: Prompt, eos_id: int) -> list[int]:
    """The ids of the text itself, without its end."""
    rows = zip(prompt.text_ids, prompt.labels, strict=True)
    ids = [text_id for text_id, label in rows if label in TEXT_ROWS]
    return [*ids, *(one for one in prompt.trailing_ids if one not in (eos_id, prompt.pad_id))]


def stop_after(
    tts: TTS, monkeypatch: pytest.MonkeyPatch, num_frames: int, *, once_text_is_in: bool = False
) -> Watch:
    """Every utterance ends by itself after so many frames, with live text after its end."""
    backend: Any = tts.engine.backend
    watch, left, waiting = Watch(), {}, set()
    index: dict[int, int] = {}
    eos_id = tts.checkpoint.config.tts_eos_token_id
    admit, extend, step = backend.admit, backend.extend, backend.step

    def watched_admit(prompt: Prompt, sampling: Any) -> int:
        slot: int = admit(prompt, sampling)
        left[slot], index[slot] = num_frames, len(watch.ids)
        watch.prompts.append(prompt)
        watch.ids.append(text_ids(prompt, eos_id))
        if once_text_is_in and not prompt.is_complete:
            waiting.add(slot)
        return slot

    def watched_extend(slot: int, ids: Sequence[int], is_last: bool) -> None:
        watch.ids[index[slot]] += ids
        if is_last:
            waiting.discard(slot)
        extend(slot, ids, is_last)

    def short_step(slots: Sequence[int], count: int) -> Frames:
        (slot,) = slots
        if slot in waiting:
            return step(slots, count)
        frames = step(slots, min(count, left[slot]))
        left[slot] -= frames.lengths[0]
        return frames if left[slot] else Frames(frames.codes, frames.lengths, ("stop",))

    monkeypatch.setattr(backend, "admit", watched_admit)
    monkeypatch.setattr(backend, "extend", watched_extend)
    monkeypatch.setattr(backend, "step", short_step)
    return watch


def watch_widths(tts: TTS, monkeypatch: pytest.MonkeyPatch, num_readers: int) -> list[int]:
    """How many utterances each step makes; the first waits until so many readers have asked."""
    widths: list[int] = []
    asked: set[int] = set()
    all_asked = Event()
    engine: Any = tts.engine
    step, request = engine.backend.step, engine.request

    def watched_request(utterance: Any, num_read: int, num_wanted: int) -> None:
        request(utterance, num_read, num_wanted)
        asked.add(id(utterance))
        if len(asked) == num_readers:
            all_asked.set()

    def watched_step(slots: Sequence[int], num_frames: int) -> Frames:
        assert all_asked.wait(60)
        widths.append(len(slots))
        return step(slots, num_frames)

    monkeypatch.setattr(engine, "request", watched_request)
    monkeypatch.setattr(engine.backend, "step", watched_step)
    return widths


def interleave(streams: Sequence[Stream], order: Random) -> list[list[AudioChunk]]:
    """All chunks of several streams, read in any order."""
    made: list[list[AudioChunk]] = [[] for _ in streams]
    waiting = dict(enumerate(streams))
    while waiting:
        number = order.choice(sorted(waiting))
        if (chunk := next(waiting[number], None)) is None:
            del waiting[number]
        else:
            made[number].append(chunk)
    return made


def assert_same_audio(chunks: Sequence[AudioChunk], audio: Audio, atol: float) -> None:
    assert np.array_equal(np.concatenate([chunk.codes for chunk in chunks]), audio.codes)
    samples = np.concatenate([chunk.samples for chunk in chunks])
    assert samples.shape == audio.samples.shape
    assert np.allclose(samples, audio.samples, rtol=0, atol=atol)
