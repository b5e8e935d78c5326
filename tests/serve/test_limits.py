"""Every limit of the server, at the limit and one beyond it."""

from __future__ import annotations

import ast
import asyncio
import base64
import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import unquote

import pytest

from tests.support.project import ROOT
from vivace.errors import UnknownVoiceError
from vivace.serve.context import ServeContext
from vivace.serve.errors import RefusedError
from vivace.serve.http import access, middleware, response
from vivace.serve.http.access import Access
from vivace.serve.http.middleware import Middleware, read_headers
from vivace.serve.input import strict_json
from vivace.serve.input.recording import decode_audio
from vivace.serve.input.strict_json import parse_object
from vivace.serve.models import clones, crashes, voices
from vivace.serve.models.card import Card
from vivace.serve.models.clones import CloneCache
from vivace.serve.models.crashes import CrashLog, Quarantine
from vivace.serve.models.served_model import ServedModel
from vivace.serve.models.voices import Voices
from vivace.serve.observability import logs, traces
from vivace.serve.observability.metrics import Metrics
from vivace.serve.routes import enrol
from vivace.serve.settings import ServeSettings
from vivace.serve.sockets import omni
from vivace.serve.speaking import request
from vivace.serve.speaking.request import SpeechRequest
from vivace.voices.library import VoiceLibrary
from vivace.voices.voice import Voice

SETTINGS = ServeSettings()
SERVE = ROOT / "src" / "vivace" / "serve"


def find_limits() -> set[tuple[str, str]]:
    """Module and name of every constant `MAX_…` of the server."""
    return {
        (path.relative_to(SERVE).with_suffix("").as_posix().replace("/", "_"), target.id)
        for path in SERVE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Assign)
        for target in ast.walk(node.targets[0])
        if isinstance(target, ast.Name) and target.id.startswith("MAX_")
    }


def test_every_limit_of_the_server_is_named_in_a_test() -> None:
    """A limit without a test at its edge may be off by one, or have no effect."""
    tests = "\n".join(path.read_text("utf-8") for path in Path(__file__).parent.rglob("test_*.py"))
    limits = find_limits()
    assert len(limits) > 30
    named = {(m, n) for m, n in limits if f"{m}.{n}" in tests or f"{m.split('_')[-1]}.{n}" in tests}
    assert limits - named == set()


# -- bodies --------------------------------------------------------------------------------------


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def many_values(count: int) -> str:
    return '{"a": [' + "1," * (count - 2) + "1]}"  # the braces and brackets count too


def many_marks(count: int) -> str:
    return '{"a": "' + "," * (count - 5) + '"}'  # a brace and four quotes


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (nested, strict_json.MAX_DEPTH),
        (many_values, strict_json.MAX_VALUES),
        (many_marks, strict_json.MAX_MARKS),
        (lambda n: '{"a": ' + "1" * n + "}", strict_json.MAX_DIGITS),
        (lambda n: '{"a": 0.' + "1" * (n - 2) + "}", strict_json.MAX_DIGITS),
    ],
    ids=["depth", "values", "marks", "digits", "digits of a fraction"],
)
def test_json_at_a_limit_is_read_and_beyond_it_refused(
    make: Callable[[int], str], limit: int
) -> None:
    assert parse_object(make(limit))
    with pytest.raises(RefusedError):
        parse_object(make(limit + 1))


@pytest.mark.parametrize("is_text", [False, True])
def test_recording_at_its_limit_is_decoded_and_beyond_it_413(is_text: bool) -> None:
    limit = 1_000

    def give(size: int) -> bytes:
        content = b"x" * size
        audio = base64.b64encode(content).decode() if is_text else content
        return decode_audio(audio, limit, "ref_audio")

    assert len(give(limit)) == limit
    with pytest.raises(RefusedError) as refused:
        give(limit + 1)
    assert refused.value.status == 413


def check_headers(app: Middleware, headers: list[tuple[bytes, bytes]]) -> None:
    scope = {"type": "http", "method": "POST", "path": "/v1", "headers": headers}
    app._check_headers(scope, read_headers(scope))


@pytest.fixture
def wrapped(tmp_path: Path) -> Middleware:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    settings = ServeSettings(voices=tmp_path, max_body_bytes=1_000, max_audio_bytes=500)
    return Middleware(app, ServeContext.create(settings))


def test_headers_at_their_limit_are_read_and_beyond_it_431(wrapped: Middleware) -> None:
    check_headers(wrapped, [(b"x", b"y" * (middleware.MAX_HEADER_BYTES - 1))])
    with pytest.raises(RefusedError) as refused:
        check_headers(wrapped, [(b"x", b"y" * middleware.MAX_HEADER_BYTES)])
    assert refused.value.status == 431


def test_declared_body_at_its_limit_is_read_and_beyond_it_413(wrapped: Middleware) -> None:
    check_headers(wrapped, [(b"content-length", b"1000")])
    most = middleware.MAX_LENGTH_DIGITS
    for length in (b"1001", b"9" * most, b"9" * (most + 1), b"1" * 400):
        with pytest.raises(RefusedError) as refused:
            check_headers(wrapped, [(b"content-length", length)])
        assert refused.value.status == 413


