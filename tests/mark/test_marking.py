"""Marks of speech: what `TTS`, files and options do with the option `mark`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vivace import TTS
from vivace.errors import RequestError
from vivace.hub import EMBEDDED, model_id
from vivace.mark.marking import NO_MARKING, Marking

TEXT = "Hello there."
SHORT: dict[str, Any] = {"seed": 7, "max_frames": 12}


class Halving:
    """A watermark that halves samples and holds the last 100 back."""

    def __init__(self) -> None:
        self._held = np.zeros(0, np.float32)

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        joined = np.concatenate([self._held, samples])
        self._held = joined[max(0, len(joined) - 100) :]
        return joined[: len(joined) - len(self._held)] / np.float32(2)

    def finish(self) -> NDArray[np.float32]:
        return self._held / np.float32(2)


class HalvingWatermark:
    def stream(self, rate: int) -> Halving:
        assert rate == 24_000
        return Halving()


WATERMARKED = Marking(watermark=HalvingWatermark())


@pytest.fixture(scope="module")
def tts() -> TTS:
    return TTS.load()


def test_speech_is_marked_by_default(tts: TTS) -> None:
    audio = tts.speak(TEXT, **SHORT)
    assert audio.mark is not None
    assert audio.mark.provenance.model == "vivace/mini"
    assert audio.mark.provenance.voices == ("preset",)
    assert b"AI-generated speech" in audio.to_bytes("wav")
    assert b"AI-generated" not in audio.to_bytes("pcm")


def test_mark_none_leaves_the_file_without_tags(tts: TTS) -> None:
    marked, plain = tts.speak(TEXT, **SHORT), tts.speak(TEXT, mark="none", **SHORT)
    assert plain.mark is None
    assert marked.to_bytes("wav").startswith(plain.to_bytes("wav")[8:40], 8)
    assert b"AI-generated" not in plain.to_bytes("wav")
    assert marked == plain


def test_default_of_load_applies_unless_the_call_has_its_own() -> None:
    with TTS.load(mark="none") as quiet:
        assert quiet.speak(TEXT, **SHORT).mark is None
        assert quiet.speak(TEXT, mark="metadata", **SHORT).mark is not None
        assert quiet.speak([TEXT], **SHORT)[0].mark is None


@pytest.mark.parametrize("value", ["loud", "none,c2pa", 3])
def test_invalid_mark_is_rejected_before_anything_is_spoken(tts: TTS, value: object) -> None:
    with pytest.raises(RequestError, match="mark"):
        tts.speak(TEXT, mark=value)  # type: ignore[call-overload]
    with pytest.raises(RequestError, match="mark"):
        TTS.load(mark=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("speed", [1.0, 1.5])
@pytest.mark.parametrize("chunk_frames", [1, 5])
def test_streamed_watermark_equals_that_of_the_whole(
    tts: TTS, speed: float, chunk_frames: int
) -> None:
    options: dict[str, Any] = {"speed": speed, "mark": WATERMARKED, "trim_start": False, **SHORT}
    chunks = list(tts.stream(TEXT, chunk_frames=chunk_frames, **options))
    whole = tts.speak(TEXT, trim=False, **options)
    plain = tts.speak(TEXT, trim=False, **{**options, "mark": "metadata"})
    streamed = np.concatenate([chunk.samples for chunk in chunks])
    assert np.array_equal(streamed, whole.samples)
    assert np.array_equal(whole.samples, plain.samples / 2)
    assert whole.mark is not None
    assert whole.mark.provenance.marks == ("metadata", "watermark")


def test_chunks_of_a_watermarked_stream_are_consecutive(tts: TTS) -> None:
    end = 0.0
    for chunk in tts.stream(TEXT, chunk_frames=1, mark=WATERMARKED, **SHORT):
        assert chunk.start_s == pytest.approx(end)
        end += len(chunk.samples) / chunk.sample_rate
    assert chunk.usage is not None
    assert chunk.usage.audio_s == pytest.approx(end)
    assert chunk.usage.first_audio_ms is not None


def test_dialogue_is_marked_with_all_voices_and_equals_its_stream(tts: TTS) -> None:
    lines = [("heart", "Hello."), ("michael", "Good day.")]
    options: dict[str, Any] = {"mark": WATERMARKED, "gap_s": 0.1, **SHORT}
    talk = tts.dialogue(lines, **options)
    assert talk.mark is not None
    with tts.stream_dialogue(lines, **options) as stream:
        streamed = np.concatenate([chunk.samples for chunk in stream])
        assert stream.mark == talk.mark
    assert np.array_equal(streamed, talk.samples)


def test_tracks_of_a_dialogue_are_marked(tts: TTS, tmp_path: Path) -> None:
    talk = tts.dialogue([("heart", "Hello."), ("michael", "Good day.")], **SHORT)
    for path in talk.save_tracks(tmp_path / "talk.wav"):
        assert b"AI-generated speech" in path.read_bytes()


def test_marking_without_metadata_writes_no_file_mark() -> None:
    assert NO_MARKING.file_mark("a", "preset") is None
    assert NO_MARKING.levels.names == ("none",)


def test_file_mark_names_each_kind_of_voice_once() -> None:
    mark = WATERMARKED.file_mark("a", "preset", "cloned", "preset")
    assert mark is not None
    assert mark.provenance.voices == ("preset", "cloned")


def test_marking_without_watermark_keeps_the_metadata() -> None:
    marking = WATERMARKED.without_watermark()
    assert marking.open_stream(24_000) is None
    assert marking.levels.names == ("metadata",)


def test_model_id_never_contains_a_local_path(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Qwen--Qwen3-TTS" / "snapshots" / "0123abc"
    assert model_id(snapshot) == "Qwen/Qwen3-TTS"
    assert model_id(tmp_path / "my model") == "my model"
    assert model_id(EMBEDDED) == "vivace/mini"
