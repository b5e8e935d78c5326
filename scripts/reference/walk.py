"""The public API as data: classes, methods and parameters with their types, defaults and help.

The help of a parameter is its line in the section `Args:` or `Options:` of a docstring. The help of
a field is the comment after it, or its `Annotated` text.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, is_dataclass
from importlib import import_module
from typing import Any

# Classes with their public members; None: every public method and property.
CLASSES: dict[str, tuple[str, ...] | None] = {
    "vivace.TTS": None,
    "vivace.Audio": None,
    "vivace.AudioChunk": None,
    "vivace.engine.streams.stream.Stream": ("collect", "close", "usage", "skipped"),
    "vivace.engine.streams.async_stream.AsyncStream": (
        *("collect", "aclose", "usage", "finish_reason"),
    ),
    "vivace.dialogue.talk.Dialogue": ("speakers", "tracks", "save_tracks"),
    "vivace.dialogue.stream.DialogueChunk": None,
    "vivace.dialogue.stream.DialogueStream": ("close", "usage"),
    "vivace.dialogue.script.DialogueScript": ("load",),
    "vivace.Voice": ("save", "load", "to_bytes", "width", "is_in_context", "reference_s"),
    "vivace.voices.library.VoiceLibrary": ("names", "voices", "get", "path", "add", "remove"),
    "vivace.Lexicon": ("load", "of"),
    "vivace.SamplingParams": None,
    "vivace.Usage": ("times_real_time",),
    "vivace.Word": (),
}
SECTIONS = ("Args:", "Options:")
ENTRY = re.compile(r"    (\w+): (.*)")
HIDDEN_INIT = {"TTS", "Stream", "AsyncStream", "DialogueStream", "Lexicon", "DialogueScript"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    name: str
    kind: str  # its type, as written in the source
    default: str  # empty: required
    help_text: str
    is_keyword: bool = False  # given by name only


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A method, a property, or the fields of a class."""

    name: str
    kind: str  # "method", "property" or "class"
    text: str  # the docstring without its sections
    returns: str
    parameters: tuple[Parameter, ...]
    is_async: bool = False


def find(path: str) -> type:
    module, _, name = path.rpartition(".")
    found: type = getattr(import_module(module), name)
    return found


def members(path: str) -> Iterator[Member]:
    """The class itself, then its members in the order of the source."""
    owner = find(path)
    yield _class_member(owner)
    names = CLASSES[path]
    for name in _public_names(owner) if names is None else names:
        yield _member(owner, name)


def _public_names(owner: type) -> list[str]:
    fields = getattr(owner, "__dataclass_fields__", {})
    bases = [base for base in reversed(owner.__mro__) if base.__module__.startswith("vivace")]
    names = [name for base in bases for name in vars(base)]
    return [
        name
        for name in dict.fromkeys(names)
        if not name.startswith("_") and name not in fields and not _is_data(owner, name)
    ]


def _is_data(owner: type, name: str) -> bool:
    value = inspect.getattr_static(owner, name)
    return not (callable(value) or isinstance(value, (property, classmethod, staticmethod)))


def _class_member(owner: type) -> Member:
    text, _ = split_docstring(inspect.getdoc(owner) or "")
    parameters: tuple[Parameter, ...] = ()
    if is_dataclass(owner) and owner.__name__ not in HIDDEN_INIT:
        parameters = tuple(fields(owner))
    elif owner.__name__ not in HIDDEN_INIT:
        parameters = _parameters(owner.__init__, owner)  # type: ignore[misc]
    return Member(name=owner.__name__, kind="class", text=text, returns="", parameters=parameters)


def _member(owner: type, name: str) -> Member:
    value = inspect.getattr_static(owner, name)
    if isinstance(value, property):
        assert value.fget is not None
        hints = value.fget.__annotations__
        text, _ = split_docstring(inspect.getdoc(value) or "")
        kind = str(hints.get("return", ""))
        return Member(name=name, kind="property", text=text, returns=kind, parameters=())
    function = getattr(owner, name)
    text, _ = split_docstring(inspect.getdoc(function) or "")
    return Member(
        name=name,
        kind="method",
        text=text,
        returns=str(inspect.unwrap(function).__annotations__.get("return", "")),
        parameters=_parameters(function, owner),
        is_async=inspect.iscoroutinefunction(function),
    )


