"""Looks up the voices of a dialogue and speaks its lines, as a batch or as a stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from vivace.audio.clip import Audio
from vivace.dialogue.cast import find_cast
from vivace.dialogue.script import DialogueScript
from vivace.dialogue.stream import DialogueStream, LineStream
from vivace.dialogue.talk import Dialogue, LineSpacing, arrange
from vivace.errors import TTSError
from vivace.speech import MAX_SEED, as_whole_number
from vivace.voices.find import VoiceSource
from vivace.voices.voice import Voice

SEEDS_PER_LINE = 10_000  # between the seeds of two lines; each utterance of a line uses one seed

SpeakTogether = Callable[[list[tuple[str, dict[str, Any]]], Callable[[int], str]], list[Audio]]
"""Speaks texts, each with its own options. The function names a text in errors."""


def make_dialogue(
    script: DialogueScript,
    spacing: LineSpacing,
    seed: object,
    *,
    presets: Collection[str],
    get_voice: Callable[[VoiceSource], str | Voice],
    speak: SpeakTogether,
) -> Dialogue:
    began = time.perf_counter()
    speakers, texts = cast_lines(script, seed, presets, get_voice)
    audios = speak(texts, lambda number: script.lines[number].where)
    wall_s = time.perf_counter() - began
    return arrange(script.lines, speakers, audios, spacing, wall_s=wall_s)


def open_dialogue(
    script: DialogueScript,
    spacing: LineSpacing,
    seed: object,
    *,
    presets: Collection[str],
    get_voice: Callable[[VoiceSource], str | Voice],
    open_stream: Callable[..., LineStream],
    sample_rate: int,
    looks_ahead: bool,
) -> DialogueStream:
    """`open_stream` takes a text and its own options. Opens every line once, to check it."""
    speakers, texts = cast_lines(script, seed, presets, get_voice)

    def open_line(number: int) -> LineStream:
        text, own = texts[number]
        try:
            return open_stream(text, **own)
        except TTSError as error:
            error.args = (f"{script.lines[number].where}: {error}",)
            raise

    for number in range(len(texts)):
        open_line(number).close()
    return DialogueStream(
        script.lines,
        speakers,
        spacing,
        open_line,
        sample_rate=sample_rate,
        looks_ahead=looks_ahead,
    )


def cast_lines(
    script: DialogueScript,
    seed: object,
    presets: Collection[str],
    get_voice: Callable[[VoiceSource], str | Voice],
) -> tuple[list[str], list[tuple[str, dict[str, Any]]]]:
    """The speaker of each line, and the text and own options of each line."""
    cast, speakers = find_cast(script, presets)
    sources = {_key(source): source for source in cast.values()}
    found = {key: get_voice(source) for key, source in sources.items()}  # each source only once
    voices = {name: found[_key(source)] for name, source in cast.items()}
    return speakers, [
        (line.text, _line_options(seed, number, voices[speaker]))
        for number, (line, speaker) in enumerate(zip(script.lines, speakers, strict=True))
    ]


def _key(source: VoiceSource) -> object:
    return id(source) if isinstance(source, Voice) else source


def _line_options(seed: object, number: int, voice: str | Voice) -> dict[str, Any]:
    """The voice and the seed of a line. The seed does not depend on the other lines."""
    if seed is None:
        return {"voice": voice}
    if number:
        seed = as_whole_number("seed", seed) + SEEDS_PER_LINE * number
        seed %= MAX_SEED + 1
    return {"voice": voice, "seed": seed}
