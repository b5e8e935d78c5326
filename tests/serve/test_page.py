"""The page's files: whole, small, self-contained, and served under a strict policy."""

from __future__ import annotations

import re
from importlib.resources import files

import httpx
import pytest

from vivace.serve.page.page import read_files

MAX_BYTES = 60_000
NAMES = sorted(read_files())


def text_of(name: str) -> str:
    return read_files()[name].body.decode("utf-8")


def test_the_page_is_small() -> None:
    assert sum(len(each.body) for each in read_files().values()) < MAX_BYTES


def test_indentation_and_comments_stay_here() -> None:
    source = (files("vivace.serve.page") / "app.js").read_text(encoding="utf-8")
    kept = [line.lstrip("\t") for line in source.split("\n")]
    assert text_of("app.js") == "\n".join(line for line in kept if not line.startswith("//"))


def test_every_file_of_the_folder_is_served_but_for_python() -> None:
    others = {entry.name for entry in files("vivace.serve.page").iterdir()} - set(NAMES)
    assert {name for name in others if not name.startswith("__")} == {"page.py"}
    assert {"index.html", "app.js", "worklet.js", "style.css"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_files_name_each_other_relatively_and_nobody_else(name: str) -> None:
    text = text_of(name)
    hosts = re.findall(r"(?:https?:)?//[a-z][\w.-]*\.[a-z]{2,}[^\s\"']*", text)
    assert [host for host in hosts if host != "http://www.w3.org/2000/svg"] == []
    named = re.findall(r"""(?:src|href)="([^"#]+)"|from "([^"]+)"|here\("([^"]+)"\)""", text)
    for found in ("".join(groups) for groups in named):
        assert not found.startswith("/"), "an absolute address breaks under a proxy's sub-path"
        assert found.removeprefix("page/").removeprefix("./") in NAMES


def test_the_markup_has_no_inline_script_or_style() -> None:
    html = text_of("index.html")
    assert re.findall(r"<style|\sstyle=|\son\w+=|<script>|javascript:", html) == []


def test_the_page_is_served_with_a_strict_policy(client: httpx.Client) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.content == read_files()["index.html"].body


@pytest.mark.parametrize("name", NAMES)
def test_a_file_has_its_type_and_is_not_sent_twice(client: httpx.Client, name: str) -> None:
    answer = client.get(f"/page/{name}")
    assert answer.status_code == 200
    types = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg"}
    assert answer.headers["content-type"].startswith(types[name.rpartition(".")[2]])
    again = client.get(f"/page/{name}", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = client.get(f"/page/{name}", headers={"If-None-Match": '"another"'})
    assert other.content == answer.content


@pytest.mark.parametrize("name", ["page.py", "__init__.py", "..%2fapp.py", "%00", "x" * 5000, ""])
def test_nothing_else_is_served(client: httpx.Client, name: str) -> None:
    answer = client.get(f"/page/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]


def test_no_script_of_the_page_evaluates_text() -> None:
    """The policy forbids it to every browser."""
    for name, file in read_files().items():
        if name.endswith(".js"):
            assert not re.search(rb"\beval\(|new Function|innerHTML|document\.write", file.body), (
                name
            )
