"""max_frames: the checkpoint's default limits an utterance, a given value the whole text."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.recording_backend import stop_after
from tests.support.slots import plain_backend
from vivace import TTS
from vivace.engine.streams.stream import Stream
from vivace.errors import RequestError, RunawayError

TEXT = " ".join(f"This is sentence number {n}, and it says little." for n in range(20))
LIMIT = 6  # frames; the checkpoint's default


@pytest.fixture(scope="module")
def tts(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TTS]:
    """A checkpoint whose default limit is far below the length of the text."""
    folder = tmp_path_factory.mktemp("limited") / "custom_voice"
    shutil.copytree(tiny_folder / "custom_voice", folder)
    path = folder / "generation_config.json"
    defaults = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**defaults, "max_new_tokens": LIMIT + 1}))
    with TTS.load(folder, device="cpu") as loaded:
        assert loaded.sampling.max_frames == LIMIT
        yield loaded


def pieces() -> Iterator[str]:
    yield from re.findall(r"\S+\s*", TEXT)


def read_live(tts: TTS, **options: Any) -> tuple[int, str | None]:
    return read(tts.stream(pieces(), **options))


def read_whole(tts: TTS, **options: Any) -> tuple[int, str | None]:
    audio = tts.speak(TEXT, **options)
    assert audio.usage.frames == len(audio.codes)
    return len(audio.codes), audio.finish_reason


def read_stream(tts: TTS, **options: Any) -> tuple[int, str | None]:
    return read(tts.stream(TEXT, **options))


def read_async(tts: TTS, **options: Any) -> tuple[int, str | None]:
    async def run() -> tuple[int, str | None]:
        chunks = [chunk async for chunk in tts.astream(TEXT, **options)]
        return sum(len(chunk.codes) for chunk in chunks), chunks[-1].finish_reason

    return asyncio.run(run())


def read(stream: Stream) -> tuple[int, str | None]:
    return sum(len(chunk.codes) for chunk in stream), stream.finish_reason


WAYS = [read_whole, read_stream, read_async, read_live]
Way = Callable[..., tuple[int, str | None]]


@pytest.mark.parametrize("way", WAYS)
def test_long_text_is_spoken_whole_with_the_default_limit(
    tts: TTS, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = stop_after(tts, monkeypatch, LIMIT - 1)
    num_frames, finish_reason = way(tts, seed=3, min_frames=LIMIT)
    assert said.num_prompts >= 3
    assert num_frames == said.num_prompts * (LIMIT - 1) > 2 * LIMIT
    assert finish_reason == "stop"
    if way is not read_live:
        assert " ".join(said.texts(tts)) == TEXT


@pytest.mark.parametrize("way", WAYS)
def test_utterance_cut_by_the_default_limit_is_reported_and_the_rest_spoken(
    tts: TTS, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = stop_after(tts, monkeypatch, 1_000)
    num_frames, finish_reason = way(tts, seed=3, min_frames=LIMIT)
    assert num_frames == said.num_prompts * LIMIT > 2 * LIMIT
    assert finish_reason == "length"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "max_frames", [2 * LIMIT - 3, 2 * LIMIT - 2]
)  # inside an utterance, and between two
def test_given_max_frames_counts_over_all_utterances(
    tts: TTS, way: Way, max_frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(tts, monkeypatch, LIMIT - 1)
    assert way(tts, seed=3, min_frames=LIMIT, max_frames=max_frames) == (max_frames, "length")


def test_max_frames_equal_to_the_length_cuts_nothing(
    tts: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = stop_after(tts, monkeypatch, LIMIT - 1)
    num_frames, _ = read_stream(tts, seed=3, min_frames=LIMIT)
    num_prompts = said.num_prompts
    assert read_stream(tts, seed=3, min_frames=LIMIT, max_frames=num_frames) == (num_frames, "stop")
    assert said.num_prompts == 2 * num_prompts


def test_given_max_frames_may_exceed_the_default(tts: TTS) -> None:
    audio = tts.speak("Hello.", seed=3, min_frames=20, max_frames=20)
    assert (len(audio.codes), audio.finish_reason) == (20, "length")


def test_min_frames_applies_to_each_utterance(tts: TTS) -> None:
    assert read_stream(tts, seed=3, min_frames=4, max_frames=7)[0] == 7


@pytest.mark.parametrize(
    "options",
    [
        {"min_frames": 100, "max_frames": 10},
        {"min_frames": 2, "max_frames": 1},
        {"min_frames": LIMIT + 1},
    ],
)
def test_min_frames_above_max_frames_is_rejected(tts: TTS, options: dict[str, Any]) -> None:
    most = options.get("max_frames", LIMIT)
    message = f"min_frames must be at most max_frames, which is {most}, not {options['min_frames']}"
    with pytest.raises(RequestError, match=message):
        tts.speak("Hello.", **options)


def test_max_frames_one_makes_one_frame(tts: TTS) -> None:
    assert tts.speak("Hello.", seed=3, max_frames=1).usage.frames == 1


def stall(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make every utterance stall. Returns the list of seeds that were tried."""
    seeds: list[int] = []
    admit = plain_backend(tts).admit

    def watch(prompt: Any, sampling: Any) -> int:
        seeds.append(sampling.seed)
        return admit(prompt, sampling)

    monkeypatch.setattr(tts.engine.backend, "admit", watch)
    monkeypatch.setattr(
        "vivace.engine.utterances.guard.StallDetector.observe",
        lambda self, codes, samples: 2 if len(codes) else 0,
    )
    return seeds


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("given", [{"max_frames": 40}, {"seed": 4}, {"seed": 4, "max_frames": 40}])
def test_given_seed_or_limit_excludes_a_second_attempt(
    tiny_folder: Path, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as tts:
        seeds = stall(tts, monkeypatch)
        assert tts.speak("Stuck.", min_frames=30, trim=False, **given).finish_reason == "stall"
        assert len(seeds) == 1
        with pytest.raises(RunawayError):
            tts.speak("Stuck.", min_frames=30)
        assert len(set(seeds)) == 3


# -- progress ----------------------------------------------------------------------------------


def shares(shown: str) -> list[int]:
    return [int(share) for share in re.findall(r"(\d+)% \|", shown)]


def test_progress_grows_with_every_utterance(
    tts: TTS, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = stop_after(tts, monkeypatch, LIMIT - 1)
    tts.speak(TEXT, seed=3, min_frames=LIMIT, progress=True)
    shown = shares(capsys.readouterr().err)
    assert shown == sorted(shown)
    assert shown[-1] == 100
    assert max(np.diff(shown)) <= 100 / (said.num_prompts - 2)


def test_progress_of_a_cut_text_ends_at_the_cut(
    tts: TTS, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_after(tts, monkeypatch, LIMIT - 1)
    tts.speak(TEXT, seed=3, min_frames=LIMIT, progress=True, max_frames=2 * LIMIT)
    shown = capsys.readouterr().err
    assert 0 < shares(shown)[-1] < 90
    assert shown.endswith("\n")
