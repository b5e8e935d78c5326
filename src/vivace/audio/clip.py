"""The results of `TTS`: samples, the codes they were decoded from, and the finish reason."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vivace.audio.encode import FORMATS, open_encoder
from vivace.audio.subtitles import write_subtitles
from vivace.audio.writer import write_audio
from vivace.speech import FinishReason, Usage, Word

NOTEBOOK_FORMAT = "mp3"  # every browser plays it, and a page stays small
NOTEBOOK_S = 600.0  # of audio in a page, about 7 MB


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Audio:
    """One spoken text.

    Two are equal if they sound the same: sample rate, samples, codes and finish reason agree.
    """

    samples: NDArray[np.float32]  # [n], -1 to 1
    sample_rate: int
    codes: NDArray[np.int64]  # [frames, codebooks]
    finish_reason: FinishReason
    usage: Usage
    words: tuple[Word, ...] | None = None  # None: not asked for, or the checkpoint gives none
    transcript: str | None = None  # a recogniser's, with `verify=True`
    word_error_rate: float | None = None  # of the transcript

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.sample_rate

    @property
    def completeness(self) -> float | None:
        """Share of words that were spoken with a plausible duration; None where it is not known."""
        return self.usage.completeness

    @property
    def missing_words(self) -> tuple[str, ...]:
        """Words of the text that were not spoken, as they were given to the voice."""
        return self.usage.missing_words

    @property
    def skipped(self) -> tuple[str, ...]:
        """Parts of the text in letters that the checkpoint does not read, in order."""
        return self.usage.skipped

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the samples to a file; its extension picks the format (.wav, .flac, .mp3, …).

        An existing file is an OutputExistsError unless `overwrite` is true.
        """
        return write_audio(path, self.samples, self.sample_rate, force=overwrite)

    def save_subtitles(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the words to a .srt, .vtt or .json file; a RequestError without timings.

        An existing file is an OutputExistsError unless `overwrite` is true.
        """
        return write_subtitles(path, self.words, force=overwrite)

    def to_bytes(self, format: str = "wav") -> bytes:
        """A whole file in memory: wav, flac, mp3, ogg, opus, aac or pcm."""
        return encode(self.samples, self.sample_rate, format)

    def play(self) -> None:
        """Play it and wait for its end; an AudioError where nothing can play."""
        from vivace.audio.play import find_output  # needed for playing only

        with find_output().player(self.sample_rate) as player:
            player.write(self.samples)

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[np.generic]:
        return _as_array(self.samples, dtype, copy)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Audio):
            return NotImplemented
        return (
            (self.sample_rate, self.finish_reason) == (other.sample_rate, other.finish_reason)
            and np.array_equal(self.samples, other.samples)
            and np.array_equal(self.codes, other.codes)
        )

    def __hash__(self) -> int:
        return hash((self.sample_rate, self.finish_reason, len(self.samples), len(self.codes)))

    def __repr__(self) -> str:
        return (
            f"<Audio {self.duration_s:.2f} s at {self.sample_rate} Hz, {self.finish_reason}, "
            f"seed {self.usage.seed}>"
        )

    def _repr_html_(self) -> str:
        """A player for a notebook; of very long audio the beginning."""
        most = round(NOTEBOOK_S * self.sample_rate)
        content = encode(self.samples[:most], self.sample_rate, NOTEBOOK_FORMAT)
        kind = FORMATS[NOTEBOOK_FORMAT].content_type
        data = base64.b64encode(content).decode("ascii")
        note = ""
        if len(self.samples) > most:
            note = f"<br>the first {NOTEBOOK_S:.0f} of {self.duration_s:.0f} s; save() writes all"
        return f'<audio controls src="data:{kind};base64,{data}"></audio>{note}'


def _as_array(
    samples: NDArray[np.float32], dtype: DTypeLike | None, copy: bool | None
) -> NDArray[np.generic]:
    """What `np.asarray` and `np.array` ask for; NumPy before 2.0 passes no `copy`."""
    if copy is False and dtype is not None and samples.dtype != dtype:
        raise ValueError(f"samples of {samples.dtype} cannot become {dtype} without a copy")
    return np.array(samples, dtype=dtype) if copy else np.asarray(samples, dtype=dtype)


def encode(samples: NDArray[np.float32], sample_rate: int, format: str) -> bytes:
    """A whole file in memory."""
    encoder = open_encoder(format, sample_rate)
    content = bytearray(encoder.encode(samples) + encoder.finish())
    for position, patch in encoder.patches:
        content[position : position + len(patch)] = patch
    return bytes(content)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AudioChunk:
    """The next part of a stream; the last one may have no samples."""

    samples: NDArray[np.float32]  # [n], -1 to 1
    sample_rate: int
    start_s: float  # where it begins in the whole
    is_last: bool
    finish_reason: FinishReason | None  # on the last chunk
    codes: NDArray[np.int64]  # [frames, codebooks]
    words: tuple[Word, ...] | None = None  # that are over by now, a little late; None: no timings
    usage: Usage | None = None  # of the whole, on the last chunk
    skipped: tuple[str, ...] = ()  # left out of the text since the last chunk; see `Audio.skipped`

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[np.generic]:
        return _as_array(self.samples, dtype, copy)

    def __repr__(self) -> str:
        seconds = len(self.samples) / self.sample_rate
        end = f", the last: {self.finish_reason}" if self.is_last else ""
        return f"<AudioChunk {seconds:.2f} s from {self.start_s:.2f} s{end}>"