def split_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The prose of a docstring, and the entries of its sections by parameter."""
    prose: list[str] = []
    entries: dict[str, str] = {}
    last: str | None = None
    in_section = False
    for line in text.split("\n"):
        if line.strip() in SECTIONS:
            in_section, last = True, None
        elif in_section and (found := ENTRY.fullmatch(line)):
            last = found[1]
            entries[last] = found[2].strip()
        elif in_section and last and line.startswith("      "):
            entries[last] += f" {line.strip()}"
        else:
            in_section = in_section and not line.strip()
            prose.append(line)
    return "\n".join(prose).strip(), entries


def _parameters(function: Any, owner: type) -> tuple[Parameter, ...]:
    _, entries = split_docstring(inspect.getdoc(function) or "")
    options = _option_types()
    found = []
    for one in inspect.signature(function).parameters.values():
        if one.name == "self":
            continue
        written = one.annotation
        kind = written if isinstance(written, str) else options.get(one.name, "")
        default = "" if one.default is one.empty else repr(one.default)
        if one.kind == one.VAR_KEYWORD:
            default = "none"
        found.append(
            Parameter(
                name=one.name,
                kind=_plain_type(kind),
                default=default,
                help_text=entries.get(one.name, ""),
                is_keyword=one.kind == one.KEYWORD_ONLY,
            )
        )
    return tuple(found)


def speech_options() -> tuple[Parameter, ...]:
    """The options that all methods of `TTS` that speak share."""
    from vivace.options import SpeechOptions
    from vivace.speech import SamplingOptions

    sampling = SamplingOptions.__dataclass_fields__
    return tuple(sorted(fields(SpeechOptions), key=lambda one: one.name in sampling))


def _option_types() -> dict[str, str]:
    """Types of all speech options as they are written."""
    from vivace.options import DialogueOptions, DialogueStreamOptions, SpeakOptions

    parents = (*SpeakOptions.__mro__, *DialogueOptions.__mro__, *DialogueStreamOptions.__mro__)
    return {
        name: kind
        for parent in reversed(parents)
        for name, kind in vars(parent).get("__annotations__", {}).items()
        if "Annotated" in str(kind)
    }


def fields(owner: type) -> Iterator[Parameter]:
    """The fields of a dataclass, those of its base classes first."""
    comments: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        if is_dataclass(base):
            comments |= _field_help(base)
    kinds = {n: k for base in reversed(owner.__mro__) for n, k in _annotations(base).items()}
    for field in owner.__dataclass_fields__.values():  # type: ignore[attr-defined]
        default = "" if field.default is MISSING else repr(field.default)
        if field.default_factory is not MISSING:
            default = f"{field.default_factory.__name__}()"
        yield Parameter(
            name=field.name,
            kind=_plain_type(str(kinds[field.name])),
            default=default,
            help_text=comments.get(field.name, ""),
        )


def _annotations(base: type) -> dict[str, Any]:
    found: dict[str, Any] = vars(base).get("__annotations__", {})
    return found


def _field_help(owner: type) -> dict[str, str]:
    """The comment after each field, or the text of its `Annotated` type."""
    source = textwrap.dedent(inspect.getsource(owner))
    tree = ast.parse(source)
    lines = source.split("\n")
    found = {}
    for node in tree.body[0].body:  # type: ignore[attr-defined]
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        comment = lines[(node.end_lineno or node.lineno) - 1][node.end_col_offset or 0 :]
        text = comment.partition("#")[2].strip()
        if not text and isinstance(node.annotation, ast.Subscript):
            text = _annotated_text(node.annotation)
        if text:
            found[node.target.id] = text
    return found


def _annotated_text(node: ast.Subscript) -> str:
    if ast.unparse(node.value) != "Annotated" or not isinstance(node.slice, ast.Tuple):
        return ""
    text = node.slice.elts[1]
    return str(text.value) if isinstance(text, ast.Constant) else ""


def _plain_type(written: str) -> str:
    """The type without `Annotated`."""
    if not written.startswith("Annotated["):
        return written
    node = ast.parse(written, mode="eval").body
    assert isinstance(node, ast.Subscript)
    assert isinstance(node.slice, ast.Tuple)
    return ast.unparse(node.slice.elts[0])
