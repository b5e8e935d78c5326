"""Utterances as messages: what a client submits, and what the engine publishes."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from vivace.engine.turn_report import TurnReport
from vivace.engine.utterances.frame_block import FrameBlock
from vivace.engine.utterances.timings import Found, TimedFrames
from vivace.engine.utterances.utterance import Utterance
from vivace.prompt import Prompt
from vivace.remote.errors import dump_error, load_error
from vivace.remote.wire import LENGTH, Array, Buffer, array_bytes
from vivace.speech import FinishReason, SamplingParams
from vivace.timing.words import IdSpan, WordSpan

# Utterance, flags, final frames, text ids, parts of a live text, retries, published items, admit_ms
UPDATE = struct.Struct("<IBIIIIId")
ITEM = struct.Struct("<IIIBI")  # frames, codebooks, samples, end, stalled frames
DROPPED = 255  # as the end of an item: the frames from that number on are dropped
REASONS: tuple[FinishReason | None, ...] = (None, *get_args(FinishReason))
NEEDS_TEXT, IS_OVER, IS_OVER_BUDGET, HAS_TAIL = 1, 2, 4, 8
SAMPLE = np.dtype(np.float32)
CODE = np.dtype(np.int64)


# -- prompts -----------------------------------------------------------------------------------


def dump_prompt(prompt: Prompt) -> tuple[dict[str, Any], list[Array]]:
    """The fields and arrays of a prompt, without its labels. The engine does not read labels."""
    values = _fields(prompt)
    del values["labels"]
    arrays = [values.pop("codes"), values.pop("speaker"), values.pop("reference")]
    values["has"] = [array is not None for array in arrays]
    return values, [array for array in arrays if array is not None]


def load_prompt(values: dict[str, Any], arrays: Sequence[Array]) -> Prompt:
    left, has = iter(arrays), values.pop("has")
    codes, speaker, reference = (next(left) if one else None for one in has)
    for name in ("text_ids", "trailing_ids"):
        values[name] = tuple(values[name])
    assert codes is not None
    labels = ("",) * len(codes)
    return Prompt(codes=codes, labels=labels, speaker=speaker, reference=reference, **values)


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, without the deep copy of `dataclasses.asdict`."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def dump_submission(utterance: Utterance) -> tuple[dict[str, Any], list[Array]]:
    prompt, arrays = dump_prompt(utterance.prompt)
    values = {
        "prompt": prompt,
        "sampling": _fields(utterance.sampling),
        "checks_words": utterance.follower is not None,
        "reports_turns": utterance.on_turn is not None,
        "num_text_ids": utterance.num_text_ids,
        "is_text_complete": utterance.is_text_complete,
        "is_guarded": utterance.is_guarded,
        "has_budget": utterance.has_budget,
        "is_continued": utterance.is_continued,
    }
    return values, arrays


def load_sampling(values: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**values)


# -- updates -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckedWords:
    """The `WordCheck` of an utterance that was followed in the engine's process."""

    is_useful: bool
    lost: set[int]
    doubtful: set[int]
    unreached: tuple[int, ...]


@dataclass(slots=True, eq=False)
class PublishedUtterance:
    """The host's view of an utterance: sends what changed since the last update."""

    number: int  # the client's
    utterance: Utterance
    turns: list[TurnReport] = dataclasses.field(default_factory=list)
    _sent: tuple[object, ...] = ()
    is_over: bool = False  # the last update was taken

    def take_update(self) -> list[Buffer]:
        """The buffers of an update; none if nothing has changed.

        The engine's thread writes the fields meanwhile. They are read in the order in which they
        depend on each other: a state first, then the frames that it implies.
        """
        one = self.utterance
        num_texts, is_over, needs_text = one.num_texts, one.is_over, one.needs_text
        num_final = one.num_final
        items = _take_all(one)
        turns, self.turns = self.turns, []
        state = (num_final, one.num_text_ids, num_texts, one.num_retries, needs_text, is_over)
        if not items and not turns and state == self._sent:
            return []
        self._sent, self.is_over = state, is_over
        tail = _dump_tail(one, turns, is_over=is_over)
        flags = NEEDS_TEXT * needs_text | IS_OVER * is_over
        flags |= IS_OVER_BUDGET * one.is_over_budget | HAS_TAIL * bool(tail)
        head = UPDATE.pack(self.number, flags, *state[:4], len(items), one.admit_ms)
        buffers: list[Buffer] = [head]
        for item in items:
            buffers += _dump_item(item)
        return buffers + tail


def _take_all(utterance: Utterance) -> list[FrameBlock | int]:
    items, published = list[FrameBlock | int](), utterance.published
    while published:
        items.append(published.popleft())
    return items


def _dump_item(item: FrameBlock | int) -> list[Buffer]:
    if isinstance(item, int):
        return [ITEM.pack(item, 0, 0, DROPPED, 0)]
    end = REASONS.index(item.finish_reason)
    frames, codebooks = item.codes.shape
    head = ITEM.pack(frames, codebooks, len(item.samples), end, item.num_stalled)
    return [head, array_bytes(item.codes), array_bytes(item.samples)]


