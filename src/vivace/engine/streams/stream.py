"""A text being spoken: chunks for a reader that blocks, and steps for one that must not."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vivace.audio.clip import Audio, AudioChunk
from vivace.engine.streams.assemble import Assembler, FindMark
from vivace.engine.streams.steps import StreamSteps
from vivace.engine.turn_report import TurnHook
from vivace.engine.utterances.client import EngineClient
from vivace.engine.utterances.completeness import IdMarker, OfferUtterance
from vivace.engine.utterances.factory import StreamSettings, UtteranceFactory
from vivace.engine.utterances.steps import Wait
from vivace.engine.utterances.timings import OpenPass, StreamTimings
from vivace.errors import EngineError, RequestError, StreamClosedError
from vivace.model.config import CodecConfig
from vivace.script.prompts import PromptWriter
from vivace.script.request import Request
from vivace.script.script import Script
from vivace.speech import Usage, stream_repr

if TYPE_CHECKING:
    from vivace.speech import FinishReason  # jedi fails on a property whose Literal resolves

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
        self._request = request
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        wakeups = self._wakeups
        self._wake = wake or (lambda: wakeups.put(None))  # no reference to the stream itself
        timings = StreamTimings(open_pass, writer.tokenizer) if open_pass else None
        # A reader feeds a live text to it after a step returned `Wait.TEXT`.
        self.script = Script(writer, request, timings.words if timings else None)
        marker = marker if engine.follows_text else None
        factory = UtteranceFactory(writer, request, settings, self._wake, marker)
        assembler = Assembler(
            config,
            trim=request.options.trim,
            trim_start=request.options.trim_start,
            speed=settings.speed,
            has_words=open_pass is not None,
            silence_rms=writer.silence_rms,
            watermark=request.marking.open_stream(config.output_sample_rate),
            find_mark=find_mark,
        )
        self._speech = StreamSteps(engine, self.script, factory, assembler, timings, offer)
        self._steps = self._speech.run()
        self._pid = os.getpid()
        self._is_reading, self._is_stepping = Lock(), Lock()

    def __repr__(self) -> str:
        return stream_repr(self, self.usage, self.finish_reason)

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
        if self.finish_reason == "cancelled":
            raise StreamClosedError("this stream was closed; open a new one")

    def step(self) -> AudioChunk | Wait:
        """The next chunk, or the event to wait for. Raises StopIteration at the end."""
        try:
            with self._is_stepping:
                return next(self._steps)
        finally:
            if self._speech.is_cancelled:
                self._clear()

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
        effects = self._speech.assembler.take_effects()
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
        yield self._speech.assembler.whole(chunks, effects, self.finish_reason, self.usage)

    def without_stall(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """The samples without the stall that ended the speech, if `trim` is on."""
        return self._speech.assembler.without_stall(samples)

    # -- state -------------------------------------------------------------------------------

    @property
    def usage(self) -> Usage:
        """Totals so far."""
        return self._speech.usage

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the speech ended; None before its end."""
        return self._speech.finish_reason

    @property
    def progress(self) -> float:
        """The share of the text that was spoken; 0 for a live text."""
        return self._speech.progress

    @property
    def skipped(self) -> tuple[str, ...]:
        """Unsupported parts of the text that were left out so far."""
        return tuple(self.script.skipped)

    @property
    def num_utterances(self) -> int:
        """Utterances that are over."""
        return self._speech.totals.num_utterances

    @property
    def is_runaway(self) -> bool:
        """Whether some speech was stopped because it did not end by itself."""
        return self._speech.totals.is_runaway

    @property
    def has_begun(self) -> bool:
        """Whether the first utterance was submitted to the engine."""
        return self._speech.has_begun

    @property
    def admit_ms(self) -> float:
        """How long the first prompt took to read."""
        return self._speech.admit_ms

    @property
    def on_turn(self) -> TurnHook | None:
        """Called by the engine's thread after the turns of each utterance that begins later."""
        return self._speech.on_turn

    @on_turn.setter
    def on_turn(self, hook: TurnHook | None) -> None:
        self._speech.on_turn = hook

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
        self._speech.cancel()
        self._clear()
        self._wake()

    def _clear(self) -> None:
        """End the steps. A reader inside a step ends them after it."""
        if self._is_stepping.acquire(blocking=False):
            try:
                self._steps.close()
            finally:
                self._is_stepping.release()
