"""Requests made up from the OpenAPI description, valid and not: none is answered with a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode
from scripted_tts import Plan, ScriptedSpeech
from serving import Running, running

from vivace.serve.settings import ServeSettings

EXAMPLES = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    voices: Path = tmp_path_factory.mktemp("voices")
    backend = ScriptedSpeech(default=Plan(2))
    with running(ServeSettings(port=0, voices=voices), backend.load) as server:
        yield server


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_that_the_description_gives_rise_to_is_a_5xx(
    server: Running, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 15
    num_refused = 0
    for operation in operations:
        if not has_input(operation, mode):
            continue

        @EXAMPLES
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: schemathesis.Case) -> None:
            nonlocal num_refused
            answer = case.call(timeout=60)
            assert answer.status_code < 500, (case, answer.text)
            assert answer.headers["x-request-id"]
            if answer.status_code >= 400:
                num_refused += 1
                assert answer.json()["error"].keys() == {"message", "type", "param", "code"}

        check()
    assert num_refused > 5  # else nothing was tried
    speech = {"input": "Hello.", "model": "tts-1", "voice": "alloy"}
    assert httpx.post(f"{server.url}/v1/audio/speech", json=speech).status_code == 200


def has_input(operation: Any, mode: GenerationMode) -> bool:
    """Whether there is something to make up; any string is a good path."""
    return bool(
        operation.body
        or operation.query
        or (operation.path_parameters and mode is GenerationMode.POSITIVE)
    )
