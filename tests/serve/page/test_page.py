"""The page's files: complete, small, self-contained and served with a strict policy."""

from __future__ import annotations

import gzip
import re
from importlib.resources import files

import httpx
import pytest

from vivace.serve.page.page import PageFiles

PAGE = PageFiles.read()
NAMES = sorted(PAGE.by_name)
TEXTS = [name for name in NAMES if not name.endswith(".woff2")]


def text_of(name: str) -> str:
    return PAGE.by_name[name].body.decode("utf-8")


def test_every_file_except_python_and_the_licence_is_served() -> None:
    others = {entry.name for entry in files("vivace.serve.page").iterdir()} - set(NAMES)
    own = {name for name in others if not name.startswith("__")}
    assert own == {"page.py", "newsreader-LICENSE.txt"}
    assert {"index.html", "app.js", "worklet.js", "style.css"} <= set(NAMES)


@pytest.mark.parametrize("name", TEXTS)
def test_files_contain_relative_urls_only(name: str) -> None:
    text = text_of(name)
    hosts = re.findall(r"(?:https?:)?//[a-z][\w.-]*\.[a-z]{2,}[^\s\"']*", text)
    assert [host for host in hosts if host != "http://www.w3.org/2000/svg"] == []
    named = re.findall(r"""(?:src|href)="([^"#]+)"|from "([^"]+)"|here\("([^"]+)"\)""", text)
    for found in ("".join(groups) for groups in named):
        assert not found.startswith("/"), "an absolute address breaks under a proxy's sub-path"
        found = found.removeprefix(f"page/{PAGE.version}/").removeprefix("./")
        assert found in [*NAMES, "docs"]


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
    assert answer.content == PAGE.by_name["index.html"].body


@pytest.mark.parametrize("name", NAMES)
def test_file_has_its_content_type_and_etag(client: httpx.Client, name: str) -> None:
    answer = client.get(f"/page/{name}")
    assert answer.status_code == 200
    types = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg"}
    assert answer.headers["content-type"].startswith(types.get(name.rpartition(".")[2], "font/"))
    again = client.get(f"/page/{name}", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = client.get(f"/page/{name}", headers={"If-None-Match": '"another"'})
    assert other.content == answer.content


@pytest.mark.parametrize("name", NAMES)
def test_text_is_compressed_and_its_version_is_cached(client: httpx.Client, name: str) -> None:
    plain = client.get(f"/page/{name}", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.headers["cache-control"] == "no-cache"
    with client.stream("GET", f"/page/{PAGE.version}/{name}") as answer:
        content = b"".join(answer.iter_raw())
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.headers["cache-control"].endswith("immutable")
    assert ("content-encoding" in answer.headers) == (name in TEXTS)
    assert (gzip.decompress(content) if name in TEXTS else content) == plain.content


def test_old_version_of_a_file_is_not_cached(client: httpx.Client) -> None:
    """A tab that was opened before an update may load its worklet after it."""
    answer = client.get("/page/0123456789abcdef/worklet.js")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")


def test_index_is_revalidated_and_names_versioned_files(client: httpx.Client) -> None:
    answer = client.get("/")
    assert answer.headers["cache-control"] == "no-cache"
    assert f'src="page/{PAGE.version}/app.js"' in answer.text


@pytest.mark.parametrize("name", ["page.py", "__init__.py", "..%2fapp.py", "%00", "x" * 5000, ""])
def test_unknown_file_returns_404(client: httpx.Client, name: str) -> None:
    answer = client.get(f"/page/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]


def test_scripts_do_not_evaluate_text() -> None:
    """The content security policy forbids it in every browser."""
    banned = rb"\beval\(|new Function|innerHTML|document\.write"
    for name, file in PAGE.by_name.items():
        assert not (name.endswith(".js") and re.search(banned, file.body)), name
