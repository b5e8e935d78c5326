"""What the caller holds while an utterance is being made."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator, Iterator, Sequence
from threading import Lock

import numpy as np

from vivace.audio.clip import Audio, AudioChunk
from vivace.audio.trim import trim_start
from vivace.engine.session import Piece, Session
from vivace.errors import StreamClosedError
from vivace.model.config import CodecConfig
from vivace.speech import FinishReason, Usage
from vivace.text.script import Pause


class Stream(Iterator[AudioChunk]):
    """Chunks of a text as they are made; closing or dropping it frees its slot at once.

    Work happens while the caller waits for the next chunk, so several streams of one TTS
    interleave as their callers please. A text iterator that raised is heard after the last chunk.
    """

    def __init__(
        self, parts: Sequence[Session | Pause], config: CodecConfig, sizes: Iterator[int]
    ) -> None:
        self._parts = parts
        self._sessions = [part for part in parts if isinstance(part, Session)]
        self._sample_rate = config.output_sample_rate
        self._samples_per_frame = config.decode_upsample_rate
        self._num_codebooks = config.decoder_config.num_quantizers
        self._began = time.perf_counter()
        self._chunks = self._make_chunks(sizes)
        self._is_busy = Lock()  # a chunk is being made, perhaps in another thread
        self._num_samples = 0
        self._is_closed = False
        self.finish_reason: FinishReason | None = None
        self.num_stalled = 0  # frames at the end that say nothing, of a stall
        self.first_audio_ms: float | None = None

    def __next__(self) -> AudioChunk:
        with self._is_busy:
            if self._is_closed:
                raise StreamClosedError("this stream was closed; ask for a new one")
            return next(self._chunks)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def collect(self, *, trim: bool) -> Audio:
        """All of it at once; `trim` takes silence off the start and a stall off the end."""
        chunks = list(self)
        samples = np.concatenate([chunk.samples for chunk in chunks])
        if trim:
            end = len(samples) - self.num_stalled * self._samples_per_frame
            samples = trim_start(samples[:end], self._sample_rate)
        assert self.finish_reason is not None
        return Audio(
            samples=samples,
            sample_rate=self._sample_rate,
            codes=np.concatenate([chunk.codes for chunk in chunks]),
            finish_reason=self.finish_reason,
            usage=dataclasses.replace(self.usage, audio_s=len(samples) / self._sample_rate),
        )

    def close(self) -> None:
        """Stop here, from any thread; a stream that had not ended finishes as `cancelled`."""
        for session in self._sessions:
            session.is_cancelled = True
        with self._is_busy:
            self._chunks.close()
            if self.finish_reason is None:
                self.finish_reason = "cancelled"
                self._is_closed = True

    @property
    def admit_ms(self) -> float:
        """How long the prompt took to read; 0 until the first chunk."""
        return self._sessions[0].admit_ms

    @property
    def num_utterances(self) -> int:
        return len(self._sessions)

    @property
    def is_runaway(self) -> bool:
        """Whether something was stopped because it would not end by itself."""
        return any(s.finish_reason == "stall" or s.is_over_budget for s in self._sessions)

    @property
    def usage(self) -> Usage:
        """What was made so far and what it cost."""
        lives = [session.live for session in self._sessions if session.live is not None]
        return Usage(
            text_tokens=sum(s.num_text_ids for s in self._sessions) + sum(x.num_ids for x in lives),
            frames=sum(session.num_frames for session in self._sessions),
            audio_s=self._num_samples / self._sample_rate,
            wall_s=time.perf_counter() - self._began,
            seed=self._sessions[0].sampling.seed or 0,
            first_audio_ms=self.first_audio_ms,
        )

    def _make_chunks(self, sizes: Iterator[int]) -> Generator[AudioChunk, None, None]:
        num_left = self._sessions[0].sampling.max_frames  # of all utterances together
        reason: FinishReason = "stop"
        for index, part in enumerate(self._parts):
            is_end = index == len(self._parts) - 1
            if isinstance(part, Pause):
                yield self._chunk(self._silence(part), reason if is_end else None)
                continue
            part.sampling = part.sampling.replace(max_frames=num_left)
            for piece in part.pieces(sizes):
                is_end_of_part = piece.finish_reason is not None
                if piece.finish_reason not in (None, "stop") and reason == "stop":
                    reason = piece.finish_reason
                num_left -= len(piece.codes)
                is_end = is_end or num_left <= 0
                yield self._chunk(piece, reason if is_end_of_part and is_end else None)
            if num_left <= 0:
                break
        self._raise_text_error()

    def _chunk(self, piece: Piece, reason: FinishReason | None) -> AudioChunk:
        if self.first_audio_ms is None and len(piece.samples):
            self.first_audio_ms = 1000 * (time.perf_counter() - self._began)
        start = self._num_samples
        self._num_samples += len(piece.samples)
        self.finish_reason = reason
        self.num_stalled = piece.num_stalled if reason is not None else 0
        return AudioChunk(
            samples=piece.samples,
            sample_rate=self._sample_rate,
            start_s=start / self._sample_rate,
            is_last=reason is not None,
            finish_reason=reason,
            codes=piece.codes,
        )

    def _silence(self, pause: Pause) -> Piece:
        num_samples = round(pause.seconds * self._sample_rate)
        codes = np.empty((0, self._num_codebooks), dtype=np.int64)
        return Piece(codes, np.zeros(num_samples, dtype=np.float32))

    def _raise_text_error(self) -> None:
        for session in self._sessions:
            if session.live is not None and session.live.error is not None:
                raise session.live.error
