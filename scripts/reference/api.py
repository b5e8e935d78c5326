"""The page of the Python API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Literal, get_args, get_origin

from reference.markdown import code, linked, page, table
from reference.walk import (
    CLASSES,
    Member,
    Parameter,
    find,
    members,
    speech_options,
)

INTRODUCTION = """\
`vivace` exports `TTS`, `Audio`, `AudioChunk`, `Lexicon`, `SamplingParams`, `TTSError`, `Usage`,
`Voice` and `Word`. Each section names the module of its class. [Python](../python.md) introduces
the API with examples, and [Errors](errors.md) lists the exceptions."""
OPTIONS = """\
## Speech options

Options of `speak`, `aspeak`, `stream`, `astream`, `dialogue` and `stream_dialogue`. All are given
by name. The sampling options, from `temperature` on, replace the values in the checkpoint's files.
An unknown name raises `RequestError`."""
SHARED = "It also takes the [speech options](#speech-options)."
TYPES = "## Types"
CHECKPOINT = "checkpoint default"
# Names of types in signatures, and their values.
ALIASES = {
    "VoiceSource": "A name, a path or a `Voice`.",
    "AudioSource": "A path, bytes, a data URI, (samples, rate) or an `Audio`.",
    "LexiconSource": "A `Lexicon`, a path, or a mapping of words to respellings.",
    "LivePieces": "An iterator of text; pieces that are None are skipped.",
    "AsyncPieces": "An async iterator of text; pieces that are None are skipped.",
    "DialogueLines": "A `DialogueScript`, or an iterable of (voice, text).",
    "ChunkFrames": "A number of frames, or several numbers; the last one repeats.",
}
LITERALS = {
    "Weights": "vivace.model.config",
    "Profile": "vivace.engine.limits",
    "CodecPrecision": "vivace.backends.base",
    "FinishReason": "vivace.speech",
    "TextLayout": "vivace.speech",
    "LiveMode": "vivace.speech",
    "OnUnsupported": "vivace.speech",
    "ModelType": "vivace.model.config",
}


def api_page() -> str:
    parts = [part for path in CLASSES for part in _class(path)]
    rows = [(code(name), text) for name, text in ALIASES.items()]
    options = (OPTIONS, _table(speech_options(), "option"))
    types = (TYPES, table(("type", "values"), rows))
    return page("Python API", INTRODUCTION, *parts, *options, *types)


def _class(path: str) -> Iterator[str]:
    own, *others = members(path)
    yield f"## {own.name}"
    yield f"`{path.rpartition('.')[0]}.{own.name}`"
    yield own.text
    if own.parameters:
        yield _table(own.parameters, "field")
    properties = [one for one in others if one.kind == "property"]
    if properties:
        rows = [(code(one.name), _type(one.returns), linked(one.text)) for one in properties]
        yield table(("property", "type", "description"), rows)
    for one in others:
        if one.kind == "method":
            yield from _method(find(path).__name__, one)


def _method(owner: str, member: Member) -> Iterator[str]:
    yield f"### {owner}.{member.name}"
    yield f"```text\n{_signature(owner, member)}\n```"
    yield member.text
    shared = {(one.name, one.default) for one in speech_options()}
    own = [one for one in member.parameters if (one.name, one.default) not in shared]
    takes_options = len(member.parameters) > len(shared) // 2 + len(own)
    if member.parameters:
        yield _table(own if takes_options else member.parameters, "parameter")
    if takes_options:
        yield SHARED


def _signature(owner: str, member: Member) -> str:
    """The call with its positional parameters and its result."""
    positional = [one for one in member.parameters if not one.is_keyword]
    names = [f"{one.name}={one.default}" if one.default else one.name for one in positional]
    names += ["*", "…"] if len(positional) < len(member.parameters) else []
    word = "await " if member.is_async else ""
    target = owner if member.name in {"load", "of"} else owner.lower()
    result = "" if member.returns in {"", "None"} else f" -> {member.returns}"
    return f"{word}{target}.{member.name}({', '.join(names)}){result}"


def _table(parameters: tuple[Parameter, ...] | list[Parameter], head: str) -> str:
    rows = [
        (code(one.name), _type(one.kind), _default(one), linked(one.help_text))
        for one in parameters
    ]
    return table((head, "type", "default", "description"), rows)


def _type(written: str) -> str:
    """The alternatives of a type, with the values of a `Literal` instead of its name.

    A table cell cannot contain `|` in a way that all Markdown readers show alike.
    """
    names = re.sub(r"(\w+) \| None(?=\])", r"Optional[\1]", written).split(" | ")
    return ", ".join(code(value) for name in names for value in _values(name))


def _values(name: str) -> Iterator[str]:
    if name not in LITERALS:
        yield name
        return
    values = getattr(import_module(LITERALS[name]), name)
    assert get_origin(values) is Literal
    yield from map(repr, get_args(values))


def _default(one: Parameter) -> str:
    if not one.default:
        return "required"
    return "the checkpoint's" if one.default == CHECKPOINT else code(one.default)
