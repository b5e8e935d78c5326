"""Speaks a text in steps: the chunks of its utterances and pauses, and the waits between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from vivace.audio.clip import AudioChunk
from vivace.engine.streams.assemble import Assembler, Steps, join_empty
from vivace.engine.streams.totals import StreamTotals
from vivace.engine.turn_report import TurnHook
from vivace.engine.utterances.client import EngineClient
from vivace.engine.utterances.completeness import OfferUtterance
from vivace.engine.utterances.factory import UtteranceFactory
from vivace.engine.utterances.frame_block import FrameBlock
from vivace.engine.utterances.reader import UtteranceReader
from vivace.engine.utterances.steps import BlockSteps, Wait, drop_leak, read_blocks
from vivace.engine.utterances.timings import StreamTimings, UtteranceTimings
from vivace.prompt import SpokenReference
from vivace.script.prompts import Spoken
from vivace.script.script import Line, Script
from vivace.speech import FinishReason, Usage
from vivace.text.pauses import Pause


class StreamSteps:
    """Speaks the parts of a script one after another, with totals over all of them.

    One thread at a time takes the steps of `run`. `cancel` may be called from any thread.
    """

    def __init__(
        self,
        engine: EngineClient,
        script: Script,
        factory: UtteranceFactory,
        assembler: Assembler,
        timings: StreamTimings | None,  # None: without word timings
        offer: OfferUtterance | None,  # to the search for the attention head of the word check
    ) -> None:
        self._engine, self.script, self._factory = engine, script, factory
        self.assembler, self._timings, self._offer = assembler, timings, offer
        settings = factory.settings
        self._settings = settings
        self._num_frames_left = settings.sampling.max_frames if settings.is_limited else None
        self._reader: UtteranceReader | None = None  # of the current utterance
        self.totals = StreamTotals(factory.writer.tokenizer)
        self._num_skipped = 0  # parts of the text that chunks have reported
        self.is_cancelled = False  # set by any thread, and never unset
        self._is_cut = False  # by a limit, before the end of the text
        self._reason: FinishReason = "stop"
        self.finish_reason: FinishReason | None = None
        self.on_turn: TurnHook | None = None  # for each utterance from here on
        self.admit_ms = 0.0  # how long the first prompt took to read
        self.progress = 0.0  # share of the text that was spoken; 0 for a live text

    @property
    def has_begun(self) -> bool:
        """Whether the first utterance was submitted to the engine."""
        return self._reader is not None or self.totals.num_utterances > 0

    @property
    def usage(self) -> Usage:
        """Totals so far."""
        return self.totals.usage(
            self._reader,
            self.assembler,
            seed=self._settings.sampling.seed or 0,
            skipped=tuple(self.script.skipped),
        )

    def cancel(self) -> None:
        """Stop the current utterance. Speech that had not ended finishes as `cancelled`."""
        self.is_cancelled = True
        if self.finish_reason is None:
            self.finish_reason = "cancelled"
        if (reader := self._reader) is not None:
            reader.cancel()

    def run(self) -> Steps:
        """Every chunk of the text, and the waits between them."""
        with closing(join_empty(self._speak_script())) as steps:
            for step in steps:
                yield self._complete(step) if isinstance(step, AudioChunk) else step

    def _complete(self, chunk: AudioChunk) -> AudioChunk:
        """Add the parts of the text that were left out since the last chunk, and the usage."""
        skipped = self.script.skipped
        if len(skipped) > self._num_skipped:
            new, self._num_skipped = tuple(skipped[self._num_skipped :]), len(skipped)
            chunk = dataclasses.replace(chunk, skipped=new)
        return dataclasses.replace(chunk, usage=self.usage) if chunk.is_last else chunk

    def _speak_script(self) -> Steps:
        script, previous = self.script, None
        while not script.is_over and self._num_frames_left != 0:
            if (part := script.next_part()) is None:
                if not script.is_over:
                    yield Wait.TEXT
                continue
            if isinstance(part, Pause):
                if script.is_over and script.error is not None and not self.totals.num_utterances:
                    break  # silence alone: the error precedes all audio
                end = self._end() if script.is_over else None
                yield self.assembler.silence(part, end)
            else:
                previous = yield from self._speak(part, previous)
            if self._num_frames_left != 0:
                self.progress = script.progress
        error = script.error
        if self.finish_reason is None and (self.totals.num_utterances or error is None):
            yield self.assembler.speech(None, self._end())
        if error is not None:
            raise error

    def _speak(
        self, line: Line, previous: Spoken | None
    ) -> Generator[AudioChunk | Wait, None, Spoken | None]:
        """The chunks of one utterance. Returns the text and codes that the next one continues."""
        while not line.has(self._factory.num_first_ids):
            yield Wait.TEXT
        ids = line.take()
        utterance, leak = self._factory.create(
            line,
            ids,
            previous,
            number=self.totals.num_utterances,
            num_frames_left=self._num_frames_left,
            on_turn=self.on_turn,
        )
        reader = self._reader = UtteranceReader(self._engine, utterance)
        if self.is_cancelled:  # now: `cancel` did not find this reader
            utterance.is_cancelled = True
        timings = UtteranceTimings(self._timings, utterance, line) if self._timings else None
        blocks = read_blocks(reader, line, self._sizes(), timings, lambda: self.is_cancelled)
        if leak is not None:
            blocks = drop_leak(blocks, leak.codes)
        codes: list[NDArray[np.int64]] = []
        try:
            reader.submit()
            yield from self._read(blocks, reader, line, timings, codes)
        finally:
            self._close(reader)
        if not codes or utterance.finish_reason != "stop":
            return None
        whole = np.concatenate(codes)
        if self._offer is not None:
            self._offer(utterance.prompt, utterance.num_text_ids, whole)
        if not self._factory.continues or not len(whole):
            return None
        return Spoken(line.text, SpokenReference(text_ids=ids, codes=whole))

    def _read(
        self,
        blocks: BlockSteps,
        reader: UtteranceReader,
        line: Line,
        timings: UtteranceTimings | None,
        codes: list[NDArray[np.int64]],  # receives the codes of every block
    ) -> Steps:
        """The chunks of the utterance's blocks."""
        first = self.assembler.num_given
        for block in blocks:
            if isinstance(block, Wait):
                yield block
                continue
            codes.append(block.codes)
            chunk = self._as_chunk(block, reader, line)
            if timings is not None:
                num_dropped = reader.num_read - sum(map(len, codes))
                chunk = self._add_words(chunk, timings, first, num_dropped)
            yield chunk

    def _close(self, reader: UtteranceReader) -> None:
        reader.cancel()
        self._reader = None
        self.totals.add(reader)
        if self._num_frames_left is not None:
            self._num_frames_left -= reader.num_read

    def _sizes(self) -> Iterator[int]:
        """Frames of each block. While the speech is silent, blocks do not grow."""
        for size in self._settings.sizes:
            yield size
            while self.assembler.is_silent:
                yield size

    def _add_words(
        self, chunk: AudioChunk, timings: UtteranceTimings, first: int, num_dropped: int
    ) -> AudioChunk:
        """`first` is the utterance's first sample, `num_dropped` its removed leading frames."""
        assert self._timings is not None
        made, size = self.assembler, self.assembler.samples_per_frame
        words = self._timings.place(
            timings.take(), lambda frame: made.second_of(first + (frame - num_dropped) * size)
        )
        return dataclasses.replace(chunk, words=words)

    def _as_chunk(self, block: FrameBlock, reader: UtteranceReader, line: Line) -> AudioChunk:
        utterance, is_last = reader.utterance, False
        if block.finish_reason is not None:
            self.totals.words.add(line.text, utterance.checked or utterance.follower)
            is_last = line.is_complete and self.script.is_over
            self._is_cut = not is_last and reader.num_read == self._num_frames_left
            if self._reason == "stop":  # the first other reason is the text's
                is_stop = block.finish_reason == "stop"
                self._reason = "length" if self._is_cut and is_stop else block.finish_reason
        self.admit_ms = self.admit_ms or utterance.admit_ms
        return self.assembler.speech(block, self._end() if is_last or self._is_cut else None)

    def _end(self) -> FinishReason:
        """Mark the current chunk as the last. Returns the finish reason."""
        self.finish_reason = self.finish_reason or self._reason
        if not self._is_cut:
            self.progress = 1.0
        return self._reason
