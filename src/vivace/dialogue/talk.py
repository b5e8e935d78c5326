"""A spoken dialogue: the position of every line, the mix, and a track for each speaker."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vivace.arguments import as_path
from vivace.audio.clip import Audio
from vivace.audio.file_mark import join_marks
from vivace.audio.formats import format_of
from vivace.audio.trim import sound_span
from vivace.audio.writer import write_audio
from vivace.dialogue.cast import FreeNames
from vivace.dialogue.script import DialogueLine
from vivace.errors import AudioError, RequestError
from vivace.speech import Usage, join_words, move_words, shown

MAX_GAP_S = 10.0
KEPT_S = 0.05  # silence kept around a line, because it may contain the end of a sound
OTHER_GAP_S, SAME_GAP_S = 0.35, 0.45  # before another speaker, before the same one
GAPS_S = {"?": 0.25, "？": 0.25, "…": 0.6, "...": 0.6, "—": 0.05, "–": 0.05, "-": 0.05}
_CLOSERS = "\"'”’)]»」』 \t"
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")

Samples = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSpacing:
    """Silence and overlap between lines, in seconds."""

    gap_s: float | None = None  # None: depends on the end of the line and on the next speaker
    overlap_s: float = 0.0  # how long before the end of a line another speaker begins

    def __post_init__(self) -> None:
        for name in ("gap_s", "overlap_s"):
            value = getattr(self, name)
            if value is None and name == "gap_s":
                continue
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= MAX_GAP_S:
                raise RequestError(
                    f"{name} must be from 0 to {MAX_GAP_S:g} seconds, not {shown(value)}"
                )

    def gap_after(self, before: DialogueLine, line: DialogueLine, *, is_same: bool) -> float:
        """Seconds from the end of a line to the start of the next; negative: they overlap."""
        overlap_s = self.overlap_s if line.overlap_s is None else line.overlap_s
        if overlap_s and not is_same:
            return -overlap_s
        if self.gap_s is not None:
            return self.gap_s
        if is_same:
            return SAME_GAP_S
        text = before.text.rstrip(_CLOSERS)
        return next((gap_s for end, gap_s in GAPS_S.items() if text.endswith(end)), OTHER_GAP_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenLine:
    """A line at its position in the dialogue."""

    speaker: str
    text: str
    start: int  # in samples
    audio: Audio  # without silence at both ends

    @property
    def start_s(self) -> float:
        return self.start / self.audio.sample_rate

    @property
    def end_s(self) -> float:
        return self.start_s + self.audio.duration_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Dialogue(Audio):
    """The mix of all lines, and each line. `codes` has the codes of all lines in order."""

    lines: tuple[SpokenLine, ...]  # text, speaker, start and samples of every line

    @property
    def speakers(self) -> list[str]:
        """Speakers in the order of their first lines."""
        return list(dict.fromkeys(line.speaker for line in self.lines))

    @property
    def tracks(self) -> dict[str, Samples]:
        """A track per speaker, as long as the mix; silent while others speak."""
        own: dict[str, list[SpokenLine]] = {}
        for line in self.lines:
            own.setdefault(line.speaker, []).append(line)
        return {speaker: _lay(lines, len(self.samples)) for speaker, lines in own.items()}

    def save_tracks(self, path: str | Path, *, overwrite: bool = False) -> list[Path]:
        """Write a file for each speaker.

        Args:
            path: `talk.wav` becomes `talk-Anna.wav` and `talk-Ben.wav`.
            overwrite: Replace existing files, which otherwise raise OutputExistsError.
        """
        paths = track_paths(path, self.speakers)
        for file, samples in zip(paths, self.tracks.values(), strict=True):
            write_audio(file, samples, self.sample_rate, force=overwrite, mark=self.mark)
        return paths


def track_paths(path: str | Path, speakers: Iterable[str]) -> list[Path]:
    """A file name for each speaker. Characters that file names cannot have become _."""
    path = as_path("path", path, AudioError)
    format_of(path)  # raises for a path without a file name
    names = FreeNames(fold=str.casefold)
    stems = (f"{path.stem}-{_NOT_IN_NAMES.sub('_', speaker)[:80]}" for speaker in speakers)
    return [path.with_name(names.take(stem) + path.suffix) for stem in stems]


def arrange(
    lines: Sequence[DialogueLine],
    speakers: Sequence[str],
    audios: Sequence[Audio],
    spacing: LineSpacing,
    *,
    wall_s: float,
) -> Dialogue:
    """Place the lines one after another.

    A line begins neither before the previous line nor before the end of its speaker's last line.
    """
    spoken: list[SpokenLine] = []
    start = end = 0  # start of the last line's sound; end of all sound so far
    own_ends: dict[str, int] = {}
    for number, (line, speaker, audio) in enumerate(zip(lines, speakers, audios, strict=True)):
        first, last = _sound(line, audio)
        kept = min(first, round(KEPT_S * audio.sample_rate))
        if number:
            is_same = speakers[number - 1] == speaker
            gap_s = spacing.gap_after(lines[number - 1], line, is_same=is_same)
            start = max(start, end + round(gap_s * audio.sample_rate), own_ends.get(speaker, 0))
        start = max(start, kept)
        cut = audio.samples[first - kept : last + round(KEPT_S * audio.sample_rate)]
        begin_s, length_s = (first - kept) / audio.sample_rate, len(cut) / audio.sample_rate
        words = move_words(audio.words, -begin_s, length_s)
        own = dataclasses.replace(audio, samples=cut, words=words)
        spoken.append(SpokenLine(speaker=speaker, text=line.text, start=start - kept, audio=own))
        own_ends[speaker] = start + last - first
        end = max(end, own_ends[speaker])
    return _join(spoken, wall_s)


def _sound(line: DialogueLine, audio: Audio) -> tuple[int, int]:
    """First and last sample of the sound. Pauses written in the text belong to it."""
    first, last = sound_span(audio.samples, audio.sample_rate)
    begins_with_pause, ends_with_pause = line.has_pauses
    return 0 if begins_with_pause else first, len(audio.samples) if ends_with_pause else last


def _join(lines: Sequence[SpokenLine], wall_s: float) -> Dialogue:
    num_samples = max(line.start + len(line.audio.samples) for line in lines)
    samples = _lay(lines, num_samples)
    peak = float(np.abs(samples).max(initial=0.0))
    usages, rate = [line.audio.usage for line in lines], lines[0].audio.sample_rate
    reasons = [line.audio.finish_reason for line in lines]
    return Dialogue(
        samples=samples / np.float32(peak)
        if peak > 1
        else samples,  # overlapping lines may exceed full scale
        sample_rate=rate,
        codes=np.concatenate([line.audio.codes for line in lines]),
        finish_reason=next((reason for reason in reasons if reason != "stop"), "stop"),
        usage=Usage.total(
            usages,
            audio_s=len(samples) / rate,
            wall_s=wall_s,
            first_audio_ms=1000 * wall_s,  # all audio is returned at once
        ),
        # Their offsets refer to the text of the line.
        words=join_words(move_words(line.audio.words, line.start_s) for line in lines),
        mark=join_marks(line.audio.mark for line in lines),
        lines=tuple(lines),
    )


def _lay(lines: Sequence[SpokenLine], num_samples: int) -> Samples:
    """Add up lines, each at its position."""
    whole = np.zeros(num_samples, np.float32)
    for line in lines:
        whole[line.start : line.start + len(line.audio.samples)] += line.audio.samples
    return whole
