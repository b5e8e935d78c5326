"""Word and character times over HTTP and WebSockets."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest

from tests.support.serving import Running
from tests.support.websocket_client import audio, connected, types
from vivace import TTS, Word
from vivace.serve.speaking.alignment import Aligner, as_milliseconds, as_seconds

TEXT = "Good evening, Dr. Lee."
BODY = {"input": TEXT, "seed": 7, "response_format": "pcm", "stream_format": "sse"}


@pytest.fixture(scope="module")
def words(embedded: TTS) -> list[Word]:
    chunks = embedded.stream(TEXT, seed=7, timings=True)
    return [word for chunk in chunks for word in chunk.words or ()]


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = response.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("stream", [True, False])
def test_word_events_equal_the_engines_words(
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


def test_words_are_absent_by_default(client: httpx.Client) -> None:
    kinds = {
        one["type"]
        for one in events(client.post("/v1/audio/speech", json={**BODY, "input": "Yes."}))
    }
    assert kinds == {"speech.audio.delta", "speech.audio.done"}


def test_word_timestamps_without_events_return_400(client: httpx.Client) -> None:
    body = {**BODY, "stream_format": "audio", "word_timestamps": True}
    response = client.post("/v1/audio/speech", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "word_timestamps"


@pytest.mark.ci
def test_omni_word_timestamps_send_audio_in_json_and_words_last(
    server: Running, embedded: TTS
) -> None:
    config = {"response_format": "pcm", "seed": 7, "word_timestamps": True}
    with connected(server) as talk:
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


def test_omni_word_events_are_sent_between_the_audio(server: Running, embedded: TTS) -> None:
    with connected(server) as talk:
        talk.send("session.config", response_format="pcm", seed=7, word_events=True)
        messages = talk.speak(TEXT)
        talk.send("session.config", response_format="pcm", seed=7, word_events=False)
        plain = talk.speak(TEXT)
        talk.send("session.config", word_events="yes")
        refused = talk.read()
    assert audio(messages) == audio(plain)
    assert "audio.words" not in types(plain)
    assert types(messages)[:2] == [
        "audio.start",
        "bytes",
    ]  # the first audio does not wait for words
    timed = [one["words"] for one in messages if isinstance(one, dict) and "words" in one]
    rows = [row for some in timed for row in some]
    assert [row["word"] for row in rows] == TEXT.split()
    assert len(timed) > 1  # while the speech is made
    assert types(messages)[-3:] == ["bytes", "audio.done", "session.done"]
    stream = embedded.stream(iter([TEXT]), seed=7, timings=True)
    expected = [word for chunk in stream for word in chunk.words or ()]
    for row, word in zip(rows, expected, strict=True):
        assert row["start"] == pytest.approx(word.start_s, abs=0.012)
        assert row["end"] == pytest.approx(word.end_s, abs=0.012)
        assert TEXT[row["start_char"] : row["end_char"]] == row["word"]
    assert isinstance(refused, dict)
    assert refused["param"] == "word_events"


@pytest.mark.parametrize(
    "fields", [{"response_format": "wav"}, {"stream_audio": False}, {"word_timestamps": "yes"}]
)
def test_omni_word_timestamps_with_other_formats_are_refused(
    server: Running, fields: dict[str, Any]
) -> None:
    with connected(server) as talk:
        talk.send("session.config", **{"response_format": "pcm", "word_timestamps": True, **fields})
        answer = talk.read()
    assert isinstance(answer, dict)
    assert answer["type"] == "error"
    assert answer["param"] == "word_timestamps"


def test_elevenlabs_with_timestamps_returns_a_time_for_every_character(
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


WORDS = [
    Word(text="b", start_s=1.0, end_s=2.0, start_char=2, end_char=3),
    Word(text="cd", start_s=2.0, end_s=4.0, start_char=3, end_char=5),
    Word(text="f,", start_s=5.0, end_s=6.0, start_char=6, end_char=8),
]


def test_aligner_gives_times_to_characters_outside_words() -> None:
    assert as_seconds(*Aligner().take("  bcd e", WORDS[:2], is_last=True)) == {
        "characters": list("  bcd e"),
        "character_start_times_seconds": [0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 4.0],
        "character_end_times_seconds": [0.5, 1.0, 2.0, 3.0, 4.0, 4.0, 4.0],
    }
    assert as_seconds(*Aligner().take("ab", [], is_last=True))["character_end_times_seconds"] == [
        0.0,
        0.0,
    ]


def test_aligner_gives_times_as_words_become_known() -> None:
    aligner = Aligner(10.0)
    assert aligner.take("  b", WORDS[:1]) == ("  b", [10.0, 10.5, 11.0, 12.0])
    # A space is aligned with the word before it and lasts until the next word.
    assert aligner.take("  bcd f", WORDS[1:2]) == ("cd ", [12.0, 13.0, 14.0, 14.0])
    assert aligner.take("  bcd f, g", WORDS[2:]) == ("f, ", [15.0, 15.5, 16.0, 16.0])
    assert aligner.take("  bcd f, g", []) == ("", [16.0])
    assert aligner.take("  bcd f, g", [], is_last=True) == ("g", [16.0, 16.0])


def test_milliseconds_count_from_the_origin() -> None:
    assert as_milliseconds("ab", [1.0, 1.2504, 1.5], 1000) == {
        "chars": ["a", "b"],
        "charStartTimesMs": [0, 250],
        "charDurationsMs": [250, 250],
    }


def test_elevenlabs_streams_lines_with_the_times_of_their_characters(
    client: httpx.Client, words: list[Word]
) -> None:
    url = "/v1/text-to-speech/alloy/stream/with-timestamps?output_format=pcm_24000"
    body = {"text": TEXT, "seed": 7}
    lines = [json.loads(line) for line in client.post(url, json=body).text.splitlines()]
    plain = client.post(url.replace("/with-timestamps", ""), json=body).content
    assert b"".join(base64.b64decode(line["audio_base64"]) for line in lines) == plain
    aligned = [line["alignment"] for line in lines if line["alignment"]]
    assert len(aligned) > 1  # while the speech is made
    assert "".join(char for one in aligned for char in one["characters"]) == TEXT
    starts = [time for one in aligned for time in one["character_start_times_seconds"]]
    ends = [time for one in aligned for time in one["character_end_times_seconds"]]
    assert starts == sorted(starts)
    for word in words:
        assert starts[word.start_char] == pytest.approx(word.start_s, abs=0.012)
        assert ends[word.end_char - 1] == pytest.approx(word.end_s, abs=0.012)


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("is_synced", [False, True])
def test_multi_stream_input_sends_alignments_of_every_context(
    server: Running, embedded: TTS, is_synced: bool
) -> None:
    """Without sync_alignment times count from the end of the last alignment, with it from 0."""
    query = "output_format=pcm_24000&seed=7" + "&sync_alignment=true" * is_synced
    with connected(server, f"/v1/text-to-speech/alloy/multi-stream-input?{query}") as talk:
        for text, flush in (("Good evening, ", False), ("Dr. Lee.", True), ("Come in. ", True)):
            talk.send(text=text, flush=flush, context_id="a")
        talk.send(close_context=True, context_id="a")
        messages: list[dict[str, Any]] = []
        while not messages or not messages[-1]["isFinal"]:
            messages.append(talk.read())  # type: ignore[arg-type]
    aligned = [one["alignment"] for one in messages if one.get("alignment")]
    assert aligned == [one["normalizedAlignment"] for one in messages if one.get("alignment")]
    assert "".join(char for one in aligned for char in one["chars"]) == f"{TEXT}Come in. "
    starts, clock_ms = list[int](), 0
    for one in aligned:
        starts += [clock_ms + time for time in one["charStartTimesMs"]]
        if not is_synced:
            clock_ms += one["charStartTimesMs"][-1] + one["charDurationsMs"][-1]
    assert starts == sorted(starts)
    place, began_s = 0, 0.0
    for pieces in (["Good evening, ", "Dr. Lee."], ["Come in. "]):
        chunks = list(embedded.stream(iter(pieces), seed=7, timings=True))
        for word in [word for chunk in chunks for word in chunk.words or ()]:
            expected_ms = 1000 * (began_s + word.start_s)
            assert starts[place + word.start_char] == pytest.approx(expected_ms, abs=12)
        place += len("".join(pieces))
        began_s += sum(len(chunk.samples) for chunk in chunks) / 24_000


def test_stream_input_sends_alignments_on_request(server: Running) -> None:
    path = "/v1/text-to-speech/alloy/stream-input?output_format=mp3_44100_128&seed=7"
    for query, text in (("", ""), ("&sync_alignment=true", "Hi there.")):
        with connected(server, path + query) as talk:
            for piece in (" ", "Hi there.", ""):
                talk.send(text=piece)
            messages, code = talk.until_closed()
        assert code == 1000
        found = [one.get("alignment") for one in messages if isinstance(one, dict)]
        assert "".join(char for one in found if one for char in one["chars"]) == text
    with connected(server, f"{path}&sync_alignment=perhaps") as talk:
        talk.send(text=TEXT)
        messages, code = talk.until_closed()
    assert code == 1008
    assert "sync_alignment: must be a valid boolean" in str(messages)
