"""The page's files: complete, small, self-contained and served with a strict policy."""

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


def test_page_size_is_within_its_limit() -> None:
    assert sum(len(each.body) for each in read_files().values()) < MAX_BYTES


def test_served_scripts_have_no_indentation_or_comments() -> None:
    source = (files("vivace.serve.page") / "app.js").read_text(encoding="utf-8")
    kept = [line.lstrip("\t") for line in source.split("\n")]
    assert text_of("app.js") == "\n".join(line for line in kept if not line.startswith("//"))


def test_every_file_except_python_is_served() -> None:
    others = {entry.name for entry in files("vivace.serve.page").iterdir()} - set(NAMES)
    assert {name for name in others if not name.startswith("__")} == {"page.py"}
    assert {"index.html", "app.js", "worklet.js", "style.css"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_files_contain_relative_urls_only(name: str) -> None:
    text = text_of(name)
    hosts = re.findall(r"(?:https?:)?//[a-z][\w.-]*\.[a-z]{2,}[^\s\"']*", text)
    assert [host for host in hosts if host != "http://www.w3.org/2000/svg"] == []
    named = re.findall(r"""(?:src|href)="([^"#]+)"|from "([^"]+)"|here\("([^"]+)"\)""", text)
    for found in ("".join(groups) for groups in named):
        assert not found.startswith("/"), "an absolute address breaks under a proxy's sub-path"
        assert found.removeprefix("page/").removeprefix("./") in NAMES


def test_markup_has_no_inline_script_or_style() -> None:
    html = text_of("index.html")
    assert re.findall(r"<style|\sstyle=|\son\w+=|<script>|javascript:", html) == []


def test_page_has_a_strict_content_security_policy(client: httpx.Client) -> None:
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
def test_file_has_its_content_type_and_etag(client: httpx.Client, name: str) -> None:
    answer = client.get(f"/page/{name}")
    assert answer.status_code == 200
    types = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg"}
    assert answer.headers["content-type"].startswith(types[name.rpartition(".")[2]])
    again = client.get(f"/page/{name}", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = client.get(f"/page/{name}", headers={"If-None-Match": '"another"'})
    assert other.content == answer.content


@pytest.mark.parametrize("name", ["page.py", "__init__.py", "..%2fapp.py", "%00", "x" * 5000, ""])
def test_unknown_file_returns_404(client: httpx.Client, name: str) -> None:
    answer = client.get(f"/page/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]


def test_scripts_do_not_evaluate_text() -> None:
    """The content security policy forbids it in every browser."""
    for name, file in read_files().items():
        if name.endswith(".js"):
            assert not re.search(rb"\beval\(|new Function|innerHTML|document\.write", file.body), (
                name
            )
