"""Markdown tables and text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

DOCS_PATH = re.compile(r"docs/(\w[\w-]*)\.md")
GENERATED = "<!-- Written by `python scripts/make_reference.py`. Do not edit. -->"


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", GENERATED, *parts]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def sentence(text: str) -> str:
    """`text` with a capital and a full stop. Names of flags and code keep their case."""
    text = " ".join(text.split())
    if not text:
        return ""
    first = text.split()[0]
    if first.islower() and first.isalpha():
        text = text[0].upper() + text[1:]
    return text if text[-1] in ".!?" else f"{text}."


def linked(text: str) -> str:
    """A sentence with links instead of the paths of pages."""
    return DOCS_PATH.sub(r"[\1](../\1.md)", sentence(text))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
