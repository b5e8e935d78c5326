"""The reference pages equal their sources, and every public parameter is documented."""

from __future__ import annotations

import inspect
import sys

import pytest

import vivace
from tests.support.project import ROOT, load_script
from vivace import errors
from vivace.serve.settings import ServeSettings, setting_names

sys.path.insert(0, str(ROOT / "scripts"))
from reference.walk import CLASSES, find, members, speech_options, split_docstring

script = load_script(ROOT / "scripts" / "make_reference.py")


@pytest.mark.parametrize("name", script.PAGES)
def test_reference_page_equals_sources(name: str) -> None:
    committed = (script.FOLDER / name).read_text(encoding="utf-8")
    assert committed == script.PAGES[name](), "run scripts/make_reference.py"


def test_every_exported_class_is_in_reference() -> None:
    exported = {name for name in vivace.__all__ if name[0].isupper()}
    assert exported - {path.rpartition(".")[2] for path in CLASSES} == {"TTSError"}


@pytest.mark.parametrize("path", CLASSES)
def test_public_members_and_parameters_are_documented(path: str) -> None:
    missing = []
    for member in members(path):
        if not member.text:
            missing.append(member.name)
        missing += [f"{member.name}({one.name})" for one in member.parameters if not one.help_text]
    assert missing == []


@pytest.mark.parametrize("path", CLASSES)
def test_docstrings_name_existing_parameters_only(path: str) -> None:
    for member in members(path):
        if member.kind == "method":
            function = getattr(find(path), member.name)
            _, entries = split_docstring(inspect.getdoc(function) or "")
            assert entries.keys() <= {one.name for one in member.parameters}, member.name


def test_speech_options_are_documented() -> None:
    assert [one.name for one in speech_options() if not one.help_text] == []


def test_settings_are_documented() -> None:
    fields = ServeSettings.model_fields
    assert [name for name in setting_names() if not fields[name].description] == []


def test_errors_are_documented() -> None:
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind)]
    own = [kind for kind in kinds if issubclass(kind, errors.TTSError)]
    assert len(own) > 20
    assert [kind.__name__ for kind in own if not kind.__doc__] == []


def test_docstring_sections_are_split_into_parameters() -> None:
    text = (
        "Speak.\n\nArgs:\n    text: What to speak,\n        in pieces.\n    voice: A name.\n\nMore."
    )
    prose, entries = split_docstring(text)
    assert entries == {"text": "What to speak, in pieces.", "voice": "A name."}
    assert prose == "Speak.\n\n\nMore."
