"""The language rules hold in docs and docstrings, and the linter finds violations."""

from __future__ import annotations

import pytest

from tests.support.project import ROOT, load_script

linter = load_script(ROOT / "scripts" / "lint_docs.py")


def problems(text: str, path: str = "docs/page.md") -> list[str]:
    return list(linter.lint(linter.split(path, 1, text)))


def test_docs_and_docstrings_follow_language_rules() -> None:
    sentences = [*linter.read_docs(), *linter.read_docstrings()]
    assert len(sentences) > 3_000
    assert list(linter.lint(sentences)) == []


@pytest.mark.parametrize(
    "text",
    [
        "word " * 27,
        "The server died.",
        "Whoever reads it waits.",
        "It takes so many frames.",
        "We use a table.",
        "| a | The model goes on. |",
        "- Google's store was not tried.",
        "It was 4 ms at commit 0ea3cea.",
        "The figures are in `benchmarks/results/book-mini.json`.",
        "Run `pip install 'vivace[server]'`.",
    ],
)
def test_violation_is_reported(text: str) -> None:
    assert problems(text)


@pytest.mark.parametrize(
    "text",
    [
        "word " * 26,
        "The `server died` event has the code 1011.",
        "```text\nWe use a table.\n```",
        "<!-- We use a table. -->",
        "One sentence has words. Two " + "word " * 25,
        "| " + "word " * 20 + "| " + "word " * 20 + "|",
    ],
)
def test_allowed_text_is_not_reported(text: str) -> None:
    assert problems(text) == []


def test_docstrings_may_have_longer_sentences() -> None:
    assert problems("word " * 30, "src/vivace/tts.py") == []
    assert problems("word " * 31, "src/vivace/tts.py")
