"""`vivace.options`: names, types, defaults and help of every option; `speed`."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import inspect
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.project import ROOT
from tests.support.recording_backend import stop_after
from vivace import TTS
from vivace.errors import RequestError
from vivace.options import (
    DialogueOptions,
    DialogueStreamOptions,
    SpeakOptions,
    SpeechOptions,
    StreamOptions,
)

TEXT = "Hello there, said the user."
TWENTY: dict[str, Any] = {"seed": 3, "min_frames": 20, "max_frames": 20}


@pytest.fixture(scope="module")
def tts(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as loaded:
        yield loaded


def sizes(tts: TTS, chunk_frames: Any) -> list[int]:
    return [len(chunk.codes) for chunk in tts.stream(TEXT, chunk_frames=chunk_frames, **TWENTY)]


# -- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.uint64])
def test_numpy_integers_give_the_same_result_as_python_integers(tts: TTS, kind: type) -> None:
    plain = tts.speak(TEXT, seed=7, top_k=7, predictor_top_k=7, max_frames=6)
    given = {"seed": 7, "top_k": 7, "predictor_top_k": 7, "max_frames": 6}
    assert tts.speak(TEXT, **{name: kind(value) for name, value in given.items()}) == plain
    assert type(tts.speak(TEXT, seed=kind(7), max_frames=1).usage.seed) is int


@pytest.mark.parametrize(
    ("chunk_frames", "expected"),
    [
        (np.uint64(8), [8, 8, 4]),
        (np.array([2, 9]), [2, 9, 9]),
        ([np.int8(5), 15], [5, 15]),
        (iter([1, 2]), [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]),
        (iter([np.uint64(20)]), [20]),
        (itertools.chain([4], itertools.cycle([1, 15])), [4, 1, 15]),
        (10**30, [20]),
    ],
)
def test_chunk_frames_accepts_every_form_of_numbers(
    tts: TTS, chunk_frames: Any, expected: list[int]
) -> None:
    assert [size for size in sizes(tts, chunk_frames) if size] == expected


BAD_CHUNKS: list[Any] = [
    0, -1, 2.0, 1.5, True, None, "8", b"8", [], [1, 0], [2.0], [True], np.array([1.5]),
    np.zeros(0, np.int64), iter([]), iter([0]), iter([1, -1]), iter([2.0]), iter(["1"]),
    itertools.repeat(1.5), -(10**5000),
]  # fmt: skip


def test_invalid_chunk_frames_are_rejected_without_effect_on_other_streams(tts: TTS) -> None:
    before = tts.speak(TEXT, **TWENTY)
    neighbour = tts.stream(TEXT, chunk_frames=5, **TWENTY)
    codes = [next(neighbour).codes]
    for number, bad in enumerate(BAD_CHUNKS):
        with pytest.raises(RequestError, match="chunk_frames"):
            raise AssertionError(f"{number} gave chunks of {sizes(tts, bad)}")
    codes += [chunk.codes for chunk in neighbour]
    assert np.array_equal(np.concatenate(codes), before.codes)
    assert tts.engine.num_running == tts.engine.num_waiting == 0


def test_drawn_seed_is_exact_as_a_float(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "vivace.engine.checkpoints.loaded.secrets.randbelow", lambda below: below - 1
    )
    assert tts.speak(TEXT, max_frames=1).usage.seed == 2**53 - 1
    assert tts.speak(TEXT, max_frames=1, seed=2**63 - 1).usage.seed == 2**63 - 1


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hint"), [("sed", "did you mean seed"), ("xyz", "try one of: .*clean, .*guard")]
)
def test_unknown_option_is_rejected_with_a_suggestion(tts: TTS, name: str, hint: str) -> None:
    options: dict[str, Any] = {name: 7}
    for ask in (tts.speak, tts.stream):
        with pytest.raises(RequestError, match=f"no option named {name}; {hint}"):
            ask(TEXT, **options)
    with pytest.raises(RequestError, match=f"no option named {name}; {hint}"):
        tts.dialogue([("vivian", TEXT)], **options)


@pytest.mark.parametrize("name", ["chunk_frames", "wake"])
def test_speak_rejects_options_of_streams(tts: TTS, name: str) -> None:
    options: dict[str, Any] = {name: None}
    with pytest.raises(RequestError, match=f"no option named {name}"):
        tts.speak(TEXT, **options)
    with pytest.raises(RequestError, match=f"no option named {name}"):
        tts.speak([TEXT], **options)


def test_constructor_takes_a_loaded_checkpoint(tts: TTS) -> None:
    assert list(inspect.signature(TTS).parameters) == ["loaded", "lexicon", "marking"]
    again = TTS(tts.loaded)
    assert again.speak(TEXT, **TWENTY) == tts.speak(TEXT, **TWENTY)
    with pytest.raises(TypeError, match="loaded"):
        TTS()  # type: ignore[call-arg]


SNIPPET = """
from pathlib import Path
from vivace import TTS, Audio

