"""Turns frames and pauses into audio chunks, and chunks into one audio: trim, speed, end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivace.audio.clip import Audio, AudioChunk
from vivace.audio.file_mark import FileMark
from vivace.audio.speed import SpeedChanger
from vivace.audio.trim import StartTrimmer, first_audible
from vivace.engine.utterances.frame_block import FrameBlock
from vivace.engine.utterances.steps import Wait
from vivace.mark.marking import SampleMarker
from vivace.model.config import CodecConfig
from vivace.speech import FinishReason, Usage, Word, join_words, move_words
from vivace.text.pauses import Pause

Steps = Generator[AudioChunk | Wait, None, None]
FindMark = Callable[[], FileMark | None]


def join_empty(steps: Steps) -> Steps:
    """Merge chunks without samples into the next chunk. Only the last chunk may be empty.

    Chunks are empty because trimming and `speed` hold samples back.
    """
    held: list[AudioChunk] = []
    with closing(steps):
        for step in steps:
            if not isinstance(step, AudioChunk):
                yield step
            elif len(step.samples) or step.is_last:
                yield _joined(held, step)
                held = []
            else:
                held.append(step)


def _joined(empty: Sequence[AudioChunk], chunk: AudioChunk) -> AudioChunk:
    if not empty:
        return chunk
    chunks = [*empty, chunk]
    return dataclasses.replace(
        chunk,
        codes=np.concatenate([one.codes for one in chunks]),
        words=join_words(one.words for one in chunks),
    )


@dataclass(frozen=True, slots=True)
class Effects:
    """Changes the samples of a stream: the speed, then the watermark. Holds samples back."""

    speed: SpeedChanger
    watermark: SampleMarker | None = None

    def process(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        samples = self.speed.process(samples)
        return samples if self.watermark is None else self.watermark.feed(samples)

    def finish(self) -> NDArray[np.float32]:
        """The samples that were held back."""
        samples = self.speed.finish()
        if self.watermark is None:
            return samples
        return np.concatenate([self.watermark.feed(samples), self.watermark.finish()])


class Assembler:
    """Makes consecutive chunks. The last one has the finish reason."""

    def __init__(
        self,
        config: CodecConfig,
        *,
        trim: bool,
        trim_start: bool,
        speed: float,
        has_words: bool = False,
        silence_rms: float = 0.0,
        watermark: SampleMarker | None = None,
        find_mark: FindMark | None = None,  # called for the whole audio only
    ) -> None:
        self._words: tuple[Word, ...] | None = () if has_words else None
        self.sample_rate = config.output_sample_rate
        self.samples_per_frame = config.decode_upsample_rate
        self.is_trimmed = trim
        self._silence_rms = silence_rms
        self._began = time.perf_counter()
        self.num_samples = 0
        self.num_given = 0  # samples before trim and speed
        self._num_cut = 0  # samples removed by trim
        self.first_audio_ms: float | None = None
        self.audible_ms: float | None = None
        self.num_stalled = 0  # silent or repeated frames at the end of a stall
        self._effects = Effects(SpeedChanger(speed, self.sample_rate), watermark)
        self._find_mark = find_mark
        self._trimmer = StartTrimmer(self.sample_rate) if trim or trim_start else None
        self._no_codes = np.empty((0, config.decoder_config.num_quantizers), dtype=np.int64)

    @property
    def wall_s(self) -> float:
        return time.perf_counter() - self._began

    def take_effects(self) -> Effects:
        """The effects. Later chunks are neither changed in speed nor watermarked."""
        taken, self._effects = self._effects, Effects(SpeedChanger(1.0, self.sample_rate))
        return taken

    def speech(self, block: FrameBlock | None, end: FinishReason | None) -> AudioChunk:
        """A chunk of frames. None ends the speech after the previous chunk."""
        samples = np.empty(0, np.float32) if block is None else block.samples
        self.num_given += len(samples)
        if self._trimmer is not None:
            num_given = len(samples)
            samples = self._trimmer.trim(samples, is_last=end is not None)
            self._num_cut += num_given - len(samples)
        if self.audible_ms is None and self._effects.watermark is None:
            self._note_first(samples)
        self.num_stalled = block.num_stalled if block is not None and end is not None else 0
        return self._chunk(samples, self._no_codes if block is None else block.codes, end)

    def _note_first(self, samples: NDArray[np.float32]) -> None:
        now_ms = 1000 * self.wall_s
        if self.first_audio_ms is None and len(samples):
            self.first_audio_ms = now_ms
        if first_audible(samples) is not None:
            self.audible_ms = now_ms

    @property
    def is_silent(self) -> bool:
        """Whether all samples so far are held because none is audible."""
        return self._trimmer is not None and not self._trimmer.is_open

    def silence(self, pause: Pause, end: FinishReason | None) -> AudioChunk:
        """A pause with the noise level of the voice. Digital zeros would sound like a dropout."""
        noise = np.zeros(round(pause.seconds * self.sample_rate), np.float32)
        if self._silence_rms:
            draw = np.random.default_rng(self.num_given)  # the same for all chunk sizes
            noise = draw.standard_normal(len(noise), np.float32) * np.float32(self._silence_rms)
        self.num_given += len(noise)
        return self._chunk(noise, self._no_codes, end)

    def whole(
        self,
        chunks: Sequence[AudioChunk],
        effects: Effects,  # of `take_effects`
        finish_reason: FinishReason,
        usage: Usage,
    ) -> Audio:
        """All chunks as one audio; if trimmed, without a stall at the end."""
        samples = np.concatenate([chunk.samples for chunk in chunks])
        samples = self.without_stall(samples)
        samples = np.concatenate([effects.process(samples), effects.finish()])
        words = join_words(chunk.words for chunk in chunks)
        length_s = len(samples) / self.sample_rate
        return Audio(
            samples=samples,
            sample_rate=self.sample_rate,
            codes=np.concatenate([chunk.codes for chunk in chunks]),
            finish_reason=finish_reason,
            usage=dataclasses.replace(usage, audio_s=length_s, wall_s=self.wall_s),
            words=move_words(words, 0.0, length_s, effects.speed.speed),
            mark=None if self._find_mark is None else self._find_mark(),
        )

    def without_stall(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """The samples without the stall that ended the speech, if `trim` is on."""
        num_stalled = self.num_stalled * self.samples_per_frame
        return samples[: len(samples) - num_stalled] if self.is_trimmed else samples

    def second_of(self, sample: float) -> float:
        """The time at which an input sample is played."""
        return max(0.0, sample - self._num_cut) / self.sample_rate / self._effects.speed.speed

    def _chunk(
        self, samples: NDArray[np.float32], codes: NDArray[np.int64], end: FinishReason | None
    ) -> AudioChunk:
        samples = self._effects.process(samples)
        if end is not None and len(rest := self._effects.finish()):
            samples = np.concatenate([samples, rest])
        if self.audible_ms is None and self._effects.watermark is not None:
            self._note_first(samples)
        start = self.num_samples
        self.num_samples += len(samples)
        return AudioChunk(
            samples=samples,
            sample_rate=self.sample_rate,
            start_s=start / self.sample_rate,
            is_last=end is not None,
            finish_reason=end,
            codes=codes,
            words=self._words,
        )
