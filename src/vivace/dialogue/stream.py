"""Streams a dialogue. Samples are returned as soon as no later line can change them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vivace.audio.clip import AudioChunk
from vivace.audio.file_mark import FileMark
from vivace.audio.trim import find_sound
from vivace.dialogue.script import DialogueLine
from vivace.dialogue.talk import KEPT_S, LineSpacing, Samples
from vivace.speech import FinishReason, Usage, Word, join_words, move_words, stream_repr


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DialogueChunk(AudioChunk):
    """The next part of a dialogue, with all speakers mixed."""

    line: int  # index of the line of these codes and words
    speaker: str  # of that line


class LineStream(Protocol):
    """The part of the engine's `Stream` that a dialogue uses."""

    @property
    def usage(self) -> Usage: ...

    def __iter__(self) -> Iterator[AudioChunk]: ...

    def step(self) -> object:
        """Return a chunk, or another object if no chunk is ready."""

    def close(self) -> None: ...


class DialogueStream(Iterator[DialogueChunk]):
    """Iterator of the chunks of a dialogue. Closing or deleting it frees its slots."""

    def __init__(
        self,
        lines: Sequence[DialogueLine],
        speakers: Sequence[str],
        spacing: LineSpacing,
        open_line: Callable[[int], LineStream],
        *,
        sample_rate: int,
        looks_ahead: bool,
        mark: FileMark | None = None,
    ) -> None:
        """`looks_ahead`: generate the next line while the current one is read."""
        self._lines, self._speakers, self._spacing = lines, speakers, spacing
        self._open_line, self._rate, self._looks_ahead = open_line, sample_rate, looks_ahead
        self.mark = mark  # of a file with the dialogue
        self._streams: dict[int, LineStream] = {}
        self._early: dict[int, AudioChunk] = {}  # first chunks of lines that were started early
        self._mix = _Mix()
        self._ended: list[Usage] = []  # usage of each finished line
        self._began = time.perf_counter()
        self._first_audio_ms: float | None = None
        self._chunks = self._make()
        self.finish_reason: FinishReason | None = None

    def __repr__(self) -> str:
        return stream_repr(self, self.usage, self.finish_reason)

    def __next__(self) -> DialogueChunk:
        return next(self._chunks)

    def __enter__(self) -> DialogueStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the speech. Call it from the thread that reads the stream."""
        self.finish_reason = self.finish_reason or "cancelled"
        self._chunks.close()
        for stream in self._streams.values():
            stream.close()

    @property
    def usage(self) -> Usage:
        """Usage of all lines so far."""
        usages = [*self._ended, *(stream.usage for stream in self._streams.values())]
        return Usage.total(
            usages,
            audio_s=self._mix.num_taken / self._rate,
            wall_s=time.perf_counter() - self._began,
            first_audio_ms=self._first_audio_ms,
        )

    # -- lines -------------------------------------------------------------------------------

    def _make(self) -> Generator[DialogueChunk, None, None]:
        start = end = 0  # start of the last line's sound; end of all sound so far
        own_ends: dict[str, int] = {}
        reasons: list[FinishReason] = []
        for number, speaker in enumerate(self._speakers):
            earliest = max(start, end + self._gap(number), own_ends.get(speaker, 0))
            sound = _LineSound(self._lines[number], earliest, self._rate, self._mix)
            is_last = number + 1 == len(self._lines)
            for chunk in self._read(number):
                sound.add(chunk)
                if chunk.is_last:
                    reasons.append(chunk.finish_reason or "stop")
                final = [] if chunk.is_last else [sound.next]
                if not is_last:
                    next_start = max(sound.start, max(end, sound.end) + self._gap(number + 1))
                    final.append(next_start - round(KEPT_S * self._rate))
                elif chunk.is_last:
                    self.finish_reason = next((one for one in reasons if one != "stop"), "stop")
                yield self._chunk(chunk, sound.take_words(), number, min(final, default=None))
            start, own_ends[speaker] = sound.start, sound.end
            end = max(end, sound.end)

    def _gap(self, number: int) -> int:
        """Samples between the end of the previous sound and the start of this line's sound."""
        if not 0 < number < len(self._lines):
            return 0
        is_same = self._speakers[number - 1] == self._speakers[number]
        before, line = self._lines[number - 1 : number + 1]
        return round(self._spacing.gap_after(before, line, is_same=is_same) * self._rate)

    def _chunk(
        self, chunk: AudioChunk, words: tuple[Word, ...] | None, number: int, final: int | None
    ) -> DialogueChunk:
        start_s = self._mix.num_taken / self._rate
        samples = self._mix.take(final)
        if len(samples) and self._first_audio_ms is None:
            self._first_audio_ms = 1000 * (time.perf_counter() - self._began)
        return DialogueChunk(
            samples=samples,
            sample_rate=self._rate,
            start_s=start_s,
            is_last=self.finish_reason is not None,
            finish_reason=self.finish_reason,
            codes=chunk.codes,
            words=words,
            line=number,
            speaker=self._speakers[number],
            usage=None if self.finish_reason is None else self.usage,
        )

    def _read(self, number: int) -> Iterator[AudioChunk]:
        """Yield the chunks of a line. Start the next line after the first chunk."""
        stream = self._begin(number)
        try:
            if number in self._early:
                yield self._early.pop(number)
            for chunk in stream:
                if self._looks_ahead and number + 1 < len(self._lines):
                    self._begin_early(number + 1)
                yield chunk
        finally:
            parts = [*self._ended, stream.usage]
            self._ended = [Usage.total(parts, audio_s=0.0, wall_s=0.0, first_audio_ms=None)]
            self._streams.pop(number).close()

    def _begin(self, number: int) -> LineStream:
        if number not in self._streams:
            self._streams[number] = self._open_line(number)
        return self._streams[number]

    def _begin_early(self, number: int) -> None:
        if number not in self._streams:
            step = self._begin(number).step()  # submits the first utterance to the engine
            if isinstance(step, AudioChunk):
                self._early[number] = step