@pytest.mark.parametrize("sizes", [(1_000,), (400, 600), (1, 999)])
def test_chunked_body_at_its_limit_is_read_and_beyond_it_413(
    wrapped: Middleware, sizes: tuple[int, ...]
) -> None:
    async def read(parts: list[bytes]) -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        limited = wrapped._limited(receive)
        for _ in range(len(parts)):
            await limited()

    content = [b"x" * size for size in sizes]
    asyncio.run(read(list(content)))
    with pytest.raises(RefusedError) as refused:
        asyncio.run(read([*content, b"x"]))
    assert refused.value.status == 413


# -- fields --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (lambda n: {"input": "x" * n}, SETTINGS.max_text_chars),
        (lambda n: {"speaker_embedding": [0.5] * n}, request.MAX_EMBEDDING),
        (lambda n: {"lexicon": {f"w{i}": "x" for i in range(n)}}, request.MAX_LEXICON),
        (lambda n: {"lexicon": {"w" * n: "x"}}, 100),
        (lambda n: {"lexicon": {"w": "x" * n}}, 200),
        (lambda n: {"input": "w" * (n - 199), "lexicon": {"ww": "x"}}, 65_536 + 199),
    ],
    ids=["text", "embedding", "lexicon", "word", "respelling", "shorter by its lexicon"],
)
def test_field_at_its_limit_is_taken_and_beyond_it_refused(
    make: Callable[[int], dict[str, Any]], limit: int
) -> None:
    assert SpeechRequest.read({"input": "Hello.", **make(limit)}, SETTINGS)
    with pytest.raises(RefusedError) as refused:
        SpeechRequest.read({"input": "Hello.", **make(limit + 1)}, SETTINGS)
    assert refused.value.param in make(1)


def test_text_with_its_respellings_at_the_limit_is_taken_and_beyond_it_refused() -> None:
    settings = ServeSettings(max_text_chars=100)
    body = {"input": "GIF GIF", "lexicon": {"GIF": "x" * 49}}  # 7 + 2 × 46 = 99
    assert SpeechRequest.read({**body, "input": "GIF GIF."}, settings)
    with pytest.raises(RefusedError, match="with its lexicon"):
        SpeechRequest.read({**body, "input": "GIF GIF.."}, settings)


@pytest.mark.parametrize("field", ["voice", "speaker"])
def test_voice_name_at_its_limit_is_taken_and_beyond_it_refused(field: str) -> None:
    name = "a+b" + " " * (request.MAX_NAME_CHARS - 4) + "("
    fields = {"input": "Hello.", field: {"id": name}}
    assert SpeechRequest.read(fields).voice_name == name
    with pytest.raises(RefusedError, match=f"{field}: must have at most 1,000 characters") as error:
        SpeechRequest.read({"input": "Hello.", field: name + " "})
    assert error.value.param == field


def test_context_id_at_its_limit_is_taken_and_beyond_it_refused() -> None:
    most = omni.MAX_CONTEXT_CHARS
    assert omni.InputDone.read({"type": "input.done", "context_id": "x" * most})
    with pytest.raises(RefusedError, match="context_id"):
        omni.InputDone.read({"type": "input.done", "context_id": "x" * (most + 1)})


def test_description_at_its_limit_is_taken_and_beyond_it_refused() -> None:
    fields = {"name": "me", "type": "prompt"}
    most = voices.MAX_DESCRIPTION_CHARS
    assert enrol.VoiceRequest.read({**fields, "prompt": "x" * most}).prompt
    with pytest.raises(RefusedError, match="prompt"):
        enrol.VoiceRequest.read({**fields, "prompt": "x" * (most + 1)})


@pytest.fixture
def embedded(tmp_path: Path) -> Voices:
    card = Card(
        name="vivace", model_type="custom_voice", speakers=("heart", "michael"),
        languages=("english",), sample_rate=24_000, width=8, follows_instruct=False,
        device="cpu", backend="eager",
    )  # fmt: skip
    return Voices(card, VoiceLibrary(tmp_path))


def test_mix_at_its_limit_of_parts_is_spoken_and_beyond_it_unknown(embedded: Voices) -> None:
    assert embedded.choose("+".join(["heart"] * voices.MAX_PARTS)).voice == "heart"
    with pytest.raises(UnknownVoiceError):
        embedded.choose("+".join(["heart"] * (voices.MAX_PARTS + 1)))


def test_error_repeats_a_voice_name_up_to_its_limit(embedded: Voices) -> None:
    most = voices.MAX_VOICE_NAME
    for length in (most, most + 1):
        with pytest.raises(UnknownVoiceError) as unknown:
            embedded.choose("q" * length)
        assert str(unknown.value).count("q") == most


@pytest.mark.parametrize("extra", [0, 1])
def test_skipped_characters_are_named_up_to_the_limit_and_all_are_counted(extra: int) -> None:
    num_chars = response.MAX_SKIPPED_CHARS + extra
    characters = [chr(0x430 + number) for number in range(num_chars)]
    count, _, names = response.skipped_header(characters)[response.SKIPPED].partition("; ")
    assert int(count) == num_chars
    assert unquote(names) == "".join(characters[: response.MAX_SKIPPED_CHARS])


