"""Commands, requests and settings in the README and docs are valid; sample output is real."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.project import ROOT
from tests.support.serving import Running
from vivace.cli.main import main
from vivace.cli.parser import build_parser
from vivace.plan import planner
from vivace.serve.setting_sources import by_field_name, resolve_settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            yield page, block


def commands() -> Iterator[tuple[str, list[str]]]:
    """The arguments of every `vivace` command, by page."""
    for page, block in blocks("bash"):
        for line in block.replace("\\\n", " ").split("\n"):
            for part in re.split(r"&&|\||;", re.sub(r" &$| < \S+", "", line.strip())):
                words = shlex.split(part, comments=True)
                while words and re.fullmatch(r"[A-Z_]+=\S*|export", words[0]):
                    words.pop(0)
                if words[:1] == ["vivace"]:
                    yield page.name, words[1:]


COMMANDS = list(commands())


def test_pages_have_commands() -> None:
    assert len(COMMANDS) > 35


@pytest.mark.parametrize(
    ("page", "arguments"), COMMANDS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(COMMANDS)]
)
def test_command_is_accepted_by_the_parser(page: str, arguments: list[str]) -> None:
    parser, names = build_parser()[:2]
    if arguments and arguments[0] not in names and arguments[0] != "--help":
        arguments = ["say", *arguments]
    parser.parse_args(arguments)


SPEECH = [
    (page.name, re.search(r"-d '(\{.*?\})'", block, re.DOTALL))
    for page, block in blocks("bash")
    if "/v1/audio/speech " in block
]


@pytest.mark.parametrize(("page", "found"), SPEECH, ids=[page for page, _ in SPEECH])
def test_curl_request_is_served(page: str, found: re.Match[str] | None, server: Running) -> None:
    assert found is not None
    response = httpx.post(f"{server.url}/v1/audio/speech", json=json.loads(found[1]), timeout=60)
    assert response.status_code == 200
    assert len(response.content) > 100


@pytest.mark.parametrize(("page", "text"), list(blocks("toml")), ids=lambda value: "")
def test_toml_is_a_lexicon_or_settings(page: Path, text: str) -> None:
    values = tomllib.loads(text)
    if page.name == "settings.md":
        fields = by_field_name(values, page.name)
        resolve_settings(fields, {"VIVACE_API_KEY": "key"})
    else:
        assert "lexicon" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "text"), list(blocks("json")), ids=lambda value: "")
def test_json_is_valid(page: Path, text: str) -> None:
    assert all(json.loads(line) for line in text.strip().split("\n"))


PLANS = re.findall(
    r"```bash\nvivace (plan [^\n]*)\n```\n\n```text\n(.*?)```",
    (ROOT / "docs" / "planning.md").read_text(encoding="utf-8"),
    re.DOTALL,
)


@pytest.mark.slow  # each simulates calls for ten seconds; the test below has the other lines
@pytest.mark.parametrize(("command", "output"), PLANS, ids=[plan[0] for plan in PLANS])
def test_plan_prints_the_output_in_the_docs(
    command: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == output


@pytest.mark.parametrize(("command", "output"), PLANS, ids=[plan[0] for plan in PLANS])
def test_plan_for_the_calls_per_gpu_in_the_docs_has_their_gpus_and_cost(
    command: str, output: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a short simulation, which changes the times and no words."""
    most = int(output.partition("at most ")[2].split()[0].replace(",", ""))
    monkeypatch.setattr(planner, "_max_calls", lambda *_: most)
    monkeypatch.setattr(planner, "FINAL_S", 1.0)
    monkeypatch.setattr(planner, "LOSS_S", 1.0)
    assert main(shlex.split(command)) == 0
    found = capsys.readouterr().out
    assert [without_numbers(line) for line in found.splitlines()] == [
        without_numbers(line) for line in output.splitlines()
    ]
    for name in ("calls ", "GPUs ", "calls/GPU", "cost"):
        assert line_of(found, name) == line_of(output, name)


def without_numbers(text: str) -> str:
    return " ".join(re.sub(r"\d[\d.,]*", "0", text).split())


def line_of(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(name))


def test_planning_page_has_sample_output() -> None:
    assert len(PLANS) == 3
