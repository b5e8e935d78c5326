"""A text being spoken: chunks for a reader that blocks, and steps for one that must not."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from queue import SimpleQueue
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from vivace.audio.clip import Audio, AudioChunk
from vivace.engine.assemble import Assembler, FindMark, Steps, join_empty
from vivace.engine.client import EngineClient
from vivace.engine.completeness import IdMarker, OfferUtterance
from vivace.engine.frame_block import FrameBlock
from vivace.engine.opening import StreamSettings, UtteranceFactory
from vivace.engine.reader import UtteranceReader
from vivace.engine.steps import Wait, drop_leak, read_blocks
from vivace.engine.timings import OpenPass, StreamTimings, UtteranceTimings
from vivace.engine.totals import StreamTotals
from vivace.engine.turn_report import TurnHook
from vivace.errors import EngineError, RequestError, StreamClosedError
from vivace.model.config import CodecConfig
from vivace.prompt import SpokenReference
from vivace.script.prompts import PromptWriter, Spoken
from vivace.script.request import Request
from vivace.script.script import Line, Script
from vivace.speech import FinishReason, Usage
from vivace.text.pauses import Pause

Wake = Callable[[], None]


class Stream(Iterator[AudioChunk]):
    """Audio chunks of a text. Closing or dropping the stream frees its slot.

    The engine makes frames while the reader waits for them, and on a GPU a few ahead. An error of
    a text iterator is raised after the chunks of the text before it.
    """

    def __init__(
        self,
        engine: EngineClient,
        writer: PromptWriter,
        config: CodecConfig,
        request: Request,
        settings: StreamSettings,
        *,
        wake: Wake | None = None,  # None: the stream is read as an iterator
        open_pass: OpenPass | None = None,  # None: without word timings
        marker: IdMarker | None = None,  # None: the words are not checked
        offer: OfferUtterance | None = None,  # to the search for that check's attention head
        find_mark: FindMark | None = None,  # of the files that `Audio.save` writes
    ) -> None:
        if wake is None and isinstance(request.text, AsyncIterator):
            raise RequestError("text is an async iterator; use astream, or give an iterator")
        writer.checker.check(request)
        self._engine, self._writer, self._request = engine, writer, request
        self._timings = StreamTimings(open_pass, writer.tokenizer) if open_pass else None
        # A reader feeds a live text to it after a step returned `Wait.TEXT`.
        self.script = Script(writer, request, self._timings.words if self._timings else None)
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        wakeups = self._wakeups
        self._wake = wake or (lambda: wakeups.put(None))  # no reference to the stream itself
        self._settings = settings
        self._made = Assembler(
            config,
            trim=request.options.trim,
            trim_start=request.options.trim_start,
            speed=settings.speed,
            has_words=open_pass is not None,
            silence_rms=writer.silence_rms,
            watermark=request.marking.open_stream(config.output_sample_rate),
            find_mark=find_mark,
        )
        is_limited, max_frames = settings.is_limited, settings.sampling.max_frames
        self._num_frames_left = max_frames if is_limited else None
        self._steps = join_empty(self._make_steps())
        self._pid = os.getpid()
        self._is_reading, self._is_stepping = Lock(), Lock()
        self._reader: UtteranceReader | None = None  # of the current utterance
        self._num_skipped = 0  # parts of the text that chunks have reported
        self._factory = UtteranceFactory(
            writer, request, settings, self._wake, marker if engine.follows_text else None
        )
        self._totals, self._offer = StreamTotals(writer.tokenizer), offer
        self._is_cancelled = self._is_closed = False
        self._is_cut = False  # by a limit, before the end of the text
        self._reason: FinishReason = "stop"
        self.finish_reason: FinishReason | None = None
        self.on_turn: TurnHook | None = None  # for each utterance from here on
        self.admit_ms = 0.0  # how long the first prompt took to read
        self.progress = 0.0  # share of the text that was spoken; 0 for a live text

    # -- reading -----------------------------------------------------------------------------

    def __next__(self) -> AudioChunk:
        self.check_open()  # first: in a forked child the lock may be held forever
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
            raise StreamClosedError("this stream was closed; open a new one")

    def step(self) -> AudioChunk | Wait:
        """The next chunk, or the event to wait for. Raises StopIteration at the end."""
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
        skipped = self.script.skipped
        if isinstance(step, Wait) or len(skipped) == self._num_skipped:
            return step
        new, self._num_skipped = tuple(skipped[self._num_skipped :]), len(skipped)
        return dataclasses.replace(step, skipped=new)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Unsupported parts of the text that were left out so far."""
        return tuple(self.script.skipped)

    def _step_or_end(self) -> AudioChunk | Wait | None:
        try:
            return self.step()
        except StopIteration:
            return None

    def _block(self, wait: Wait) -> None:
        if wait is Wait.TEXT:
            self._pull()
        else:
            self._wakeups.get()

    @property
    def num_utterances(self) -> int:
        """Utterances that are over."""
        return self._totals.num_utterances

    @property
    def is_runaway(self) -> bool:
        """Whether some speech was stopped because it did not end by itself."""
        return self._totals.is_runaway

    @property
    def has_begun(self) -> bool:
        """Whether the first utterance was submitted to the engine."""
        return self._reader is not None or self.num_utterances > 0

    def _pull(self) -> None:
        pieces = self._request.text
        assert isinstance(pieces, Iterator)
        try:
            piece = next(pieces)
        except StopIteration:
            self.script.finish()
        except Exception as error:
            self.script.finish(error)
        else:
            self.script.feed(piece)

    def collect(self, report: Callable[[Stream], None] | None = None) -> Audio:
        """Read the stream to its end and return the whole audio.

        Args:
            report: Called with the stream after every chunk.
        """
        for step in self.collect_steps():
            if isinstance(step, Audio):
                return step
            if isinstance(step, Wait):
                self._block(step)
            elif report is not None:
                report(self)
        raise AssertionError("the last step is the audio")

    def collect_steps(self) -> Generator[Audio | AudioChunk | Wait, None, None]:
        """Every chunk and wait, then the whole audio."""
        chunks = []
        effects = self._made.take_effects()
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
        yield self._made.whole(chunks, effects, self.finish_reason, self.usage)

    def without_stall(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """The samples without the stall that ended the speech, if `trim` is on."""
        return self._made.without_stall(samples)

    @property
    def usage(self) -> Usage:
        """Totals so far."""
        seed = self._settings.sampling.seed or 0
        return self._totals.usage(self._reader, self._made, seed=seed, skipped=self.skipped)

    # -- closing -----------------------------------------------------------------------------

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop at once. A stream that had not ended finishes as `cancelled`.

        May be called from another thread, a signal handler or the stream's own text. A waiting
        reader gets no more chunks; if it waits for a text iterator, it ends when that returns.
        """
        if os.getpid() != self._pid:
            return
        self._is_cancelled = True
        if self.finish_reason is None:
            self.finish_reason = "cancelled"
            self._is_closed = True
        if (reader := self._reader) is not None:
            reader.cancel()
        self._clear()
        self._wake()

    def _clear(self) -> None:
        """End the steps. A reader inside a step ends them after it."""
        if self._is_stepping.acquire(blocking=False):
            try:
                self._steps.close()
            finally:
                self._is_stepping.release()

    # -- steps -------------------------------------------------------------------------------

    def _make_steps(self) -> Steps:
        script, previous = self.script, None
        while not script.is_over and self._num_frames_left != 0:
            if (part := script.next_part()) is None:
                if not script.is_over:
                    yield Wait.TEXT
                continue
            if isinstance(part, Pause):
                if script.is_over and script.error is not None and not self.num_utterances:
                    break  # silence alone: the error precedes all audio
                end = self._end() if script.is_over else None
                yield self._made.silence(part, end)
            else:
                previous = yield from self._speak(part, previous)
            if self._num_frames_left != 0:
                self.progress = script.progress
        error = script.error
        if self.finish_reason is None and (self.num_utterances or error is None):
            yield self._made.speech(None, self._end())
        if error is not None:
            raise error

    def _speak(
        self, line: Line, previous: Spoken | None
    ) -> Generator[AudioChunk | Wait, None, Spoken | None]:
        """The chunks of one utterance. Returns the text and codes that the next one continues."""
        while not line.has(self._writer.num_first_ids(self._request)):
            yield Wait.TEXT
        ids = line.take()
        codes: list[NDArray[np.int64]] = []
        utterance, leak = self._factory.create(
            line,
            ids,
            previous,
            number=self.num_utterances,
            num_frames_left=self._num_frames_left,
            on_turn=self.on_turn,
        )
        reader = self._reader = UtteranceReader(self._engine, utterance)
        if self._is_cancelled:  # set by any thread, and never unset
            utterance.is_cancelled = True
        timings = UtteranceTimings(self._timings, utterance, line) if self._timings else None
        first = self._made.num_given
        blocks = read_blocks(reader, line, self._sizes(), timings, lambda: self._is_cancelled)
        try:
            reader.submit()
            for block in blocks if leak is None else drop_leak(blocks, leak.codes):
                if isinstance(block, Wait):
                    yield block
                    continue
                codes.append(block.codes)
                chunk = self._as_chunk(block, reader, line)
                if timings is not None:
                    num_dropped = reader.num_read - sum(map(len, codes))
                    chunk = self._add_words(chunk, timings, first, num_dropped)
                yield chunk
        finally:
            reader.cancel()
            self._reader = None
            self._totals.add(reader)
            if self._num_frames_left is not None:
                self._num_frames_left -= reader.num_read
        if self._offer is not None and utterance.finish_reason == "stop" and codes:
            whole = np.concatenate(codes)
            self._offer(utterance.prompt, utterance.num_text_ids, whole)
        is_live = not isinstance(self._request.text, str)
        if not self._writer.continues or is_live or utterance.finish_reason != "stop":
            return None
        spoken = SpokenReference(text_ids=ids, codes=np.concatenate(codes))
        return Spoken(line.text, spoken) if len(spoken.codes) else None

    def _sizes(self) -> Iterator[int]:
        """Frames of each block. While the speech is silent, blocks do not grow."""
        for size in self._settings.sizes:
            yield size
            while self._made.is_silent:
                yield size

    def _add_words(
        self, chunk: AudioChunk, timings: UtteranceTimings, first: int, num_dropped: int
    ) -> AudioChunk:
        """`first` is the utterance's first sample, `num_dropped` its removed leading frames."""
        assert self._timings is not None
        size = self._made.samples_per_frame
        words = self._timings.place(
            timings.take(), lambda frame: self._made.second_of(first + (frame - num_dropped) * size)
        )
        return dataclasses.replace(chunk, words=words)

    def _as_chunk(self, block: FrameBlock, reader: UtteranceReader, line: Line) -> AudioChunk:
        utterance, is_last = reader.utterance, False
        if block.finish_reason is not None:
            self._totals.words.add(line.text, utterance.checked or utterance.follower)
            is_last = line.is_complete and self.script.is_over
            self._is_cut = not is_last and reader.num_read == self._num_frames_left
            if self._reason == "stop":  # the first other reason is the text's
                is_stop = block.finish_reason == "stop"
                self._reason = "length" if self._is_cut and is_stop else block.finish_reason
        self.admit_ms = self.admit_ms or utterance.admit_ms
        return self._made.speech(block, self._end() if is_last or self._is_cut else None)

    def _end(self) -> FinishReason:
        """Mark the current chunk as the last. Returns the finish reason."""
        self.finish_reason = self.finish_reason or self._reason
        if not self._is_cut:
            self.progress = 1.0
        return self._reason
