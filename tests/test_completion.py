"""Completion and signatures of `TTS` in editors and notebooks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import jedi
import pytest
from jedi.api.environment import InterpreterEnvironment

from vivace import TTS
from vivace.options import SpeakOptions, StreamOptions
from vivace.speech import SamplingOptions
from vivace.voices.find import VoiceSource

WHOLE = ["speak", "aspeak", "dialogue"]
STREAMED = ["stream", "astream", "stream_dialogue"]
STATIC = "from vivace import TTS\ntts = TTS.load()\n"


@pytest.fixture(scope="module")
def tts(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as loaded:
        yield loaded


def complete_live(code: str, **names: object) -> set[str]:
    return {one.name for one in jedi.Interpreter(code, [names]).complete()}


def complete_static(code: str) -> set[str]:
    script = jedi.Script(STATIC + code, environment=InterpreterEnvironment())  # no subprocess
    return {one.name for one in script.complete()}


def options_of(method: str) -> dict[str, Any]:
    """The options of a method and their types."""
    kind = SpeakOptions if method in WHOLE else StreamOptions
    options = get_type_hints(kind, localns={"VoiceSource": VoiceSource})
    if "dialogue" in method:
        del options["voice"]  # each line has its own
        options.pop("verify", None)  # of `speak` alone
    return options


def test_live_objects_complete_every_public_name(tts: TTS) -> None:
    async def astream() -> object:
        return tts.astream("Hello.")

    audio = tts.speak("Hello.", seed=1, max_frames=2)
    stream = tts.stream("Hello.", seed=1, max_frames=2)
    objects = [
        tts, audio, stream, next(stream), asyncio.run(astream()), tts.sampling, audio.usage,
        tts.dialogue([("vivian", "Hello.")], seed=1, max_frames=2),
    ]  # fmt: skip
    for one in objects:
        public = {name for name in dir(one) if not name.startswith("_")}
        assert public <= complete_live("one.", one=one), type(one)


@pytest.mark.parametrize("method", WHOLE + STREAMED)
def test_call_completes_every_option_live_and_static(tts: TTS, method: str) -> None:
    call = f"tts.{method}('Hello.', "
    expected = {f"{name}=" for name in options_of(method)}
    assert expected <= complete_live(call, tts=tts)
    assert expected <= complete_static(call)
    assert complete_live(call + "voi", tts=tts) == {"voices=" if "dialogue" in method else "voice="}


def test_foreign_options_are_not_completed(tts: TTS) -> None:
    for call, name in [("speak('Hello.', chunk_f", "chunk_frames="), ("stream('Hi.', prog", "x")]:
        assert not complete_live(f"tts.{call}", tts=tts), name
        assert not complete_static(f"tts.{call}"), name


def test_result_of_speak_completes_audio(tts: TTS) -> None:
    assert "save" in complete_live("tts.speak('Hello.').", tts=tts)
    assert "save" in complete_static("tts.speak('Hello.').")


@pytest.mark.parametrize("method", WHOLE + STREAMED)
def test_signature_shows_type_and_default_of_every_option(method: str) -> None:
    parameters = inspect.signature(getattr(TTS, method)).parameters
    assert not any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for name, annotation in options_of(method).items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].annotation in (annotation, getattr(annotation, "__name__", ""))
        assert parameters[name].default is not inspect.Parameter.empty
        is_sampling = name in SamplingOptions.__dataclass_fields__
        assert is_sampling == (repr(parameters[name].default) == "checkpoint default")


@pytest.mark.parametrize("method", WHOLE + STREAMED)
def test_defaults_in_the_signature_are_those_that_apply(tts: TTS, method: str) -> None:
    """Passing every shown default does not change the result."""
    shown = {
        name: one.default
        for name, one in inspect.signature(getattr(TTS, method)).parameters.items()
        if one.default is not one.empty and name not in SamplingOptions.__dataclass_fields__
    }
    assert shown["trim"] == (method not in ("stream", "astream"))

    def make(**options: Any) -> list[list[float]]:
        text: Any = [("vivian", "One."), ("ryan", "Two.")] if "dialogue" in method else "Hello."
        result = getattr(tts, method)(text, seed=3, max_frames=8, **options)
        if method == "aspeak":
            result = asyncio.run(result)
        if method == "astream":

            async def collect() -> list[Any]:
                return [chunk async for chunk in result]

            result = asyncio.run(collect())
        return [one.samples.tolist() for one in ([result] if method in WHOLE else result)]

    assert make(**shown) == make()
