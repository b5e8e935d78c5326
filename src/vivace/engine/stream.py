"""What the caller holds while an utterance is being made."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from threading import Lock

from vivace.audio.clip import AudioChunk
from vivace.engine.session import Session
from vivace.errors import StreamClosedError
from vivace.speech import FinishReason, Usage


class Stream(Iterator[AudioChunk]):
    """Chunks of one utterance as they are made; closing or dropping it frees its slot at once.

    Work happens while the caller waits for the next chunk, so several streams of one TTS
    interleave as their callers please. A text iterator that raised is heard after the last chunk.
    """

    def __init__(self, session: Session, sample_rate: int, sizes: Iterator[int]) -> None:
        self._session = session
        self._sample_rate = sample_rate
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

    def close(self) -> None:
        """Stop here, from any thread; a stream that had not ended finishes as `cancelled`."""
        self._session.is_cancelled = True
        with self._is_busy:
            self._chunks.close()
            if self.finish_reason is None:
                self.finish_reason = "cancelled"
                self._is_closed = True

    @property
    def admit_ms(self) -> float:
        """How long the prompt took to read; 0 until the first chunk."""
        return self._session.admit_ms

    @property
    def is_runaway(self) -> bool:
        """Whether it was stopped because it would not end by itself."""
        return self.finish_reason == "stall" or self._session.is_over_budget

    @property
    def usage(self) -> Usage:
        """What was made so far and what it cost."""
        live, session = self._session.live, self._session
        return Usage(
            text_tokens=session.num_text_ids if live is None else live.num_ids,
            frames=session.num_frames,
            audio_s=self._num_samples / self._sample_rate,
            wall_s=time.perf_counter() - self._began,
            seed=session.sampling.seed or 0,
            first_audio_ms=self.first_audio_ms,
        )

    def _make_chunks(self, sizes: Iterator[int]) -> Generator[AudioChunk, None, None]:
        for piece in self._session.pieces(sizes):
            if self.first_audio_ms is None and len(piece.samples):
                self.first_audio_ms = 1000 * (time.perf_counter() - self._began)
            start = self._num_samples
            self._num_samples += len(piece.samples)
            self.finish_reason, self.num_stalled = piece.finish_reason, piece.num_stalled
            yield AudioChunk(
                samples=piece.samples,
                sample_rate=self._sample_rate,
                start_s=start / self._sample_rate,
                is_last=piece.finish_reason is not None,
                finish_reason=piece.finish_reason,
                codes=piece.codes,
            )
        if self._session.live is not None and self._session.live.error is not None:
            raise self._session.live.error
