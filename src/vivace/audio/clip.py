"""`Audio` and `AudioChunk`, the results of `TTS`: samples, codes and finish reason."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vivace.audio.encode import open_encoder, tags_of
from vivace.audio.file_mark import FileMark
from vivace.audio.formats import FORMATS
from vivace.audio.subtitles import write_subtitles
from vivace.audio.writer import sign_bytes, write_audio
from vivace.speech import FinishReason, Usage, Word

NOTEBOOK_FORMAT = "mp3"  # supported by every browser, and small
MAX_NOTEBOOK_S = 600.0  # audio embedded in a notebook, about 7 MB


class _ArrayLike:
    """Converts objects with `samples` to arrays. NumPy before 2.0 does not pass `copy`."""

    __slots__ = ()
    samples: NDArray[np.float32]

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[np.generic]:
        samples = self.samples
        if copy is False and dtype is not None and samples.dtype != dtype:
            raise ValueError(
                f"{samples.dtype} samples cannot be converted to {dtype} without a copy"
            )
        return np.array(samples, dtype=dtype) if copy else np.asarray(samples, dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Audio(_ArrayLike):
    """The speech of one text.

    Two are equal if their sample rate, samples, codes and finish reason are equal.
    """

    samples: NDArray[np.float32]  # [n], -1 to 1
    sample_rate: int  # in Hz
    codes: NDArray[np.int64]  # [frames, codebooks]
    finish_reason: FinishReason  # why the speech ended: stop, length, stall or cancelled
    usage: Usage  # size, time and completeness
    words: tuple[Word, ...] | None = None  # None without `timings`, or if unsupported
    transcript: str | None = None  # of a speech recogniser, with `verify=True`
    word_error_rate: float | None = None  # of the transcript
    mark: FileMark | None = None  # what files say about their origin; None: nothing

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return len(self.samples) / self.sample_rate

    @property
    def completeness(self) -> float | None:
        """Share of words that were spoken with a plausible duration; None if unknown."""
        return self.usage.completeness

    @property
    def missing_words(self) -> tuple[str, ...]:
        """Words of the text that were not spoken, as the model received them."""
        return self.usage.missing_words

    @property
    def skipped(self) -> tuple[str, ...]:
        """Parts of the text with characters that the checkpoint does not support, in order."""
        return self.usage.skipped

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the samples to a file. Returns its path.

        Args:
            path: The extension (.wav, .flac, .mp3, …) selects the format.
            overwrite: Replace an existing file, which otherwise raises OutputExistsError.
        """
        return write_audio(path, self.samples, self.sample_rate, force=overwrite, mark=self.mark)

    def save_subtitles(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the words to a subtitle file. Raises RequestError if there are no timings.

        Args:
            path: The extension selects the format: .srt, .vtt or .json.
            overwrite: Replace an existing file, which otherwise raises OutputExistsError.
        """
        return write_subtitles(path, self.words, force=overwrite)

    def to_bytes(self, format: str = "wav") -> bytes:
        """Encode to a complete file in memory.

        Args:
            format: `wav`, `pcm`, `mp3`, `opus`, `aac`, `flac` or `ogg`.
        """
        return encode(self.samples, self.sample_rate, format, self.mark)

    def play(self) -> None:
        """Play the audio and wait for the end; AudioError if no sound output works."""
        from vivace.audio.play import find_output

        with find_output().player(self.sample_rate) as player:
            player.write(self.samples)

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
        """An audio player for notebooks, limited to the first `MAX_NOTEBOOK_S` seconds."""
        most = round(MAX_NOTEBOOK_S * self.sample_rate)
        mark = None if self.mark is None else self.mark.unsigned()
        content = encode(self.samples[:most], self.sample_rate, NOTEBOOK_FORMAT, mark)
        kind = FORMATS[NOTEBOOK_FORMAT].content_type
        data = base64.b64encode(content).decode("ascii")
        note = ""
        if len(self.samples) > most:
            note = f"<br>first {MAX_NOTEBOOK_S:.0f} of {self.duration_s:.0f} s; save() writes all"
        return f'<audio controls src="data:{kind};base64,{data}"></audio>{note}'


def encode(
    samples: NDArray[np.float32], sample_rate: int, format: str, mark: FileMark | None = None
) -> bytes:
    """Encode to a complete file in memory."""
    if mark is not None:
        mark.check_format(format)
    encoder = open_encoder(format, sample_rate, tags=tags_of(mark))
    file = io.BytesIO(encoder.encode(samples) + encoder.finish())
    encoder.patch(file)
    if mark is None or mark.signer is None:
        return file.getvalue()
    return sign_bytes(mark.signer, file, format)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AudioChunk(_ArrayLike):
    """One part of a stream. The last chunk may have no samples."""

    samples: NDArray[np.float32]  # [n], -1 to 1
    sample_rate: int  # in Hz
    start_s: float  # position in the stream
    is_last: bool  # whether the stream has ended
    finish_reason: FinishReason | None  # on the last chunk
    codes: NDArray[np.int64]  # [frames, codebooks]
    words: tuple[Word, ...] | None = None  # words that ended, slightly delayed; None: no timings
    usage: Usage | None = None  # of the whole stream, on the last chunk
    skipped: tuple[str, ...] = ()  # since the last chunk; see `Audio.skipped`

    def __repr__(self) -> str:
        seconds = len(self.samples) / self.sample_rate
        end = f", the last: {self.finish_reason}" if self.is_last else ""
        return f"<AudioChunk {seconds:.2f} s from {self.start_s:.2f} s{end}>"
