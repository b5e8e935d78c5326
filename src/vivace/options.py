"""Declares the options of `TTS.speak`, `TTS.stream` and their variants, each option once.

The public methods, the command line, the server and `vivace.compat` build one of these objects.
Everything below them receives that object.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar

from vivace.arguments import check_flag
from vivace.errors import RequestError
from vivace.mark.marking import MarkSource
from vivace.speech import (
    AUTO_LANGUAGE,
    LiveMode,
    OnUnsupported,
    SamplingOptions,
    TextLayout,
    language_name,
)
from vivace.text.lexicon import LexiconSource
from vivace.text.options import TextOptions

if TYPE_CHECKING:
    from typing_extensions import Self

    from vivace.voices.find import VoiceSource

ChunkFrames = int | Iterable[int]
RAMP = (1, 2, 4, 8)  # first audio soon, then fewer chunks

P = ParamSpec("P")
Owner = TypeVar("Owner")
Text = TypeVar("Text")
Result = TypeVar("Result")
Options = TypeVar("Options", bound="SpeechOptions")


@dataclass(frozen=True, kw_only=True)
class SpeechOptions(TextOptions, SamplingOptions):
    """How to speak a text: `TextOptions`, `SamplingOptions` and the fields below."""

    voice: Annotated[
        VoiceSource | None, "A preset, a `Voice`, a library's name, a voice file or a recording."
    ] = None
    language: Annotated[str, "Of the text: `english`, `en`, `en-US`; `auto`."] = AUTO_LANGUAGE
    instruct: Annotated[str | None, "How to speak, or the voice to design."] = None
    speed: Annotated[float, "0.25 to 4 times as fast, at the same pitch."] = 1.0
    split: Annotated[bool, "Speak a long text as utterances of a few sentences."] = True
    normalize: Annotated[
        bool | None,
        "Write English numbers, dates and signs as words; None: the checkpoint's.",
    ] = None
    on_unsupported: Annotated[
        OnUnsupported, "Letters the checkpoint cannot read: `skip` lists them, `error` rejects."
    ] = "skip"
    lexicon: Annotated[
        LexiconSource | None, "How to read words: a file, a mapping or a `Lexicon`."
    ] = None
    guard: Annotated[bool, "Stop speech that does not end or is silent, and retry it once."] = True
    trim: Annotated[bool, "Remove silence at the start, a stall at the end and repeats."] = False
    trim_start: Annotated[bool, "Remove silence at the start, except for 20 ms."] = False
    text_layout: Annotated[
        TextLayout | None, "None: `streamed` for cloned voices, otherwise `whole`."
    ] = None
    live: Annotated[
        LiveMode | None, "Text in pieces: speak each `word` or `sentence`; None: as the checkpoint."
    ] = None
    timings: Annotated[bool, "Add the start and end of every word (docs/timings.md)."] = False
    mark: Annotated[
        MarkSource | None,
        "`metadata`, `watermark`, `c2pa`, `watermark,c2pa` or `none` (docs/responsible-use.md).",
    ] = None

    def __new__(cls, **given: Any) -> Self:
        """Raise RequestError for unknown names, before `__init__` raises TypeError."""
        check_names(given, cls.__dataclass_fields__)
        return super().__new__(cls)

    def to(self, kind: type[Options], **changes: Any) -> Options:
        """Convert to another class of options; its other fields have their defaults."""
        names = self.__dataclass_fields__.keys() & kind.__dataclass_fields__.keys()
        return kind(**{name: getattr(self, name) for name in names} | changes)

    def changed(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        fields = self.__dataclass_fields__.values()
        values = {field.name: getattr(self, field.name) for field in fields}
        return {one.name: values[one.name] for one in fields if values[one.name] != one.default}

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name in _flags(kind):
            check_flag(name, getattr(self, name))
        if isinstance(self.language, str):  # other types are rejected with the checkpoint at hand
            object.__setattr__(self, "language", language_name(self.language))


@dataclass(frozen=True, kw_only=True)
class WholeOptions(SpeechOptions):
    """Options of the methods that return all of the audio."""

    trim: bool = True
    progress: Annotated[bool, "Show a progress bar on stderr."] = False


@dataclass(frozen=True, kw_only=True)
class SpeakOptions(WholeOptions):
    """Options of `speak` and `aspeak`."""

    verify: Annotated[bool, "Transcribe the speech and compare (docs/completeness.md)."] = False


@dataclass(frozen=True, kw_only=True)
class StreamOptions(SpeechOptions):
    """Options of `stream` and `astream`."""

    trim_start: bool = True
    chunk_frames: Annotated[
        ChunkFrames, "Frames of 80 ms per chunk: a number, or several; the last repeats."
    ] = RAMP


@dataclass(frozen=True, kw_only=True)
class LineOptions(SpeechOptions):
    """Options that `dialogue` and `stream_dialogue` share."""

    trim: bool = True
    voices: Annotated[Mapping[str, VoiceSource] | None, "The voice of each name in the lines."] = (
        None
    )
    gap_s: Annotated[float | None, "Silence between lines; None: a natural gap."] = None
    overlap_s: Annotated[float, "How long before a line's end another speaker begins."] = 0.0


@dataclass(frozen=True, kw_only=True)
class DialogueOptions(LineOptions, WholeOptions):
    """Options of `dialogue`."""


@dataclass(frozen=True, kw_only=True)
class DialogueStreamOptions(LineOptions, StreamOptions):
    """Options of `stream_dialogue`."""


def check_names(given: Iterable[str], known: Collection[str]) -> None:
    """Raise RequestError for names that are not `known`."""
    if unknown := sorted({name for name in given if name not in known}):
        near = [word for name in unknown for word in get_close_matches(name, known, 1)]
        hint = f"did you mean {near[0]}?" if near else f"try one of: {', '.join(sorted(known))}"
        raise RequestError(f"no option named {', '.join(unknown)}; {hint}")


def takes(
    options: Callable[P, SpeechOptions], *, leave_out: Collection[str] = ()
) -> Callable[[Callable[[Owner, Text], Result]], Callable[Concatenate[Owner, Text, P], Result]]:
    """Give `method(self, text, **options)` the signature and the help of an options class.

    Type checkers read the signature from the annotation of this function, `inspect` and notebooks
    from `__signature__`, and jedi from the call `options(**options)` inside the method.
    """

    def decorate(method: Any) -> Any:
        signature = inspect.signature(method)
        own = [one for one in signature.parameters.values() if one.kind != one.VAR_KEYWORD]
        shown = _parameters(options, leave_out)
        method.__signature__ = signature.replace(parameters=[*own, *shown])
        if method.__doc__ is not None:
            hints = _hints(options)
            lines = [f"    {one.name}: {hints[one.name].__metadata__[0]}" for one in shown]
            method.__doc__ = "\n".join([inspect.cleandoc(method.__doc__), "", "Options:", *lines])
        return method

    return decorate


def _parameters(options: Any, leave_out: Collection[str]) -> list[inspect.Parameter]:
    hints, fields = _hints(options), options.__dataclass_fields__
    names = [name for name in fields if name not in leave_out]
    parts = (TextOptions.__dataclass_fields__, SamplingOptions.__dataclass_fields__)
    names.sort(key=lambda name: [name in part for part in reversed(parts)])
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=fields[name].default,
            annotation=getattr(hints[name], "__origin__", hints[name]),
        )
        for name in names
    ]


@cache
def _flags(options: Any) -> tuple[str, ...]:
    """The names of the options that are True or False."""
    fields = options.__dataclass_fields__.values()
    return tuple(field.name for field in fields if isinstance(field.default, bool))


@cache
def _hints(options: Any) -> dict[str, Any]:
    """The `Annotated` type of every option, which has one line of help."""
    from vivace.voices.find import VoiceSource  # imports numpy, which `--help` does not need

    inherited = [_hints(part) for part in reversed(options.__mro__[1:-1])]
    hints = {name: hint for part in inherited for name, hint in part.items()}
    names = {"VoiceSource": VoiceSource}
    own = inspect.get_annotations(options, locals=names, eval_str=True)
    return hints | {name: hint for name, hint in own.items() if name not in hints}
