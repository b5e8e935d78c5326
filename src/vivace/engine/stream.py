"""What the caller holds while a text is being spoken."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Generator, Iterator
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from vivace.audio.clip import Audio, AudioChunk
from vivace.audio.speed import SpeedChanger
from vivace.audio.trim import StartTrimmer
from vivace.engine.parts import Part
from vivace.engine.piece import Piece
from vivace.engine.session import Session
from vivace.errors import EngineError, StreamClosedError
from vivace.model.config import CodecConfig
from vivace.speech import FinishReason, Usage
from vivace.text.script import Pause


class Stream(Iterator[AudioChunk]):
    """Chunks of a text as they are made; closing or dropping it frees its slot at once.

    Work happens while the caller waits for the next chunk, so several streams of one TTS
    interleave as their callers please. A text iterator that raised is heard after the last chunk.
    """

    def __init__(
        self,
        parts: Iterator[Part],
        config: CodecConfig,
        sizes: Iterator[int],
        *,
        seed: int,
        max_frames: int | None,  # of all utterances together; None: each has its own limit
        trim: bool,
        speed: float = 1.0,
        stop_text: Callable[[], None] = lambda: None,  # a live text is asked for no more
    ) -> None:
        self._parts = parts
        self._stop_text = stop_text
        self._sample_rate = config.output_sample_rate
        self._samples_per_frame = config.decode_upsample_rate
        self._no_codes = np.empty((0, config.decoder_config.num_quantizers), dtype=np.int64)
        self._seed = seed
        self._num_frames_left = max_frames
        self._trimmer = StartTrimmer(self._sample_rate) if trim else None
        self._speed = SpeedChanger(speed, self._sample_rate)
        self._began = time.perf_counter()
        self._chunks = self._make_chunks(sizes)
        self._pid = os.getpid()
        self._is_busy = Lock()  # a chunk is being made, perhaps in another thread
        self._session: Session | None = None  # that is speaking
        self._num_samples = self._num_frames = self._num_text_ids = 0
        self._is_cancelled = self._is_closed = False
        self._is_cut = False  # by a limit, before the end of the text
        self._text_error: Exception | None = None
        self._reason: FinishReason = "stop"
        self.finish_reason: FinishReason | None = None
        self.num_stalled = 0  # frames at the end that say nothing, of a stall
        self.num_utterances = 0
        self.is_runaway = False  # something was stopped because it would not end by itself
        self.first_audio_ms: float | None = None
        self.admit_ms = 0.0  # how long the first prompt took to read
        self.progress = 0.0  # share of the text that is said; of a live text it is not known

    def __next__(self) -> AudioChunk:
        if os.getpid() != self._pid:
            raise EngineError(
                f"this stream was opened in process {self._pid} and cannot be read in a forked "
                "child; open one there"
            )
        try:
            with self._is_busy:
                if self._is_closed:
                    raise StreamClosedError("this stream was closed; ask for a new one")
                return next(self._chunks)
        finally:
            if self._is_cancelled:
                self._clear()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def num_stalled_samples(self) -> int:
        """At the end, that say nothing: what is left when a stall was stopped."""
        return self.num_stalled * self._samples_per_frame

    def collect(self, report: Callable[[Stream], None] | None = None) -> Audio:
        """All of it at once; if trimmed, without a stall at the end. `report` hears every chunk."""
        chunks = []
        speed, self._speed = self._speed, SpeedChanger(1.0, self._sample_rate)
        for chunk in self:
            chunks.append(chunk)
            if report is not None:
                report(self)
        if not chunks:
            raise StreamClosedError("this stream was closed before its first chunk")
        samples = np.concatenate([chunk.samples for chunk in chunks])
        if self._trimmer is not None:
            samples = samples[: len(samples) - self.num_stalled_samples]
        samples = np.concatenate([speed.process(samples), speed.finish()])
        assert self.finish_reason is not None
        return Audio(
            samples=samples,
            sample_rate=self._sample_rate,
            codes=np.concatenate([chunk.codes for chunk in chunks]),
            finish_reason=self.finish_reason,
            usage=dataclasses.replace(self.usage, audio_s=len(samples) / self._sample_rate),
        )

    def close(self) -> None:
        """Stop here, at once; a stream that had not ended finishes as `cancelled`.

        From anywhere: another thread, a signal handler, the stream's own text. A reader that waits
        gets no more chunks, or when its text iterator returns, if it waits for that.
        """
        if os.getpid() != self._pid:  # a forked child's copy: its lock may be held for ever
            return
        self._is_cancelled = True
        self._stop_text()
        if self.finish_reason is None:
            self.finish_reason = "cancelled"
            self._is_closed = True
        if (session := self._session) is not None:
            session.cancel()
        self._clear()

    def _clear(self) -> None:
        """Let go of what is under way, unless a reader is at it, who does so when it is through."""
        if self._is_busy.acquire(blocking=False):
            try:
                self._chunks.close()
            finally:
                self._is_busy.release()

    @property
    def usage(self) -> Usage:
        """What was made so far and what it cost."""
        session = self._session
        return Usage(
            text_tokens=self._num_text_ids + (session.num_ids if session else 0),
            frames=self._num_frames + (session.num_frames if session else 0),
            audio_s=self._num_samples / self._sample_rate,
            wall_s=time.perf_counter() - self._began,
            seed=self._seed,
            first_audio_ms=self.first_audio_ms,
        )

    def _make_chunks(self, sizes: Iterator[int]) -> Generator[AudioChunk, None, None]:
        while (part := self._next_part()) is not None:
            if isinstance(part.work, Pause):
                yield self._pause(part.work, is_last=part.is_last())
            else:
                yield from self._speak(part, part.work, sizes)
            if self._is_cancelled:
                return
            if self._num_frames_left == 0:
                part.raise_text_error()
                break
            self.progress = part.progress
        if self.finish_reason is None and (self.num_utterances or self._text_error is None):
            yield self._end()
        if self._text_error is not None:
            raise self._text_error

    def _next_part(self) -> Part | None:
        """None at the end of the text, also of one whose writer raised: that is heard last."""
        try:
            return next(self._parts, None)
        except Exception as error:
            self._text_error = error
            return None

    def _speak(
        self, part: Part, session: Session, sizes: Iterator[int]
    ) -> Generator[AudioChunk, None, None]:
        self._session = session
        if self._is_cancelled:  # it may be set at any time, and is never unset
            session.is_cancelled = True
        if self._num_frames_left is not None:
            session.limit_frames(self._num_frames_left)
        try:
            for piece in session.pieces(sizes):
                if piece.finish_reason not in (None, "stop") and self._reason == "stop":
                    self._reason = piece.finish_reason
                is_over = piece.finish_reason is not None
                is_cut = session.num_frames == self._num_frames_left and not part.is_last()
                self._is_cut = is_over and is_cut
                if self._is_cut and self._reason == "stop":
                    self._reason = "length"
                self.admit_ms = self.admit_ms or session.admit_ms
                yield self._chunk(piece, is_last=self._is_cut or (is_over and part.is_last()))
        finally:
            self._count(session)

    def _count(self, session: Session) -> None:
        self._session = None
        self.num_utterances += 1
        if self._num_frames_left is not None:
            self._num_frames_left -= session.num_frames
        self._num_frames += session.num_frames
        self._num_text_ids += session.num_ids
        self.is_runaway |= session.finish_reason == "stall" or session.is_over_budget

    def _chunk(self, piece: Piece, *, is_last: bool) -> AudioChunk:
        """Speech, or nothing at all for an end that the chunk before could not know of."""
        samples = piece.samples
        if self._trimmer is not None:
            samples = self._trimmer.trim(samples, is_last=is_last)
        if self.first_audio_ms is None and len(samples):
            self.first_audio_ms = 1000 * (time.perf_counter() - self._began)
        self.num_stalled = piece.num_stalled if is_last else 0
        return self._hand_out(samples, piece.codes, is_last=is_last)

    def _pause(self, pause: Pause, *, is_last: bool) -> AudioChunk:
        num_samples = round(pause.seconds * self._sample_rate)
        return self._hand_out(np.zeros(num_samples, np.float32), self._no_codes, is_last=is_last)

    def _end(self) -> AudioChunk:
        return self._chunk(Piece(self._no_codes, np.empty(0, np.float32)), is_last=True)

    def _hand_out(
        self, samples: NDArray[np.float32], codes: NDArray[np.int64], *, is_last: bool
    ) -> AudioChunk:
        samples = self._speed.process(samples)
        if is_last:
            samples = np.concatenate([samples, self._speed.finish()])
        start = self._num_samples
        self._num_samples += len(samples)
        reason = self._reason if is_last else None
        self.finish_reason = self.finish_reason or reason
        if is_last and not self._is_cut:
            self.progress = 1.0
        return AudioChunk(
            samples=samples,
            sample_rate=self._sample_rate,
            start_s=start / self._sample_rate,
            is_last=is_last,
            finish_reason=reason,
            codes=codes,
        )