def _dump_tail(utterance: Utterance, turns: Sequence[TurnReport], *, is_over: bool) -> list[Buffer]:
    """Rare values as JSON: the end of the utterance, and reports of turns."""
    values: dict[str, Any] = {}
    if turns:
        values["turns"] = [dataclasses.astuple(turn) for turn in turns]
    if is_over:
        values["finish_reason"] = utterance.finish_reason
        if utterance.error is not None:
            values["error"] = dump_error(utterance.error)
        if (check := utterance.follower) is not None:
            ids = [sorted(check.lost), sorted(check.doubtful), list(check.unreached)]
            values["check"] = [check.is_useful, *ids]
    text = json.dumps(values).encode() if values else b""
    return [LENGTH.pack(len(text)), text] if text else []


def apply_updates(content: memoryview, utterances: dict[int, Utterance]) -> None:
    """Write the published fields of the client's utterances, and wake their readers.

    Utterances that the client has released are skipped, and those that are over are removed.
    """
    for number, update in _read_updates(content):
        if (one := utterances.get(number)) is None:
            continue
        update.apply(one)
        if update.is_over:
            utterances.pop(number, None)
            one.wake()
        else:
            one.wake_if_ready()


@dataclass(slots=True)
class _Update:
    values: tuple[Any, ...]  # of `UPDATE`
    items: list[FrameBlock | int]
    tail: dict[str, Any]

    @property
    def is_over(self) -> bool:
        return bool(self.values[1] & IS_OVER)

    def apply(self, one: Utterance) -> None:
        _, flags, num_final, num_text_ids, num_texts, num_retries, _, admit_ms = self.values
        one.published.extend(self.items)
        one.num_text_ids, one.num_retries, one.admit_ms = num_text_ids, num_retries, admit_ms
        one.is_over_budget = bool(flags & IS_OVER_BUDGET)
        if one.on_turn is not None:
            for waits_s, *turn in self.tail.get("turns", ()):
                one.on_turn(TurnReport(tuple(waits_s), *turn))
        if "check" in self.tail:
            is_useful, lost, doubtful, unreached = self.tail["check"]
            one.checked = CheckedWords(is_useful, set(lost), set(doubtful), tuple(unreached))
        if "error" in self.tail:
            one.error = load_error(self.tail["error"])
        one.num_final = num_final
        one.finish_reason = self.tail.get("finish_reason")
        one.mirror(needs_text=bool(flags & NEEDS_TEXT), is_over=self.is_over)
        one.num_texts = num_texts  # last: from here on the reader uses `needs_text`


def _read_updates(content: memoryview) -> Iterator[tuple[int, _Update]]:
    start = 0
    while start < len(content):
        values = UPDATE.unpack_from(content, start)
        start += UPDATE.size
        items = list[FrameBlock | int]()
        for _ in range(values[6]):
            item, start = _read_item(content, start)
            items.append(item)
        tail: dict[str, Any] = {}
        if values[1] & HAS_TAIL:
            (length,) = LENGTH.unpack_from(content, start)
            start += LENGTH.size
            tail = json.loads(bytes(content[start : start + length]))
            start += length
        yield values[0], _Update(values, items, tail)


def _read_item(content: memoryview, start: int) -> tuple[FrameBlock | int, int]:
    frames, codebooks, num_samples, end, num_stalled = ITEM.unpack_from(content, start)
    start += ITEM.size
    if end == DROPPED:
        return frames, start
    codes = np.frombuffer(content, CODE, frames * codebooks, start).reshape(frames, codebooks)
    start += codes.nbytes
    samples = np.frombuffer(content, SAMPLE, num_samples, start)
    return FrameBlock(codes, samples, REASONS[end], num_stalled), start + samples.nbytes


# -- word timings ------------------------------------------------------------------------------


def dump_frames(frames: TimedFrames) -> tuple[dict[str, Any], list[Array]]:
    values = {
        "spans": [(span.word, span.begin, span.end) for span in frames.spans],
        "num_ids": frames.num_ids,
        "new_ids": list(frames.new_ids),
        "is_text_complete": frames.is_text_complete,
        "is_last": frames.is_last,
    }
    return values, [frames.codes, frames.samples]


def load_frames(values: dict[str, Any], arrays: Sequence[Array]) -> TimedFrames:
    spans = [IdSpan(*span) for span in values.pop("spans")]
    codes, samples = arrays
    return TimedFrames(codes=codes, samples=samples, spans=spans, **values)


def dump_found(found: Found) -> list[tuple[int, float, float]] | None:
    return None if found is None else [(word.word, word.start, word.end) for word in found]


def load_found(values: list[tuple[int, float, float]] | None) -> Found:
    return None if values is None else [WordSpan(*word) for word in values]
