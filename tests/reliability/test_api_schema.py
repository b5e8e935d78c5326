"""G5: valid and invalid requests generated from the OpenAPI description never return a 5xx.

The control is a server whose body parser raises for unexpected input.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from tests.support.figures import record
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.serve.routes import speech as speech_module
from vivace.serve.settings import ServeSettings

FEW = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
MANY = settings(FEW, max_examples=450)


@schemathesis.serializer("audio/pcm")
def write_bytes(context: object, value: object) -> bytes:
    """Send generated samples as they are, and other values as JSON."""
    return value if isinstance(value, bytes) else json.dumps(value).encode()


MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    voices: Path = tmp_path_factory.mktemp("voices")
    backend = ScriptedSpeech(default=Plan(2))
    with running(ServeSettings(port=0, voices=voices), backend.load) as server:
        yield server


def count_failures(
    server: Running, mode: GenerationMode, examples: settings
) -> tuple[Counter[int], int]:
    """Counts of each status, and of responses that break a rule."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    assert len(operations) > 15
    statuses: Counter[int] = Counter()
    num_wrong = 0
    for operation in operations:
        if not has_input(operation, mode):
            continue

        @examples
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: schemathesis.Case[Any]) -> None:
            nonlocal num_wrong
            answer = case.call(timeout=60)
            statuses[answer.status_code] += 1
            num_wrong += not is_valid_response(answer)

        check()
    return statuses, num_wrong


def is_valid_response(answer: Any) -> bool:
    if answer.status_code >= 500 or not answer.headers.get("x-request-id"):
        return False
    if answer.status_code < 400:
        return True
    keys: set[str] = answer.json()["error"].keys()
    return keys == {"message", "type", "param", "code"}


@pytest.mark.ci
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_requests_generated_from_the_openapi_schema_never_return_5xx(
    server: Running, mode: GenerationMode, examples: settings
) -> None:
    statuses, num_wrong = count_failures(server, mode, examples)
    if examples is MANY:
        refused = sum(count for status, count in statuses.items() if 400 <= status < 500)
        name = f"G5 requests of the description, {mode.value}"
        record(name, requests=statuses.total(), refused=refused, failures=num_wrong)
    assert num_wrong == 0, statuses
    assert (
        sum(count for status, count in statuses.items() if status >= 400) > 5
    )  # otherwise schemathesis generates nothing
    speech = {"input": "Hello.", "model": "tts-1", "voice": "alloy"}
    assert httpx.post(f"{server.url}/v1/audio/speech", json=speech).status_code == 200


def test_control_route_without_input_checks_is_detected(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speech_module, "read_json", parse_without_checks)
    _, num_wrong = count_failures(server, GenerationMode("negative"), FEW)
    assert num_wrong


async def parse_without_checks(request: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(await request.body())
    return {**body, "input": body["input"].strip()}


def has_input(operation: Any, mode: GenerationMode) -> bool:
    """Whether the operation has input to generate; any string is a valid path parameter."""
    return bool(
        operation.body
        or operation.query
        or (operation.path_parameters and mode is GenerationMode.POSITIVE)
    )
