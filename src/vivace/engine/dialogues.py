"""Speaks dialogues with a Synthesizer: all lines as a batch, or as one stream."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from vivace.audio.file_mark import join_marks
from vivace.dialogue.cast import find_cast
from vivace.dialogue.script import DialogueScript
from vivace.dialogue.stream import DialogueStream, LineStream
from vivace.dialogue.talk import Dialogue, LineSpacing, arrange
from vivace.engine.synthesizer import Synthesizer
from vivace.errors import RequestError, TTSError
from vivace.options import DialogueOptions, DialogueStreamOptions, LineOptions
from vivace.speech import MAX_SEED, as_whole_number, shown
from vivace.voices.find import VoiceSource
from vivace.voices.voice import Voice

SEEDS_PER_LINE = 10_000  # between the seeds of two lines; each utterance of a line uses one seed

DialogueLines = DialogueScript | Iterable[tuple[VoiceSource, str]]
Lines = TypeVar("Lines", bound=LineOptions)


def speak_dialogue(
    synthesizer: Synthesizer, lines: DialogueLines, given: DialogueOptions
) -> Dialogue:
    began, spacing = time.perf_counter(), _spacing(given)
    script, speakers, options = _cast(synthesizer, lines, given)
    audios = synthesizer.speak_lines(
        [(line.text, own) for line, own in zip(script.lines, options, strict=True)],
        lambda number: script.lines[number].where,
        given=given.sampling,
        progress=given.progress,
    )
    wall_s = time.perf_counter() - began
    return arrange(script.lines, speakers, audios, spacing, wall_s=wall_s)


def stream_dialogue(
    synthesizer: Synthesizer, lines: DialogueLines, given: DialogueStreamOptions
) -> DialogueStream:
    """Opens every line once, to check it."""
    spacing = _spacing(given)
    script, speakers, options = _cast(synthesizer, lines, given)

    def open_line(number: int) -> LineStream:
        line, own = script.lines[number], options[number]
        try:
            return synthesizer.open(line.text, own, chunk_frames=own.chunk_frames)
        except TTSError as error:
            error.args = (f"{line.where}: {error}",)
            raise

    for number in range(len(options)):
        open_line(number).close()
    return DialogueStream(
        script.lines,
        speakers,
        spacing,
        open_line,
        sample_rate=synthesizer.sample_rate,
        looks_ahead=synthesizer.num_together > 1,
        mark=join_marks(map(synthesizer.file_mark, options)),
    )


def _spacing(options: LineOptions) -> LineSpacing:
    return LineSpacing(gap_s=options.gap_s, overlap_s=options.overlap_s)


def _cast(
    synthesizer: Synthesizer, lines: DialogueLines, given: Lines
) -> tuple[DialogueScript, list[str], list[Lines]]:
    """The script, and the speaker and the options of each line.

    Raises RequestError for a checkpoint without voices, and for one voice for all lines.
    """
    synthesizer.check_shared_voice()
    if given.voice is not None:
        raise RequestError("voice: each line of a dialogue has its own voice; leave voice out")
    if given.voices is not None and not isinstance(given.voices, Mapping):
        raise RequestError(f"voices must map names to voices, not {shown(given.voices)}")
    options = synthesizer.look_up_once(given)
    script = DialogueScript.of(lines, options.voices or {})
    speakers, voices = find_voices(script, synthesizer.presets, synthesizer.find_voice)
    return (
        script,
        speakers,
        [
            dataclasses.replace(
                options, voice=voice, **_seed_of(options.sampling.get("seed"), number)
            )
            for number, voice in enumerate(voices)
        ],
    )


def find_voices(
    script: DialogueScript,
    presets: Collection[str],
    get_voice: Callable[[VoiceSource], str | Voice],
) -> tuple[list[str], list[str | Voice]]:
    """The speaker and the voice of each line. Each source is looked up only once."""
    cast, speakers = find_cast(script, presets)
    sources = {_key(source): source for source in cast.values()}
    found = {key: get_voice(source) for key, source in sources.items()}
    return speakers, [found[_key(cast[speaker])] for speaker in speakers]


def _key(source: VoiceSource) -> object:
    return id(source) if isinstance(source, Voice) else source


def _seed_of(seed: object, number: int) -> dict[str, Any]:
    """The seed of a line, if one is given. It does not depend on the other lines."""
    if seed is None or not number:
        return {}
    return {"seed": (as_whole_number("seed", seed) + SEEDS_PER_LINE * number) % (MAX_SEED + 1)}
