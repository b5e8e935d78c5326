"""Lexicons of the server and of requests, over HTTP and WebSockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from tests.support.recording_backend import text_ids
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import connected
from vivace.backends.base import Slot
from vivace.errors import LexiconError
from vivace.prompt import Prompt
from vivace.serve.setting_sources import resolve_settings
from vivace.serve.settings import ServeSettings
from vivace.speech import SamplingParams

LIMIT_S = 60.0


class Recording(ScriptedSpeech):
    """Records its prompts."""

    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        self.prompts.append(prompt)
        return super().admit(prompt, sampling)

    @property
    def prompts(self) -> list[Prompt]:
        return self.__dict__.setdefault("_prompts", [])


@pytest.fixture(scope="module")
def backend() -> Recording:
    return Recording(default=Plan(3))


@pytest.fixture(scope="module")
def server(backend: Recording, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("lexicon")
    file = folder / "names.csv"
    file.write_text("vivace,vee-VAH-chay\n")
    settings = resolve_settings({"port": 0, "voices": folder}, {"VIVACE_LEXICON": str(file)})
    with (
        patch("vivace.engine.checkpoints.loading.build_backend", lambda *_: backend),
        running(settings) as server,
    ):
        file.unlink()  # read once at start
        yield server


def ask(server: Running, **fields: Any) -> httpx.Response:
    body = {"model": "tts-1", "input": "Vivace, a GIF.", "response_format": "pcm", **fields}
    return httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=LIMIT_S)


def last_text(server: Running, backend: Recording) -> str:
    tts = server.context.models.loaded()[0].tts
    ids = text_ids(backend.prompts[-1], tts.checkpoint.config.tts_eos_token_id)
    return tts.tokenizer.decode(ids)


def test_request_lexicon_overrides_the_servers(server: Running, backend: Recording) -> None:
    assert ask(server).status_code == 200
    assert last_text(server, backend) == "Vee-vah-chay, a G I F."
    assert ask(server, lexicon={"GIF": "jif", "vivace": "lively"}).status_code == 200
    assert last_text(server, backend) == "Lively, a Jif."
    assert ask(server, lexicon=None).status_code == 200


def test_lexicon_applies_to_websocket_text(server: Running, backend: Recording) -> None:
    with connected(server) as talk:
        talk.send("session.config", response_format="pcm", lexicon={"vivace": "xylophones"})
        talk.speak("Viva", "ce, a GIF.")
    begun = last_text(server, backend)  # the prompt of a live text contains its first ids
    assert begun
    assert "Xylophones, a G I F.".startswith(begun)


@pytest.mark.parametrize(
    ("lexicon", "reason"),
    [
        ("names.toml", "lexicon"),
        (["a"], "lexicon"),
        ({"a": 5}, "lexicon"),
        ({"a": ""}, "lexicon"),
        ({"": "a"}, "lexicon"),
        ({"a": "b" * 201}, "lexicon"),
        ({"a" * 101: "b"}, "lexicon"),
        ({f"a{n}": "b" for n in range(501)}, "lexicon"),
        ({"english": {"a": "b"}}, "lexicon"),
        ({"a": "[pause 1s]"}, "cannot have a pause mark"),
    ],
)
def test_invalid_lexicon_returns_400(
    server: Running, backend: Recording, lexicon: Any, reason: str
) -> None:
    num_before = len(backend.prompts)
    answer = ask(server, lexicon=lexicon)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]
    assert len(backend.prompts) == num_before


def test_lexicon_that_exceeds_the_text_limit_is_refused(
    server: Running, backend: Recording
) -> None:
    num_before = len(backend.prompts)
    answer = ask(server, input="A a " * 1_000, lexicon={"a": "b" * 200})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "text_too_long", "lexicon")
    assert "402,000 characters and the limit is 65,536" in error["message"]
    assert len(backend.prompts) == num_before


def test_server_with_an_invalid_lexicon_does_not_start(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("a = \n")
    with (
        pytest.raises(LexiconError, match=r"bad\.toml, line 1"),
        running(ServeSettings(port=0, voices=tmp_path, lexicon=bad)),
    ):
        pass