# -- caches and histories ------------------------------------------------------------------------


def is_refused(limiter: Access, name: str) -> bool:
    try:
        limiter.check_rate(name)
    except RefusedError as error:
        return error.status == 429
    return False


@pytest.mark.parametrize("limit", [1, 5])
def test_requests_at_the_rate_limit_are_served_and_the_next_is_429(limit: int) -> None:
    limiter = Access(ServeSettings(max_requests_per_minute=limit))
    assert [is_refused(limiter, "me") for _ in range(limit + 1)] == [False] * limit + [True]
    assert not is_refused(limiter, "another")


def test_rates_are_remembered_up_to_the_limit_and_the_oldest_is_forgotten_first() -> None:
    limiter = Access(ServeSettings(max_requests_per_minute=1))
    for number in range(access.MAX_PEERS):
        assert not is_refused(limiter, str(number))
    assert is_refused(limiter, "0")  # all are remembered; this one is the newest now
    assert not is_refused(limiter, "one more")
    assert len(limiter._rates) == access.MAX_PEERS
    assert is_refused(limiter, "2")
    assert is_refused(limiter, "0")
    assert not is_refused(limiter, "1")  # the oldest gave its place to one more


class CloningModel:
    """Counts the recordings that are cloned."""

    name = "base"

    def __init__(self) -> None:
        self.cloned: list[bytes] = []
        self.tts = SimpleNamespace(clone=self._clone)

    def _clone(self, recording: bytes, transcript: str | None) -> Voice:
        self.cloned.append(recording)
        return cast(Voice, SimpleNamespace(name=recording.decode()))


def test_clones_are_kept_up_to_the_limit_and_the_least_used_is_evicted() -> None:
    model, kept = CloningModel(), CloneCache(Metrics())
    names = [str(number).encode() for number in range(clones.MAX_CLONES)]

    async def ask(*recordings: bytes) -> list[bytes]:
        """The recordings that had to be cloned."""
        before = len(model.cloned)
        for recording in recordings:
            voice = await kept.get(cast(ServedModel, model), recording, None)
            assert voice.name.encode() == recording
        return model.cloned[before:]

    async def check() -> None:
        assert await ask(*names) == names
        assert await ask(*names) == []  # the limit itself is kept
        assert await ask(names[0]) == []  # and the first is now the last used
        assert await ask(b"one more") == [b"one more"]
        assert await ask(names[0], *names[2:]) == []
        assert await ask(names[1]) == [names[1]]

    asyncio.run(check())


def test_crash_log_reaches_its_limit_at_the_last_crash() -> None:
    found = CrashLog(clock=lambda: 1_000.0)
    for _ in range(crashes.MAX_CRASHES - 1):
        found.add()
    assert not found.is_limit_reached
    found.add()
    assert found.is_limit_reached


def test_request_is_quarantined_at_its_limit_of_strikes() -> None:
    quarantine = Quarantine(clock=lambda: 1_000.0)
    for _ in range(crashes.MAX_STRIKES - 1):
        assert quarantine.strike(["digest"]) == []
    quarantine.check("digest")
    assert quarantine.strike(["digest"]) == ["digest"]
    with pytest.raises(RefusedError, match="rejected for 60 minutes"):
        quarantine.check("digest")


def test_strikes_are_kept_up_to_the_limit_and_the_oldest_is_forgotten() -> None:
    quarantine = Quarantine(clock=lambda: 1_000.0)
    quarantine.strike([str(number) for number in range(crashes.MAX_TRACKED)])
    assert "0" in quarantine.strikes
    quarantine.strike(["one more"])
    assert len(quarantine.strikes) == crashes.MAX_TRACKED
    assert "0" not in quarantine.strikes
    assert "1" in quarantine.strikes


def test_turns_of_a_trace_are_kept_up_to_the_limit_and_all_are_counted() -> None:
    trace = traces.SpeechTrace(cast(Any, None))
    for number in range(1, traces.MAX_TURNS + 2):
        trace.note(cast(Any, SimpleNamespace()))
        assert len(trace._turns) == min(number, traces.MAX_TURNS)
    assert trace._num_turns == traces.MAX_TURNS + 1


@pytest.mark.parametrize("extra", [0, 1])
def test_stack_in_a_json_line_has_the_innermost_frames_up_to_the_limit(extra: int) -> None:
    def fail(depth: int) -> None:
        if depth == 1:
            raise ValueError("secret")
        fail(depth - 1)

    try:
        fail(logs.MAX_STACK - 1 + extra)  # and this function's own frame
    except ValueError as error:
        failed = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("vivace", logging.ERROR, "", 0, "failed", (), failed)
    stack = json.loads(logs.JsonFormatter().format(record))["stack"]
    assert len(stack) == logs.MAX_STACK
    assert stack[0].endswith(" fail") == bool(extra)
    assert stack[-1].endswith(" fail")
