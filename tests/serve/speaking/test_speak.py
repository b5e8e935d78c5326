"""The calls that a sink receives for one speech."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import started_models
from vivace.live_text import LiveText
from vivace.serve.context import ServeContext
from vivace.serve.settings import ServeSettings
from vivace.serve.speaking.request import SpeechRequest
from vivace.serve.speaking.speak import SpeechReport, SpeechSink, Words, prepare, speak
from vivace.serve.streams.active import Streams

NUM_FRAMES = 12
FRAME_BYTES = 3_840
FAILS = 11  # a seed
PCM = {"response_format": "pcm"}


class RecordingSink(SpeechSink):
    """Records its calls; `leaves_at` names the call in which the client disconnects."""

    def __init__(self, *, is_whole: bool = False, leaves_at: str = "") -> None:
        self._is_whole, self._leaves_at = is_whole, leaves_at
        self.calls: list[str] = []
        self.audio = b""
        self.report: SpeechReport | None = None
        self.error: Exception | None = None

    @property
    def is_whole(self) -> bool:
        return self._is_whole

    def _record(self, call: str, audio: bytes = b"") -> None:
        if self.calls[-1:] != [call]:
            self.calls.append(call)
        self.audio += audio
        if call == self._leaves_at:
            raise ConnectionAbortedError

    async def start(self, report: SpeechReport) -> None:
        self._record("start")

    async def write(self, audio: bytes, words: Words) -> None:
        self._record("write", audio)

    async def finish(self, audio: bytes, words: Words, report: SpeechReport) -> None:
        self._record("finish", audio)
        self.report = report

    async def fail(self, error: Exception) -> None:
        self._record("fail")
        self.error = error


def started(folder: Path, plan: Plan | None = None) -> AbstractAsyncContextManager[ServeContext]:
    plans = {FAILS: Plan(NUM_FRAMES, fails_at=6)}
    backend = ScriptedSpeech(default=plan or Plan(NUM_FRAMES), plans=plans)
    return started_models(ServeSettings(voices=folder), backend.load)


def run(folder: Path, sink: RecordingSink, **fields: Any) -> RecordingSink:
    async def check() -> None:
        async with started(folder) as context:
            body = {"input": "Hello.", **PCM, **fields}
            await speak(context, SpeechRequest.read(body, context.settings), sink)
            assert context.streams.num_active == 0

    asyncio.run(check())
    return sink


def test_streamed_speech_calls_start_write_and_finish(tmp_path: Path) -> None:
    sink = run(tmp_path, RecordingSink())
    assert sink.calls == ["start", "write", "finish"]
    assert len(sink.audio) == NUM_FRAMES * FRAME_BYTES
    assert sink.report is not None
    assert (sink.report.num_frames, sink.report.reason) == (NUM_FRAMES, "stop")


def test_whole_speech_calls_start_and_finish(tmp_path: Path) -> None:
    sink = run(tmp_path, RecordingSink(is_whole=True))
    assert sink.calls == ["start", "finish"]
    assert len(sink.audio) == NUM_FRAMES * FRAME_BYTES


def test_failure_after_audio_calls_fail_instead_of_finish(tmp_path: Path) -> None:
    sink = run(tmp_path, RecordingSink(), seed=FAILS)
    assert (sink.calls[0], sink.calls[-1]) == ("start", "fail")
    assert "finish" not in sink.calls


@pytest.mark.parametrize("is_whole", [True, False])
def test_unknown_voice_calls_fail_only(tmp_path: Path, is_whole: bool) -> None:
    sink = run(tmp_path, RecordingSink(is_whole=is_whole), voice="nobody")
    assert sink.calls == ["fail"]
    assert "nobody" in str(sink.error)


def test_disconnect_raises_without_fail_and_frees_the_stream(tmp_path: Path) -> None:
    sink = RecordingSink(leaves_at="write")
    with pytest.raises(ConnectionAbortedError):
        run(tmp_path, sink)
    assert sink.calls == ["start", "write"]


@pytest.mark.parametrize(("is_live", "num_attempts"), [(False, 2), (True, 1)])
def test_whole_runaway_is_retried_once_if_its_text_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_live: bool, num_attempts: int
) -> None:
    sink, opened = RecordingSink(is_whole=True), []
    open_stream = Streams.open

    def count(*arguments: Any) -> Any:
        opened.append(arguments)
        return open_stream(*arguments)

    async def check() -> None:
        async with started(tmp_path, Plan(never_ends=True)) as context:
            speech = await prepare(context, SpeechRequest.read({**PCM, "input": "later"}))
            text = LiveText(100)
            text.add("Hello.")
            text.end()
            await speech.speak(text if is_live else "Hello.", sink)

    monkeypatch.setattr(Streams, "open", count)
    asyncio.run(check())
    assert sink.calls == ["fail"]
    assert "did not end by itself" in str(sink.error)
    assert len(opened) == num_attempts


def test_empty_live_text_calls_nothing_and_blank_text_fails(tmp_path: Path) -> None:
    empty, blank = RecordingSink(), RecordingSink()

    async def check() -> None:
        async with started(tmp_path) as context:
            speech = await prepare(context, SpeechRequest.read({**PCM, "input": "later"}))
            text = LiveText(100)
            text.end()
            await speech.speak(text, empty)
            await speech.speak(" ", blank)

    asyncio.run(check())
    assert (empty.calls, blank.calls) == ([], ["fail"])
    assert "blank" in str(blank.error)
