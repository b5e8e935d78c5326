"""A text being spoken: chunks for a reader that waits, and steps for one that must not."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.audio.clip import Audio, AudioChunk
from vivace.engine.assemble import Assembler, Steps, join_empty
from vivace.engine.completeness import IdMarker, SpokenWords
from vivace.engine.engine import Engine
from vivace.engine.follower import TextFollower
from vivace.engine.head_finder import HeadFinder
from vivace.engine.pieces import Wait, drop_leak, read_pieces
from vivace.engine.timings import StreamTimings, UtteranceTimings
from vivace.engine.utterance import Piece, Turn, Utterance
from vivace.errors import EngineError, RequestError, StreamClosedError
from vivace.model.config import CodecConfig
from vivace.prompt import SpokenReference
from vivace.script.prompts import PromptWriter, Spoken
from vivace.script.request import Request
from vivace.script.script import Line, Script
from vivace.speech import MAX_SEED, FinishReason, SamplingParams, Usage
from vivace.text.pauses import Pause
from vivace.timing.timer import Timer

Wake = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    sampling: SamplingParams
    sizes: Iterator[int]  # frames of each chunk
    speed: float = 1.0
    is_guarded: bool = True  # stop speech that does not end by itself
    is_limited: bool = False  # max_frames counts over the whole text, not for each utterance


class Stream(Iterator[AudioChunk]):
    """Audio chunks of a text; closing or dropping it frees its slot.

    Frames are made while the reader waits for them, and on a GPU a few ahead. An error of a text
    iterator is raised after the last chunk of what it gave.
    """

    def __init__(
        self,
        engine: Engine,
        writer: PromptWriter,
        config: CodecConfig,
        request: Request,
        settings: StreamSettings,
        *,
        wake: Wake | None = None,  # None: it is read as an iterator
        timer: Timer | None = None,  # of words, if they are asked for
        marker: IdMarker | None = None,  # of words, if the speech is checked to be complete
        finder: HeadFinder | None = None,  # of the head that shows whether it is
    ) -> None:
        if wake is None and isinstance(request.text, AsyncIterator):
            raise RequestError("an async iterator of text is for astream; give stream an iterator")
        writer.check(request)
        self._engine, self._writer, self._request = engine, writer, request
        self._timings = StreamTimings(engine, timer, writer.tokenizer) if timer else None
        trace = self._timings.trace if self._timings else None
        self._script = Script(writer, request, trace)
        self._bell: SimpleQueue[None] = SimpleQueue()
        bell = self._bell
        self._wake = wake or (lambda: bell.put(None))  # no reference to the stream itself
        self._settings = settings
        self._made = Assembler(
            config,
            trim=request.options.trim,
            speed=settings.speed,
            has_words=timer is not None,
            silence_rms=writer.silence_rms,
        )
        is_limited, max_frames = settings.is_limited, settings.sampling.max_frames
        self._num_frames_left = max_frames if is_limited else None
        self._steps = join_empty(self._make_steps())
        self._pid = os.getpid()
        self._is_reading, self._is_stepping = Lock(), Lock()
        self._utterance: Utterance | None = None  # that is being spoken
        self._num_frames = self._num_text_ids = self._num_retries = self._num_skipped = 0
        self._marker = marker if engine.backend.watched is not None else None
        self._spoken_words, self._finder = SpokenWords(writer.tokenizer), finder
        self._is_cancelled = self._is_closed = False
        self._is_cut = False  # by a limit, before the end of the text
        self._reason: FinishReason = "stop"
        self.finish_reason: FinishReason | None = None
        self.on_turn: Callable[[Turn], None] | None = None  # of each utterance from here on
        self.num_utterances = 0
        self.is_runaway = False  # some speech was stopped because it did not end by itself
        self.admit_ms = 0.0  # how long the first prompt took to read
        self.progress = 0.0  # share of the text that was spoken; 0 for a live text

    # -- reading -----------------------------------------------------------------------------

    def __next__(self) -> AudioChunk:
        self.check_open()  # first: in a forked child the lock may be held for ever
        with self._is_reading:
            while not isinstance(step := self.step(), AudioChunk):
                self._block(step)
            return step

    def check_open(self) -> None:
        if os.getpid() != self._pid:
            raise EngineError(
                f"this stream was opened in process {self._pid} and cannot be read in a forked "
                "child; open one there"
            )
        if self._is_closed:
            raise StreamClosedError("this stream was closed; ask for a new one")

    def step(self) -> AudioChunk | Wait:
        """The next chunk, or what must come first; StopIteration at the end."""
        try:
            with self._is_stepping:
                step = self._with_skipped(next(self._steps))
                if isinstance(step, AudioChunk) and step.is_last:
                    return dataclasses.replace(step, usage=self.usage)
                return step
        finally:
            if self._is_cancelled:
                self._clear()

    def _with_skipped(self, step: AudioChunk | Wait) -> AudioChunk | Wait:
        skipped = self._script.skipped
        if isinstance(step, Wait) or len(skipped) == self._num_skipped:
            return step
        new, self._num_skipped = tuple(skipped[self._num_skipped :]), len(skipped)
        return dataclasses.replace(step, skipped=new)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Parts of the text that were left out so far; all of them if the text is known."""
        return tuple(self._script.skipped)

    def _step_or_end(self) -> AudioChunk | Wait | None:
        try:
            return self.step()
        except StopIteration:
            return None

    def _block(self, wait: Wait) -> None:
        if wait is Wait.TEXT:
            self._pull()
        else:
            self._bell.get()

    @property
    def has_begun(self) -> bool:
        """Whether its first utterance was given to the engine."""
        return self._utterance is not None or self.num_utterances > 0

    def feed(self, piece: object) -> None:
        """More of a live text, after a step returned `Wait.TEXT`."""
        self._script.feed(piece)

    def finish_text(self, error: Exception | None = None) -> None:
        """A live text ended, or its iterator raised."""
        self._script.finish(error)

    def settle_text(self) -> bool:
        """The writer of a live text pauses; whether something can be said without more of it."""
        return self._script.settle()

    def _pull(self) -> None:
        pieces = self._request.text
        assert isinstance(pieces, Iterator)
        try:
            piece = next(pieces)
        except StopIteration:
            self.finish_text()
        except Exception as error:
            self.finish_text(error)
        else:
            self.feed(piece)

    def collect(self, report: Callable[[Stream], None] | None = None) -> Audio:
        """The whole audio; if trimmed, without a stall at the end. `report` is called per chunk."""
        for step in self.collect_steps():
            if isinstance(step, Audio):
                return step
            if isinstance(step, Wait):
                self._block(step)
            elif report is not None:
                report(self)
        raise AssertionError("the last step is the audio")

    def collect_steps(self) -> Generator[Audio | AudioChunk | Wait, None, None]:
        """Every chunk and what must come before it, then the whole audio."""
        chunks = []
        speed = self._made.take_speed()
        try:
            while (step := self._step_or_end()) is not None:
                yield step
                if isinstance(step, AudioChunk):
                    chunks.append(step)
        except BaseException:  # an interrupt, whose traceback would keep the stream alive
            self.close()
            raise
        if not chunks:
            raise StreamClosedError("this stream was closed before its first chunk")
        assert self.finish_reason is not None
        yield self._made.whole(chunks, speed, self.finish_reason, self.usage)

    def without_stall(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """If it is trimmed, the end of the speech without a stall that was stopped."""
        return self._made.without_stall(samples)

    @property
    def usage(self) -> Usage:
        """What was made so far and what it cost."""
        utterance = self._utterance
        return Usage(
            text_tokens=self._num_text_ids + (utterance.num_text_ids if utterance else 0),
            frames=self._num_frames + (utterance.num_read if utterance else 0),
            audio_s=self._made.num_samples / self._made.sample_rate,
            wall_s=self._made.wall_s,
            seed=self._settings.sampling.seed or 0,
            first_audio_ms=self._made.first_audio_ms,
            completeness=self._spoken_words.completeness,
            missing_words=self._spoken_words.missing,
            retries=self._num_retries + (utterance.num_retries if utterance else 0),
            num_words=self._spoken_words.num_words,
            skipped=tuple(self._script.skipped),
        )

    # -- closing -----------------------------------------------------------------------------

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop at once; a stream that had not ended finishes as `cancelled`.

        From anywhere: another thread, a signal handler, the stream's own text. A reader that waits
        gets no more chunks; one that waits for a text iterator, when that returns.
        """
        if os.getpid() != self._pid:
            return
        self._is_cancelled = True
        if self.finish_reason is None:
            self.finish_reason = "cancelled"
            self._is_closed = True
        if (utterance := self._utterance) is not None:
            self._engine.cancel(utterance)
        self._clear()
        self._wake()

    def _clear(self) -> None:
        """End the steps, unless a reader is in one: it does so after it."""
        if self._is_stepping.acquire(blocking=False):
            try:
                self._steps.close()
            finally:
                self._is_stepping.release()

    # -- steps -------------------------------------------------------------------------------

    def _make_steps(self) -> Steps:
        script, previous = self._script, None
        while not script.is_over and self._num_frames_left != 0:
            if (part := script.next_part()) is None:
                if not script.is_over:
                    yield Wait.TEXT
                continue
            if isinstance(part, Pause):
                end = self._end() if script.is_over else None
                yield self._made.silence(part, end)
            else:
                previous = yield from self._speak(part, previous)
            if self._num_frames_left != 0:
                self.progress = script.progress
        error = self._text_error()
        if self.finish_reason is None and (self.num_utterances or error is None):
            yield self._made.speech(None, self._end())
        if error is not None:
            raise error

    def _text_error(self) -> Exception | None:
        try:
            self._script.raise_error()
        except Exception as error:
            return error
        return None

    def _speak(
        self, line: Line, previous: Spoken | None
    ) -> Generator[AudioChunk | Wait, None, Spoken | None]:
        """The chunks of one utterance; returns what the next one continues from."""
        while not line.has(self._writer.num_first_ids(self._request)):
            yield Wait.TEXT
        ids, codes = line.take(), list[NDArray[np.int64]]()
        utterance, leak = self._open(line, ids, previous)
        timings = self._timings.begin(utterance, line) if self._timings else None
        first, sizes = self._made.num_given, self._settings.sizes
        pieces = read_pieces(
            self._engine, utterance, line, sizes, timings, lambda: self._is_cancelled
        )
        try:
            self._engine.submit(utterance)
            for piece in pieces if leak is None else drop_leak(pieces, leak.codes):
                if isinstance(piece, Wait):
                    yield piece
                    continue
                codes.append(piece.codes)
                chunk = self._as_chunk(piece, utterance, line)
                if timings is not None:
                    num_dropped = utterance.num_read - sum(map(len, codes))
                    chunk = self._add_words(chunk, timings, first, num_dropped)
                yield chunk
        finally:
            self._engine.cancel(utterance)
            self._count(utterance, line)
        if self._finder is not None and utterance.finish_reason == "stop" and codes:
            whole = np.concatenate(codes)
            self._finder.offer(utterance.prompt, utterance.num_text_ids, whole)
        is_live = not isinstance(self._request.text, str)
        if not self._writer.continues or is_live or utterance.finish_reason != "stop":
            return None
        spoken = SpokenReference(text_ids=ids, codes=np.concatenate(codes))
        return Spoken(line.text, spoken) if len(spoken.codes) else None

    def _open(
        self, line: Line, ids: Sequence[int], previous: Spoken | None
    ) -> tuple[Utterance, SpokenReference | None]:
        settings = self._settings
        prompt, leak = self._writer.write(
            self._request, line.text, ids, is_complete=line.is_complete, previous=previous
        )
        utterance = self._utterance = Utterance(
            prompt=prompt,
            sampling=self._next_sampling(),
            wake=self._wake,
            num_text_ids=len(ids),
            is_text_complete=line.is_complete,
            is_guarded=settings.is_guarded,
            has_budget=settings.is_guarded and not settings.is_limited,
            is_continued=self.num_utterances > 0,
            on_turn=self.on_turn,
            **self._following(ids, is_complete=line.is_complete),
        )
        if self._is_cancelled:  # it may be set at any time, and is never unset
            utterance.cancel()
        return utterance, leak

    def _following(self, ids: Sequence[int], *, is_complete: bool) -> dict[str, Any]:
        """What an utterance needs to be checked for missing words."""
        if self._marker is None:
            return {}
        follower = TextFollower(self._marker.mark(ids), is_complete=is_complete)
        return {"follower": follower, "mark_ids": self._marker.mark}

    def _next_sampling(self) -> SamplingParams:
        """With the seed and the limits of the next utterance."""
        sampling, changes = self._settings.sampling, dict[str, int]()
        seed = ((sampling.seed or 0) + self.num_utterances) % (MAX_SEED + 1)
        if seed != sampling.seed:
            changes["seed"] = seed
        if (num_left := self._num_frames_left) not in (None, sampling.max_frames):
            changes |= {"max_frames": num_left, "min_frames": min(sampling.min_frames, num_left)}
        return sampling.replace(**changes) if changes else sampling

    def _add_words(
        self, chunk: AudioChunk, timings: UtteranceTimings, first: int, num_dropped: int
    ) -> AudioChunk:
        """`first` is the utterance's first sample, `num_dropped` its frames that are not heard."""
        assert self._timings is not None
        size = self._made.samples_per_frame
        words = self._timings.place(
            timings.take(), lambda frame: self._made.second_of(first + (frame - num_dropped) * size)
        )
        return dataclasses.replace(chunk, words=words)

    def _count(self, utterance: Utterance, line: Line) -> None:
        self._utterance = None
        self.num_utterances += 1
        if self._num_frames_left is not None:
            self._num_frames_left -= utterance.num_read
        self._num_frames += utterance.num_read
        self._num_text_ids += utterance.num_text_ids
        self._num_retries += utterance.num_retries
        self.is_runaway |= utterance.finish_reason == "stall" or utterance.is_over_budget

    def _as_chunk(self, piece: Piece, utterance: Utterance, line: Line) -> AudioChunk:
        is_last = False
        if piece.finish_reason is not None:
            self._spoken_words.add(line.text, utterance.follower)
            is_last = line.is_complete and self._script.is_over
            self._is_cut = not is_last and utterance.num_read == self._num_frames_left
            if self._reason == "stop":  # the first other reason is the text's
                is_stop = piece.finish_reason == "stop"
                self._reason = "length" if self._is_cut and is_stop else piece.finish_reason
        self.admit_ms = self.admit_ms or utterance.admit_ms
        return self._made.speech(piece, self._end() if is_last or self._is_cut else None)

    def _end(self) -> FinishReason:
        """The speech ends with the chunk at hand; how."""
        self.finish_reason = self.finish_reason or self._reason
        if not self._is_cut:
            self.progress = 1.0
        return self._reason