tts = TTS.load()
{}
"""
GOOD = [
    "one: Audio = tts.speak('Hello.', seed=7, voice=Path('me.wav'), progress=True, speed=1.5)",
    "many: list[Audio] = tts.speak(['Hello.', 'Bye.'], temperature=0.5, clean=True)",
    "live: Audio = tts.speak(iter(['Hel', 'lo.']), max_frames=5)",
    "chunks = list(tts.stream('Hello.', chunk_frames=[1, 2], trim=True, instruct=None))",
    "later = tts.astream(iter(['Hello.']), chunk_frames=4, text_layout='whole')",
    "data: bytes = tts.speak('Hello.').to_bytes('mp3')",
]
BAD = [
    "tts.speak('Hello.', sed=7)",
    "tts.speak('Hello.', seed='7')",
    "tts.stream('Hello.', sed=7)",
    "tts.stream('Hello.', progress=True)",
    "tts.astream('Hello.', top_k=1.5)",
    "wrong: Audio = tts.speak(['Hello.'])",
    "tts.speak('Hello.', text_layout='sideways')",
    "TTS(1, 2, 3)",
]


# Packages that the types of the public methods do not need.
UNREAD = (
    "torch.*,numpy.*,safetensors.*,huggingface_hub.*,vivace.model.*,vivace.backends.*,"
    "vivace.timing.*"
)


@pytest.mark.ci  # a type checker reads the whole package
def test_type_checker_checks_every_option(tmp_path: Path) -> None:
    config = tmp_path / "mypy.ini"
    config.write_text(
        f"[mypy]\nstrict = True\npython_version = 3.10\nmypy_path = {ROOT / 'src'}\n"
        f"cache_dir = {tmp_path / 'cache'}\nfollow_imports = silent\n"
        "ignore_missing_imports = True\n"
        f"[mypy-{UNREAD}]\nfollow_imports = skip\n"  # they take a minute
    )
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET.format("\n".join(GOOD + BAD)))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", config, snippet],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    first = SNIPPET.index("{}") and SNIPPET[: SNIPPET.index("{}")].count("\n") + 1
    lines = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    bad = {first + len(GOOD) + number for number in range(len(BAD))}
    assert lines == bad, done.stdout + done.stderr


# -- speed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("speed", [0.5, 1.0, 1.7, np.float32(4)])
def test_speed_changes_the_length_exactly_and_no_code(tts: TTS, speed: float) -> None:
    plain = tts.speak(TEXT, trim=False, **TWENTY)
    audio = tts.speak(TEXT, trim=False, speed=speed, **TWENTY)
    assert np.array_equal(audio.codes, plain.codes)
    assert len(audio.samples) == round(len(plain.samples) / speed)
    assert audio.usage.audio_s == pytest.approx(len(audio.samples) / 24_000)
    assert (audio == plain) == (speed == 1)


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("chunk_frames", [1, 3, 20])
def test_stream_with_speed_equals_speak_with_speed(tts: TTS, chunk_frames: int) -> None:
    text = "One.[pause 0.5s]Two."
    options: dict[str, Any] = {"seed": 3, "min_frames": 5, "max_frames": 30, "speed": 1.5}
    whole = tts.speak(text, trim=False, **options)
    chunks = list(tts.stream(text, chunk_frames=chunk_frames, **options))
    samples = np.concatenate([chunk.samples for chunk in chunks])
    assert samples.shape == whole.samples.shape
    assert np.abs(samples - whole.samples).max() < 1e-3
    starts = np.cumsum([0, *(len(chunk.samples) for chunk in chunks[:-1])]) / 24_000
    assert np.allclose([chunk.start_s for chunk in chunks], starts)
    assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_astream_changes_speed_too(tts: TTS) -> None:
    async def count() -> int:
        return sum([len(chunk.samples) async for chunk in tts.astream(TEXT, speed=2, **TWENTY)])

    assert asyncio.run(count()) == 20 * 1920 // 2


def test_stall_is_trimmed_before_speed_is_changed(
    tts: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vivace.engine.utterances.guard.StallDetector.observe",
        lambda self, codes, samples: 10 if len(codes) else 0,
    )
    plain = tts.speak("Stuck.", seed=1, min_frames=100)
    assert plain.finish_reason == "stall"
    fast = tts.speak("Stuck.", seed=1, min_frames=100, speed=2)
    assert len(fast.samples) == round(len(plain.samples) / 2)


@pytest.mark.parametrize("speed", [0, 0.2, 4.1, float("nan"), "fast", None, True])
def test_invalid_speed_is_rejected_before_anything_runs(tts: TTS, speed: Any) -> None:
    with pytest.raises(RequestError, match=r"speed must be 0\.25 to 4"):
        tts.stream(TEXT, speed=speed)


def test_last_samples_at_another_speed_are_not_lost(
    tts: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(tts, monkeypatch, 1)
    chunks = list(tts.stream("Hi.", seed=1, speed=0.5, chunk_frames=1, min_frames=2))
    assert sum(len(chunk.samples) for chunk in chunks) == 2 * 1920


# -- one declaration ---------------------------------------------------------------------------

MAX_FILES = 5  # source files that may name `keep_emoji`
SOURCES = sorted((ROOT / "src" / "vivace").rglob("*.py"))
KINDS = (SpeechOptions, SpeakOptions, StreamOptions, DialogueOptions, DialogueStreamOptions)


def declarations(source: str, name: str) -> int:
    """How many fields and parameters of this name a module declares."""
    nodes = list(ast.walk(ast.parse(source)))
    fields = [one.target for one in nodes if isinstance(one, ast.AnnAssign)]
    parameters = [one.arg for one in nodes if isinstance(one, ast.arg)]
    return parameters.count(name) + sum(getattr(one, "id", None) == name for one in fields)


def test_option_of_the_text_is_named_in_few_files() -> None:
    found = [path.name for path in SOURCES if "keep_emoji" in path.read_text(encoding="utf-8")]
    assert len(found) <= MAX_FILES, found


def test_option_of_the_text_is_declared_once() -> None:
    counts = {path: declarations(path.read_text("utf-8"), "keep_emoji") for path in SOURCES}
    assert [path.name for path, count in counts.items() if count] == ["options.py"]
    assert sum(counts.values()) == 1


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_option_has_a_type_a_default_and_one_line_of_help(kind: type[SpeechOptions]) -> None:
    lines = [line.strip() for line in str(TTS.speak.__doc__).splitlines()]
    for name, field in kind.__dataclass_fields__.items():
        assert field.default is not dataclasses.MISSING, name
        if name in SpeakOptions.__dataclass_fields__:
            assert sum(line.startswith(f"{name}: ") for line in lines) == 1, name
