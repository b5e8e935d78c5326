"""When words are heard, over HTTP and over vLLM-Omni's socket."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest
from serving import Running
from talking import audio, talking

from vivace import TTS, Word
from vivace.serve.elevenlabs import align_characters

TEXT = "Good evening, Dr. Lee."
BODY = {"input": TEXT, "seed": 7, "response_format": "pcm", "stream_format": "sse"}


@pytest.fixture(scope="module")
def words(embedded: TTS) -> list[Word]:
    chunks = embedded.stream(TEXT, seed=7, timings=True)
    return [word for chunk in chunks for word in chunk.words or ()]


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = response.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


@pytest.mark.parametrize("stream", [True, False])
def test_events_have_the_words_that_the_engine_gives(
    client: httpx.Client, words: list[Word], stream: bool
) -> None:
    response = client.post(
        "/v1/audio/speech", json={**BODY, "word_timestamps": True, "stream": stream}
    )
    found = events(response)
    said = [word for one in found if one["type"] == "speech.audio.words" for word in one["words"]]
    assert [word["word"] for word in said] == TEXT.split()
    for one, expected in zip(said, words, strict=True):
        assert one["start"] == pytest.approx(expected.start_s, abs=0.012)
        assert one["end"] == pytest.approx(expected.end_s, abs=0.012)
        assert TEXT[one["start_char"] : one["end_char"]] == one["word"]
    assert found[-1]["type"] == "speech.audio.done"


def test_without_asking_there_are_no_words(client: httpx.Client) -> None:
    kinds = {
        one["type"]
        for one in events(client.post("/v1/audio/speech", json={**BODY, "input": "Yes."}))
    }
    assert kinds == {"speech.audio.delta", "speech.audio.done"}


def test_words_need_events(client: httpx.Client) -> None:
    body = {**BODY, "stream_format": "audio", "word_timestamps": True}
    response = client.post("/v1/audio/speech", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "word_timestamps"


def test_the_socket_sends_audio_in_json_and_all_words_last(server: Running, embedded: TTS) -> None:
    config = {"response_format": "pcm", "seed": 7, "word_timestamps": True}
    with talking(server) as talk:
        talk.send("session.config", **config)
        start, *chunks, done, _ = talk.speak("Good evening, ", "Dr. Lee.")
        assert isinstance(start, dict)
        assert start["word_timestamps"] is True
        assert isinstance(done, dict)
        assert done["type"] == "audio.done"
        talk.send("session.config", response_format="pcm", seed=7)
        plain = audio(talk.speak("Good evening, ", "Dr. Lee."))
    found = [chunk for chunk in chunks if isinstance(chunk, dict)]
    assert [chunk["chunk_id"] for chunk in found] == list(range(len(chunks)))
    assert b"".join(base64.b64decode(chunk["audio_b64"]) for chunk in found) == plain
    assert done["total_bytes"] == len(plain)
    assert all(chunk["timestamps"] is None for chunk in found[:-1])
    assert found[-1]["audio_b64"] == ""
    pieces = iter(["Good evening, ", "Dr. Lee."])
    expected = [w for c in embedded.stream(pieces, seed=7, timings=True) for w in c.words or ()]
    said = found[-1]["timestamps"]
    assert [word["word"] for word in said] == [word.text for word in expected]
    for one, word in zip(said, expected, strict=True):
        assert one["start_ms"] == pytest.approx(1000 * word.start_s, abs=12)
        assert one["end_ms"] == pytest.approx(1000 * word.end_s, abs=12)


@pytest.mark.parametrize(
    "fields", [{"response_format": "wav"}, {"stream_audio": False}, {"word_timestamps": "yes"}]
)
def test_the_socket_refuses_what_cannot_carry_words(
    server: Running, fields: dict[str, Any]
) -> None:
    with talking(server) as talk:
        talk.send("session.config", **{"response_format": "pcm", "word_timestamps": True, **fields})
        answer = talk.read()
    assert isinstance(answer, dict)
    assert answer["type"] == "error"
    assert answer["param"] == "word_timestamps"


def test_elevenlabs_with_timestamps_times_every_character(
    client: httpx.Client, words: list[Word]
) -> None:
    url = "/v1/text-to-speech/alloy/with-timestamps?output_format=pcm_24000"
    answer = client.post(url, json={"text": TEXT, "seed": 7}).json()
    seconds = len(base64.b64decode(answer["audio_base64"])) / 48_000
    aligned = answer["alignment"]
    starts = aligned["character_start_times_seconds"]
    ends = aligned["character_end_times_seconds"]
    assert "".join(aligned["characters"]) == TEXT
    assert starts == sorted(starts)
    assert all(start <= end for start, end in zip(starts, ends, strict=True))
    assert ends[-1] <= seconds
    for word in words:
        assert starts[word.start_char] == pytest.approx(word.start_s, abs=0.012)
        assert ends[word.end_char - 1] == pytest.approx(word.end_s, abs=0.012)


def test_characters_outside_of_words_have_times_too() -> None:
    words = [
        Word(text="b", start_s=1.0, end_s=2.0, start_char=2, end_char=3),
        Word(text="cd", start_s=2.0, end_s=4.0, start_char=3, end_char=5),
    ]
    assert align_characters("  bcd e", words) == {
        "characters": list("  bcd e"),
        "character_start_times_seconds": [0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 4.0],
        "character_end_times_seconds": [0.5, 1.0, 2.0, 3.0, 4.0, 4.0, 4.0],
    }
    assert align_characters("ab", [])["character_end_times_seconds"] == [0.0, 0.0]
