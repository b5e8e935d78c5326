"""`ServerSource`, the WebSocket client of the integrations, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.support.scripted_tts import Plan
from tests.support.voice_sources import LIMIT_S, VoiceUnderTest, speaking, voice_under_test
from vivace.errors import RequestError, ServerError
from vivace.integrations.open import open_source
from vivace.integrations.server import ServerSource, as_error, socket_url

TEXT = "Hello there, this is an agent."


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VoiceUnderTest]:
    with voice_under_test("over a socket", tmp_path_factory.mktemp("voices")) as served:
        yield served


@pytest.fixture
def under_test(served: VoiceUnderTest) -> Iterator[VoiceUnderTest]:
    yield served
    served.backend.default, served.backend.step_s = Plan(), 0.0


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await asyncio.wait_for(test(), 3 * LIMIT_S)

    asyncio.run(whole())


async def words() -> AsyncIterator[str]:
    for word in TEXT.split():
        yield f"{word} "


async def receive(
    source: ServerSource, text: AsyncIterator[str] | str, pcm: bytearray, rate: int = 24_000
) -> None:
    async for sound in source.speak(text, rate):
        pcm.extend(sound.pcm)


async def read(source: ServerSource, text: AsyncIterator[str] | str, rate: int = 24_000) -> bytes:
    pcm = bytearray()
    await receive(source, text, pcm, rate)
    return bytes(pcm)


def test_connection_is_reused_for_the_next_text(under_test: VoiceUnderTest) -> None:
    async def test() -> None:
        source = ServerSource(str(under_test.voice))
        await source.prepare()
        (connection,) = source._idle
        assert len(await read(source, TEXT)) == 25 * 1_920 * 2
        assert len(await read(source, words())) == 25 * 1_920 * 2
        assert len(await read(source, words(), 8_000)) == pytest.approx(25 * 640 * 2, abs=64)
        assert source._idle == [connection]
        await source.aclose()
        assert source._idle == []

    run(test)


def test_concurrent_texts_use_separate_connections(under_test: VoiceUnderTest) -> None:
    async def test() -> None:
        source = ServerSource(str(under_test.voice))
        both = await asyncio.gather(read(source, words()), read(source, TEXT))
        assert [len(one) for one in both] == [25 * 1_920 * 2] * 2
        assert len(source._idle) == 2
        await source.aclose()

    run(test)


def test_abandoned_speech_is_cancelled_and_its_connection_kept(under_test: VoiceUnderTest) -> None:
    under_test.speak_at_length(0.001)

    async def test() -> None:
        source = ServerSource(str(under_test.voice))
        async with aclosing(source.speak(words(), 24_000)) as speech:  # type: ignore[type-var]
            await speech.__anext__()
            await speech.__anext__()
        await asyncio.gather(*source._tasks)
        assert len(source._idle) == 1
        await under_test.wait_free()
        under_test.speak_briefly()
        assert len(await read(source, words())) == 25 * 1_920 * 2
        await source.aclose()

    run(test)


def test_closed_source_ends_its_speech(under_test: VoiceUnderTest) -> None:
    under_test.speak_at_length(0.001)

    async def test() -> None:
        source, pcm = ServerSource(str(under_test.voice)), bytearray()
        reading = asyncio.ensure_future(receive(source, words(), pcm))
        while not pcm:
            await asyncio.sleep(0.002)
        await source.aclose()
        with pytest.raises(ServerError, match="ended before the speech did"):
            await reading
        await under_test.wait_free()

    run(test)


def test_closed_connection_is_replaced(under_test: VoiceUnderTest) -> None:
    async def test() -> None:
        source = ServerSource(str(under_test.voice))
        await source.prepare()
        await source._idle[0].close()
        assert len(await read(source, TEXT)) == 25 * 1_920 * 2
        await source.aclose()

    run(test)


def test_error_of_the_text_iterator_is_raised_after_its_audio(under_test: VoiceUnderTest) -> None:
    async def broken() -> AsyncIterator[str]:
        yield TEXT
        raise LookupError("the language model left")

    async def test() -> None:
        source, pcm = ServerSource(str(under_test.voice)), bytearray()
        with pytest.raises(LookupError, match="the language model left"):
            await receive(source, broken(), pcm)
        assert len(pcm) == 25 * 1_920 * 2
        assert len(source._idle) == 1
        await source.aclose()

    run(test)


def test_request_rejected_by_the_server_raises_request_error(under_test: VoiceUnderTest) -> None:
    async def test() -> None:
        source = ServerSource(str(under_test.voice))
        for options, message in (
            ({"voice": "nobody"}, "the server: no voice named 'nobody'"),
            ({"language": "klingon"}, "the server: no language named 'klingon'"),
            ({"tempo": 2}, "a server does not accept tempo; try one of: instruct, "),
            ({"voice": object()}, "voice must be the name of a voice on the server"),
        ):
            with pytest.raises(RequestError, match=message):
                async for _ in source.speak(TEXT, 24_000, **options):
                    pass
        assert len(await read(source, TEXT)) == 25 * 1_920 * 2
        await source.aclose()

    run(test)


def test_failed_speech_raises_server_error(under_test: VoiceUnderTest) -> None:
    under_test.backend.default = Plan(100, fails_at=50)

    async def test() -> None:
        source, pcm = ServerSource(str(under_test.voice)), bytearray()
        with pytest.raises(ServerError):
            await receive(source, TEXT, pcm)
        assert pcm
        await source.aclose()

    run(test)


def test_wrong_key_raises_with_a_hint(tmp_path: Path) -> None:
    async def test() -> None:
        with voice_under_test("over a socket", tmp_path, api_keys=("right",)) as under_test:
            url = str(under_test.voice)
            with pytest.raises(RequestError, match=r"answered 40\d; does it need a key"):
                await read(ServerSource(url, api_key="wrong"), TEXT)
            source = open_source(url, "right")
            assert isinstance(source, ServerSource)
            assert len(await read(source, TEXT)) == 25 * 1_920 * 2
            await source.aclose()

    run(test)


def test_missing_server_raises_with_a_hint() -> None:
    with pytest.raises(ServerError, match=r"127\.0\.0\.1:9/.*is `vivace serve` running there"):
        asyncio.run(read(ServerSource("127.0.0.1:9"), TEXT))


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8000", "ws://127.0.0.1:8000/v1/audio/speech/stream"),
        ("127.0.0.1:8000", "ws://127.0.0.1:8000/v1/audio/speech/stream"),
        ("https://tts.example.org/v1/", "wss://tts.example.org/v1/audio/speech/stream"),
        ("ws://h:1/a/v1/audio/speech/stream", "ws://h:1/a/v1/audio/speech/stream"),
        ("https://h/proxy?key=1", "wss://h/proxy/v1/audio/speech/stream?key=1"),
    ],
)
def test_server_address_is_accepted_in_common_forms(given: str, url: str) -> None:
    assert socket_url(given) == url


@pytest.mark.parametrize("given", ["", "ftp://host", "http://", "file:///etc"])
def test_invalid_address_is_rejected(given: str) -> None:
    with pytest.raises(RequestError, match="not the address of a server"):
        socket_url(given)


def test_full_server_reports_retry_after() -> None:
    error = as_error({"message": "full", "code": "queue_full", "retry_after_ms": 250})
    assert isinstance(error, ServerError)
    assert error.retry_s == 0.25
    assert isinstance(as_error({"message": "no", "code": "internal_error"}), ServerError)
    assert isinstance(as_error({"message": "no", "code": "invalid_request"}), RequestError)


def test_words_arrive_with_the_audio_that_ends_them(tmp_path: Path) -> None:
    async def test() -> None:
        with speaking("over a socket", tmp_path) as url:
            source = ServerSource(str(url))
            sounds = [sound async for sound in source.speak(words(), 24_000, seed=7, timings=True)]
            plain = [sound async for sound in source.speak(words(), 24_000, seed=7)]
            await source.aclose()
        assert b"".join(sound.pcm for sound in sounds) == b"".join(sound.pcm for sound in plain)
        assert not any(sound.words for sound in plain)
        found = [word for sound in sounds for word in sound.words]
        assert [word.text for word in found] == TEXT.split()
        assert [TEXT[word.start_char : word.end_char] for word in found] == TEXT.split()
        assert len([sound for sound in sounds if sound.words]) > 1  # during generation
        made_s = 0.0
        for sound in sounds:
            made_s += len(sound.pcm) / 48_000
            assert all(word.start_s < word.end_s <= made_s for word in sound.words)

    run(test)
