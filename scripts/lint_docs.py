"""Check the language of the documentation and of the docstrings in `src`.

    python scripts/lint_docs.py            # prints each problem and returns 1 if there are any
    python scripts/lint_docs.py --sample 40    # prints random sentences of the docs, to be read

Rules: sentences of at most 26 words (30 in docstrings), no metaphors or colloquial constructions,
no history and no commit hashes in user pages. `docs/notebook` is exempt from the rules about
history.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_WORDS = 26
MAX_DOCSTRING_WORDS = 30
# Places where a rule does not apply: file, part of the sentence.
ALLOWED = {
    ("docs/embedded-voice.md", "We like AAA games."),  # a spoken text
}

PHRASES = {
    r"\b(?:dies|died|dying|buried|absolve[ds]?)\b": "write crash, fail or terminate",
    r"\b(?:the )?(?:server|model|process|engine|client) (?:hears?|heard|tells?|told|thinks)\b": (
        "machines do not hear or tell"
    ),
    r"\b(?:whoever|whatever|nobody|no one|someone|somebody)\b": "name the actor",
    r"\bso many\b": "name the number",
    r"\b(?:will do|goes on|go on|went on|comes? back|runs? on into|as it comes)\b": "colloquial",
    r"\b(?:we|our|ours|us)\b": "name the actor instead of we",
    r"\bout of the box\b": "metaphor",
    r"\bthe price is\b": "metaphor",
    r"\bheld to\b": "write compared with",
    r"\bmade up\b": "colloquial",
    r"\bfor ever\b|\bat hand\b|\bby hand\b": "idiom",
    r"\bno more than that\b|\band their like\b|\bsuch as it is\b": "colloquial",
}
HISTORY = {
    r"\b(?:was|were) not tried\b": "history; state the limit",
    r"\bbefore (?:commit|a rebase)\b|\bcommit [0-9a-f]{7}": "commit in a user page",
    r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b": "commit hash in a user page",
    r"\b(?:in between|back then|at that time|turned out|has since|used to be)\b": "history",
    r"benchmarks/results/[\w-]+\.json|[\w-]+-(?:h200|mini|cpu|arm)[\w-]*\.json": "result file",
    r"pip install .?vivace\[": "vivace is not on PyPI; write '.[extra]'",
}
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"``.+?``|`[^`]+`", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"*(`\[])|(?<=[.!?]\*\*)\s+")
ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s+")


@dataclass(frozen=True, slots=True)
class Sentence:
    path: str
    line: int
    text: str  # with its code
    prose: str  # code replaced by one word

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--sample"]:
        found = [one for one in read_docs() if one.text[-1] in ".:" and len(one.text.split()) > 5]
        for one in random.sample(found, int(arguments[1])):
            print(one)
        return 0
    problems = list(lint([*read_docs(), *read_docstrings()]))
    for problem in problems:
        print(problem)
    return bool(problems)


def lint(sentences: Iterable[Sentence]) -> Iterator[str]:
    for one in sentences:
        if any(one.path == path and part in one.text for path, part in ALLOWED):
            continue
        limit = MAX_WORDS if one.path.endswith(".md") else MAX_DOCSTRING_WORDS
        if (num_words := len(one.prose.split())) > limit:
            yield f"{one} [{num_words} words]"
        for pattern, reason in PHRASES.items():
            if found := re.search(pattern, one.prose, re.IGNORECASE):
                yield f"{one} [{found[0]!r}: {reason}]"
        if one.path.endswith(".md"):
            for pattern, reason in HISTORY.items():
                if found := re.search(pattern, one.text):
                    yield f"{one} [{found[0]!r}: {reason}]"


def read_docs() -> Iterator[Sentence]:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        name = page.relative_to(ROOT).as_posix()
        yield from split(name, 1, page.read_text(encoding="utf-8"))


def read_docstrings() -> Iterator[Sentence]:
    for module in sorted((ROOT / "src").rglob("*.py")):
        name = module.relative_to(ROOT).as_posix()
        tree = ast.parse(module.read_text(encoding="utf-8"))
        for node in (tree, *_statements(tree)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node)
                if text:
                    yield from split(name, node.body[0].lineno, _without_listings(text))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements in a node. `ast.walk` visits their expressions too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield child
            yield from _statements(child)


def _without_listings(text: str) -> str:
    """Leave out indented lines, which are code or sections, and lines with columns."""
    lines = text.split("\n")
    return "\n".join("" if line.startswith("    ") or "   " in line else line for line in lines)


def split(path: str, first_line: int, text: str) -> Iterator[Sentence]:
    """The sentences of Markdown: of paragraphs, list items and table cells."""
    text = FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
    text = COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)
    for line, block in _blocks(text):
        for part in END.split(" ".join(block.split())):
            plain = LINK.sub(r"\1", part)
            prose = re.sub(r"[*_|]", " ", CODE.sub("CODE", plain))
            if re.search(r"[A-Za-z]", prose):
                yield Sentence(path, first_line + line, plain, prose)


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items and table cells with their line numbers from 0."""
    start, block = 0, list[str]()
    for number, line in enumerate([*text.split("\n"), ""]):
        is_table = line.startswith("|")
        if not line.strip() or line.startswith("#") or is_table or ITEM.match(line):
            if block:
                yield start, " ".join(block)
            block = []
            if is_table:
                yield from ((number, cell) for cell in re.split(r"(?<!\\)\|", line))
                continue
        if line.strip():
            if not block:
                start = number
            block.append(ITEM.sub("", line, count=1) if ITEM.match(line) else line)
            if line.startswith("#"):
                yield start, line.lstrip("# ")
                block = []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
