"""Health, models, voices and the API page."""

from __future__ import annotations

import re

import httpx
import pytest


def test_server_with_the_embedded_voice_is_ready(client: httpx.Client) -> None:
    assert client.get("/health/live").status_code == 200
    ready = client.get("/health/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    assert ready.headers["x-request-id"]


def test_models_are_listed_in_openais_format(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["vivace"]
    assert client.get("/v1/models/vivace").json() == listed["data"][0]
    assert client.get("/v1/models/").json() == listed
    assert client.get("/v1/audio/models").json()["models"][0]["id"] == "vivace"


def test_trailing_slash_is_ignored(client: httpx.Client) -> None:
    for path in ("/v1/audio/voices", "/v1/models/vivace", "/health/ready"):
        plain, slashed = client.get(path), client.get(f"{path}/")
        assert (slashed.status_code, slashed.json()) == (200, plain.json())
    spoken = client.post("/v1/audio/speech/", json={"input": "Hi.", "max_new_tokens": 2})
    assert spoken.status_code == 200


def test_unknown_model_returns_404_that_lists_models(client: httpx.Client) -> None:
    answer = client.get("/v1/models/Qwen/other")
    assert answer.status_code == 404
    assert "vivace" in answer.json()["error"]["message"]
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "words"),
    [
        ("POST", "/audio/speech", 404, "route_not_found", "did you mean /v1/audio/speech?"),
        ("GET", "/v1/v1/models", 404, "route_not_found", "'GET /v1/v1/models'; did you mean"),
        ("POST", "/v1/chat/completions", 404, "route_not_found", "GET /docs"),
        ("PUT", "/v1/models", 405, "method_not_allowed", "'PUT /v1/models'; use GET, HEAD"),
        ("GET", "/page/nothing.js", 404, "file_not_found", "'nothing.js'"),
    ],
)
def test_request_without_a_route_names_it_and_what_to_use(
    client: httpx.Client, method: str, path: str, status: int, code: str, words: str
) -> None:
    answer = client.request(method, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert words in error["message"]


def test_wrong_method_lists_the_methods_of_all_routes_of_the_path(client: httpx.Client) -> None:
    allowed = {path: client.put(path).headers["allow"] for path in ("/v1/audio/voices", "/")}
    assert allowed == {"/v1/audio/voices": "GET, HEAD, POST", "/": "GET, HEAD"}
    assert client.get("/v1/audio/speech").headers["allow"] == "POST"


def test_invalid_query_value_is_named_in_the_error(client: httpx.Client) -> None:
    error = client.get("/v1/audio/voices?aliases=maybe").json()["error"]
    assert (error["param"], error["code"]) == ("aliases", "invalid_request")
    assert error["message"].startswith("aliases: must be")
    assert error["message"].endswith("not 'maybe'")


def test_voices_have_an_id_and_a_name(client: httpx.Client) -> None:
    voices = client.get("/v1/audio/voices").json()["voices"]
    both = [("heart", "heart"), ("michael", "michael")]
    assert [(voice["id"], voice["name"]) for voice in voices] == both
    assert all(voice["description"] for voice in voices)
    with_aliases = client.get("/v1/audio/voices?aliases=true").json()["voices"]
    assert {"heart", "alloy", "cedar", "vivian"} <= {voice["id"] for voice in with_aliases}


def test_docs_page_lists_every_endpoint(client: httpx.Client) -> None:
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "http" not in page.text  # no other host is contacted
    assert "<script" not in page.text
    assert "unsafe" not in page.headers["content-security-policy"]
    for path in client.get("/openapi.json").json()["paths"]:
        assert path in page.text
    assert re.findall(r"</b>([^<]+)</h3>", page.text)[0] == "/v1/audio/speech"
    assert "`" not in page.text  # names are marked up
    for words in ("response_format", "audio_sample", "/v1/realtime", "stream-input"):
        assert words in page.text


def test_head_returns_the_headers_of_get(client: httpx.Client) -> None:
    for path in ("/health/live", "/v1/models", "/docs", "/"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert int(answer.headers["content-length"]) > 0
    assert client.head("/v1/audio/speech").status_code == 405


@pytest.mark.ci
def test_voice_aliases_select_the_embedded_voice_of_their_gender(
    client: httpx.Client,
) -> None:
    def spoken(voice: str) -> bytes:
        body = {"input": "Hello.", "voice": voice, "seed": 1, "response_format": "pcm"}
        answer = client.post("/v1/audio/speech", json=body | {"max_new_tokens": 4})
        assert answer.status_code == 200
        return answer.content

    heart, michael = spoken("heart"), spoken("michael")
    assert heart != michael
    assert {spoken(name) for name in ("alloy", "coral", "Vivian")} == {heart}
    assert {spoken(name) for name in ("onyx", "ash", "ryan")} == {michael}