class _Mix:
    """Adds up samples of overlapping lines. Samples that were taken cannot change any more."""

    def __init__(self) -> None:
        self._samples = np.empty(0, np.float32)
        self.num_taken = 0

    def add(self, start: int, samples: Samples) -> None:
        begin = start - self.num_taken
        assert begin >= 0 or not len(samples)
        missing = begin + len(samples) - len(self._samples)
        if missing > 0:
            self._samples = np.concatenate((self._samples, np.zeros(missing, np.float32)))
        self._samples[begin : begin + len(samples)] += samples

    def take(self, end: int | None) -> Samples:
        """Take all samples before `end`, clipped to full scale."""
        count = len(self._samples) if end is None else max(0, end - self.num_taken)
        taken, self._samples = self._samples[:count], self._samples[count:]
        self.num_taken += len(taken)
        return np.clip(taken, -1, 1)


class _LineSound:
    """Adds a line to the mix once the start and end of its sound are known."""

    def __init__(self, line: DialogueLine, earliest: int, rate: int, mix: _Mix) -> None:
        self._earliest, self._rate, self._mix = earliest, rate, mix
        self._margin = round(KEPT_S * rate)
        begins_with_pause, self._ends_with_pause = line.has_pauses
        self._buffer = np.empty(0, np.float32)  # spare capacity, so that appending is cheap
        self._num_samples = 0
        self._first: int | None = 0 if begins_with_pause else None  # first audible sample
        self._last = self._num_laid = self._num_searched = 0
        self._words: tuple[Word, ...] | None = ()
        self._length_s = math.inf  # known when the line has ended

    @property
    def start(self) -> int:
        """Start of the sound in the dialogue, in samples."""
        return max(self._earliest, min(self._first or 0, self._margin))

    @property
    def end(self) -> int:
        return self.start + self._last - (self._first or 0)

    @property
    def next(self) -> int:
        """The earliest position in the dialogue of samples that are still to come."""
        if self._first is None:
            return self._earliest - self._margin
        return self.start - self._first + max(self._first - self._margin, 0, self._num_laid)

    @property
    def _samples(self) -> Samples:
        return self._buffer[: self._num_samples]

    def _append(self, samples: Samples) -> None:
        size = self._num_samples + len(samples)
        if size > len(self._buffer):
            grown = np.empty(max(size, 2 * len(self._buffer)), np.float32)
            grown[: self._num_samples] = self._samples
            self._buffer = grown
        self._buffer[self._num_samples : size] = samples
        self._num_samples = size

    def add(self, chunk: AudioChunk) -> None:
        self._append(chunk.samples)
        self._search(chunk.is_last)
        self._words = join_words((self._words, chunk.words))
        if self._first is None:
            return
        begin = max(0, self._first - self._margin)
        end = self._last + (self._margin if chunk.is_last else 0)
        new = self._samples[max(begin, self._num_laid) : end]
        self._mix.add(self.start - self._first + max(begin, self._num_laid), new)
        self._num_laid = max(begin, self._num_laid) + len(new)
        if chunk.is_last:
            self._length_s = (self._num_laid - begin) / self._rate

    def take_words(self) -> tuple[Word, ...] | None:
        """Return the new words, in seconds of the dialogue."""
        if self._words is None or self._first is None:
            return None if self._words is None else ()
        words, self._words = self._words, ()
        begin = max(0, self._first - self._margin)
        own = move_words(words, -begin / self._rate, self._length_s)
        return move_words(own, (self.start - self._first + begin) / self._rate)

    def _search(self, is_last: bool) -> None:
        """Search only the new samples with the rule of `sound_span`."""
        found, num_searched = find_sound(self._samples[self._num_searched :], self._rate)
        if found is not None:
            first, last = (self._num_searched + edge for edge in found)
            self._first = first if self._first is None else self._first
            self._last = last
        self._num_searched += num_searched
        if self._ends_with_pause or (is_last and self._first is None):
            self._first, self._last = self._first or 0, len(self._samples)
