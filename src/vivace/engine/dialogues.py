"""Speaks dialogues with a Synthesizer: all lines as a batch, or as one stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TypeVar

from vivace.dialogue.make import make_dialogue, open_dialogue
from vivace.dialogue.script import DialogueScript
from vivace.dialogue.stream import DialogueStream
from vivace.dialogue.talk import Dialogue, LineSpacing
from vivace.engine.synthesizer import Synthesizer
from vivace.errors import RequestError
from vivace.options import DialogueOptions, DialogueStreamOptions, LineOptions
from vivace.voices.find import VoiceSource

DialogueLines = DialogueScript | Iterable[tuple[VoiceSource, str]]
Lines = TypeVar("Lines", bound=LineOptions)


def speak_dialogue(
    synthesizer: Synthesizer, lines: DialogueLines, given: DialogueOptions
) -> Dialogue:
    options = _check(synthesizer, given)
    return make_dialogue(
        DialogueScript.of(lines, options.voices or {}),
        LineSpacing(gap_s=options.gap_s, overlap_s=options.overlap_s),
        options.sampling.get("seed"),
        presets=synthesizer.presets,
        get_voice=synthesizer.find_voice,
        speak=lambda texts, name: synthesizer.speak_lines(
            [(text, dataclasses.replace(options, **own)) for text, own in texts],
            name,
            given=options.sampling,
            progress=options.progress,
        ),
    )


def stream_dialogue(
    synthesizer: Synthesizer, lines: DialogueLines, given: DialogueStreamOptions
) -> DialogueStream:
    options = _check(synthesizer, given)
    return open_dialogue(
        DialogueScript.of(lines, options.voices or {}),
        LineSpacing(gap_s=options.gap_s, overlap_s=options.overlap_s),
        options.sampling.get("seed"),
        presets=synthesizer.presets,
        get_voice=synthesizer.find_voice,
        open_stream=lambda text, **own: synthesizer.open(
            text, dataclasses.replace(options, **own), chunk_frames=options.chunk_frames
        ),
        sample_rate=synthesizer.sample_rate,
        looks_ahead=synthesizer.num_together > 1,
    )


def _check(synthesizer: Synthesizer, options: Lines) -> Lines:
    """Raise RequestError for a checkpoint without voices, and for one voice for all lines."""
    synthesizer.check_shared_voice()
    if options.voice is not None:
        raise RequestError("voice: each line of a dialogue has its own voice; leave voice out")
    return synthesizer.look_up_once(options)
