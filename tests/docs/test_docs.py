"""Python examples, links and tables of the README and docs. Hub ids load tiny checkpoints here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.project import ROOT, load_script
from vivace.checkpoint import EMBEDDED
from vivace.cli.main import main

TINY_OF = {
    "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice": "custom_voice",
    "Qwen/Qwen3-TTS-12Hz-0.6B-Base": "base",
    "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign": "voice_design",
    "tiny/custom_voice": "custom_voice",
}
MOST_FRAMES = 60
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def snippets(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


SNIPPETS = [(page, code) for page in PAGES for code in snippets(page)]


@pytest.mark.parametrize(
    ("page", "code"), SNIPPETS, ids=[f"{page.stem}-{i}" for i, (page, _) in enumerate(SNIPPETS)]
)
def test_python_example_runs(
    page: Path,
    code: str,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stand_in(name: str | None, **_: object) -> Path:
        return EMBEDDED if name is None else tiny_folder / TINY_OF[str(name)]

    monkeypatch.setattr("vivace.tts.find_folder", stand_in)
    if "Qwen/" in code:  # tiny checkpoints seldom end their speech
        monkeypatch.setattr(
            "vivace.engine.utterances.utterance.frame_budget", lambda num_ids: MOST_FRAMES
        )
    monkeypatch.setenv("VIVACE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code, str(page), "exec"), names)
    for name, value in names.items():
        if name.startswith("test_") and callable(value):
            value(tmp_path)


def navigation(*groups: str) -> set[Path]:
    """The pages of these groups in mkdocs.yml; without groups all pages."""
    group, found = "", set()
    for line in (ROOT / "mkdocs.yml").read_text(encoding="utf-8").splitlines():
        if title := re.fullmatch(r"  - ([\w ]+):(?: (\S+\.md))?", line):
            group = title[1]
        for target in re.findall(r"(\S+\.md)$", line):
            if not groups or group in groups:
                found.add(ROOT / "docs" / target)
    return found


def test_navigation_lists_every_page() -> None:
    assert navigation() == set(PAGES) - {ROOT / "README.md", ROOT / "docs" / "modules.md"}


@pytest.mark.parametrize("page", sorted(navigation("Get started", "Guides")), ids=lambda p: p.name)
def test_guide_has_an_example_that_tests_run(page: Path) -> None:
    """Tests run `python` and `py` blocks, and parse `vivace` commands in `bash` blocks."""
    if page.parent.name == "integrations" or page.name == "page.md":
        return  # tests/integrations runs their examples, tests/serve/page drives the page
    text = page.read_text(encoding="utf-8")
    examples = re.findall(r"^```(?:python|py|bash)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert any("vivace" in example or "127.0.0.1" in example for example in examples)


def test_help_in_docs_equals_help_of_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert capsys.readouterr().out in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_resolve(page: Path) -> None:
    """Pages in `docs` link only to files in `docs`, which are all that the site has."""
    folder = ROOT / "docs" if page.is_relative_to(ROOT / "docs") else ROOT
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
        file = (page.parent / target).resolve()
        assert file.exists(), target
        assert file.is_relative_to(folder), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_match_benchmark_results(page: Path) -> None:
    tables = load_script(ROOT / "scripts" / "make_tables.py")
    text = page.read_text(encoding="utf-8")
    assert tables.fill(text) == text, "run scripts/make_tables.py"


def test_every_benchmark_result_is_referenced() -> None:
    users = [*PAGES, *(ROOT / "scripts").glob("*.py"), *(ROOT / "benchmarks").glob("*.*")]
    text = "".join(path.read_text(encoding="utf-8") for path in users)
    for size in ("0.6B", "1.7B"):  # named by their size
        for name in (
            "engine-{size}-half-h200",
            "engine-{size}-default-h200",
            "engine-{size}-64-h200",
            "engine-{size}-256-h200",
        ):
            text = text.replace(name, f"{name} {name.format(size=size)}")
    results = sorted((ROOT / "benchmarks" / "results").iterdir())
    patterns = set(re.findall(r"[\w.*-]+\*[\w.*-]*\.json", text))  # quality-mini-*.json
    assert results
    assert [
        path.name
        for path in results
        if path.stem not in text and not any(path.match(pattern) for pattern in patterns)
    ] == []


def test_listed_pages_have_generated_tables() -> None:
    tables = load_script(ROOT / "scripts" / "make_tables.py")
    for page in tables.PAGES:
        assert tables.BLOCK.search((ROOT / page).read_text(encoding="utf-8")), page
