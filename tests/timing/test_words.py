"""Tests of word timings with the embedded voice."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vivace
from vivace import TTS, Audio, Word

TEXT = "Dr. Lee paid $5 today. [pause 0.5s] Yes."
UNCUT: dict[str, Any] = {"trim_start": False}
WORDS = ["Dr.", "Lee", "paid", "$5", "today.", "Yes."]


@pytest.fixture(scope="module")
def whole(embedded: TTS) -> Audio:
    """Audio with words, not trimmed."""
    return embedded.speak(TEXT, seed=3, timings=True, trim=False)


def assert_fits(words: tuple[Word, ...] | None, text: str, duration_s: float) -> None:
    assert words
    assert [text[word.start_char : word.end_char] for word in words] == [w.text for w in words]
    times = [time for word in words for time in (word.start_s, word.end_s)]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= duration_s
    assert all(word.end_s > word.start_s for word in words)


def near(words: tuple[Word, ...] | list[Word], others: tuple[Word, ...], within_s: float) -> bool:
    assert [word.text for word in words] == [other.text for other in others]
    return all(
        abs(word.start_s - other.start_s) < within_s and abs(word.end_s - other.end_s) < within_s
        for word, other in zip(words, others, strict=True)
    )


def test_every_word_has_a_start_and_an_end(whole: Audio) -> None:
    assert_fits(whole.words, TEXT, whole.duration_s)
    assert [word.text for word in whole.words or ()] == WORDS


def test_words_match_the_sound(embedded: TTS) -> None:
    audio = embedded.speak("One, two, three, four.", seed=4, timings=True)
    size = audio.sample_rate // 100
    windows = audio.samples[: len(audio.samples) // size * size].reshape(-1, size)
    levels = np.sqrt(np.square(windows).mean(1))
    is_loud = levels > levels.max() / 30
    assert audio.words
    for word in audio.words:
        first, end = round(100 * word.start_s), round(100 * word.end_s)
        assert is_loud[max(0, first - 4) : first + 5].any()
        assert is_loud[first:end].mean() > 0.5, word
    pauses = zip(audio.words, audio.words[1:], strict=False)
    assert any(not is_loud[round(100 * a.end_s) : round(100 * b.start_s)].any() for a, b in pauses)


def test_timings_do_not_change_the_audio(embedded: TTS, whole: Audio) -> None:
    plain = embedded.speak(TEXT, seed=3, trim=False)
    assert plain == whole
    assert plain.words is None
    assert all(chunk.words is None for chunk in embedded.stream("Hello.", seed=2))


def test_stream_gives_the_words_of_the_whole_audio(embedded: TTS, whole: Audio) -> None:
    chunks = list(embedded.stream(TEXT, seed=3, timings=True, chunk_frames=3, **UNCUT))
    assert all(chunk.words is not None for chunk in chunks)
    words = [word for chunk in chunks for word in chunk.words or ()]
    assert near(words, whole.words or (), 0.011)
    for chunk in chunks:
        end_s = chunk.start_s + len(chunk.samples) / chunk.sample_rate
        late = [end_s - word.end_s for word in chunk.words or ()]
        assert all(0 <= seconds < 1.6 for seconds in late)


def test_first_chunk_does_not_wait_for_words(embedded: TTS) -> None:
    with embedded.stream(TEXT, seed=3, timings=True, chunk_frames=20) as stream:
        assert next(stream).words == ()
        assert next(stream).words


def test_speed_and_pause_shift_the_words(embedded: TTS, whole: Audio) -> None:
    streamed = embedded.stream("[pause 1s]" + TEXT, seed=3, timings=True, speed=2.0, **UNCUT)
    words = [word for chunk in streamed for word in chunk.words or ()]
    for one, other in zip(words, whole.words or (), strict=True):
        assert one.start_s == pytest.approx((1 + other.start_s) / 2, abs=0.011)
        assert one.start_char == other.start_char + len("[pause 1s]")


def test_trim_shifts_the_words_by_the_removed_time(embedded: TTS, whole: Audio) -> None:
    trimmed = embedded.speak(TEXT, seed=3, timings=True, trim=True)
    cut_s = whole.duration_s - trimmed.duration_s
    assert whole.words
    assert trimmed.words
    assert trimmed.words[-1].end_s == pytest.approx(whole.words[-1].end_s - cut_s, abs=0.011)


def test_stream_shifts_the_words_by_the_silence_at_the_start(embedded: TTS, whole: Audio) -> None:
    stream = embedded.stream(TEXT, seed=3, timings=True)
    words = [word for chunk in stream for word in chunk.words or ()]
    cut_s = whole.duration_s - stream.usage.audio_s
    assert 0.05 < cut_s < 0.2
    assert whole.words
    assert words[0].start_s == pytest.approx(whole.words[0].start_s - cut_s, abs=0.011)
    assert words[-1].end_s == pytest.approx(whole.words[-1].end_s - cut_s, abs=0.011)


def test_live_text_has_words(embedded: TTS) -> None:
    pieces = [piece + " " for piece in TEXT.split(" ")]
    chunks = list(embedded.stream(iter(pieces), seed=5, timings=True))
    words = tuple(word for chunk in chunks for word in chunk.words or ())
    last = chunks[-1]
    end_s = last.start_s + len(last.samples) / last.sample_rate
    assert_fits(words, "".join(pieces), end_s)
    assert [word.text for word in words][:4] == WORDS[:4]


def test_astream_has_words(embedded: TTS, whole: Audio) -> None:
    async def read() -> list[Word]:
        stream = embedded.astream(TEXT, seed=3, timings=True, **UNCUT)
        return [word async for chunk in stream for word in chunk.words or ()]

    assert near(asyncio.run(read()), whole.words or (), 0.011)


def test_each_text_of_a_batch_has_its_words(embedded: TTS) -> None:
    first, second = embedded.speak(["Yes.", "Good evening."], seed=3, timings=True)
    assert [word.text for word in first.words or ()] == ["Yes."]
    assert [word.text for word in second.words or ()] == ["Good", "evening."]


def test_text_cut_off_by_a_limit_has_no_words(embedded: TTS) -> None:
    audio = embedded.speak(TEXT, seed=1, timings=True, max_frames=12)
    assert_fits(audio.words, TEXT, audio.duration_s)
    assert 1 <= len(audio.words or ()) <= 5


def test_head_is_selected_without_timing_config(whole: Audio, tmp_path: Path) -> None:
    asset = Path(vivace.__file__).parent / "assets" / "mini"
    folder = tmp_path / "unnamed"
    folder.mkdir()
    for path in asset.iterdir():
        if path.name != "config.json":
            (folder / path.name).symlink_to(path)
    config = json.loads((asset / "config.json").read_text())
    assert config.pop("timing_config")
    (folder / "config.json").write_text(json.dumps(config))
    with TTS.load(folder, device="cpu") as tts:
        found = tts.speak(TEXT, seed=3, timings=True, trim=False)
    assert near(found.words or (), whole.words or (), 0.011)


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("name", ["custom_voice", pytest.param("base", marks=pytest.mark.slow)])
def test_checkpoint_without_timings_reports_none(
    tiny_folder: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No head of a model with random weights follows the text."""
    text = "Hello there, said the user to the assistant, and went away."
    options: dict[str, Any] = {"seed": 3, "min_frames": 40, "max_frames": 40, "guard": False}
    with TTS.load(tiny_folder / name, device="cpu") as tts, caplog.at_level(logging.WARNING):
        voice = None if name == "custom_voice" else tts.clone(noise())
        audio = tts.speak(text, voice=voice, timings=True, **options)
        assert audio.words is None
        assert len(audio.codes) == 40
        chunks = list(tts.stream(text, voice=voice, timings=True, **options))
        assert chunks[-1].words is None
    assert caplog.text.count("no word timings") == 1


def test_failed_timing_pass_keeps_the_audio(
    embedded: TTS, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("vivace.timing.attention.TextAttention.read", fail)
    audio = embedded.speak("Good evening.", seed=2, timings=True)
    assert audio.finish_reason == "stop"
    assert audio.words is None
    assert "no room" in caplog.text


def test_stream_closed_during_a_timing_pass_frees_its_slot(embedded: TTS) -> None:
    for num_chunks in (1, 2):
        with embedded.stream(TEXT, seed=3, timings=True, chunk_frames=4) as stream:
            for _ in range(num_chunks):
                next(stream)
    embedded.engine.call(lambda: None)
    assert embedded.engine.num_running == 0


def noise() -> tuple[np.ndarray, int]:
    return np.random.default_rng(0).normal(0, 0.1, 48_000).astype(np.float32), 24_000
