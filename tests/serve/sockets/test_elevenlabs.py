"""ElevenLabs' endpoints, used by the package `elevenlabs` over TLS and by single messages."""

from __future__ import annotations

import base64
import datetime
import io
import ipaddress
import ssl
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import av
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from elevenlabs import realtime_tts
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from elevenlabs.types import VoiceSettings
from websockets.sync.client import connect

from tests.support.raw_http import LIMIT_S
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import Message, SocketClient, connected, wait_until
from vivace.serve.settings import ServeSettings

pytestmark = pytest.mark.filterwarnings("ignore:ConnectionClosed")  # raised inside the package

NUM_FRAMES = 10
SECONDS = NUM_FRAMES * 0.08
KEY = {"xi-api-key": "secret"}
LONG = 7  # the seed of a speech that exceeds every buffer


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return ScriptedSpeech(default=Plan(NUM_FRAMES), plans={LONG: Plan(3_000)}, step_s=0.005)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    plain, form = serialization.NoEncryption(), serialization.PrivateFormat.PKCS8
    (folder / "cert.pem").write_bytes(signed.public_bytes(encoding))
    (folder / "key.pem").write_bytes(key.private_bytes(encoding, form, plain))
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture(scope="module")
def secure(
    backend: ScriptedSpeech,
    certificate: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    cert, key = certificate
    voices = tmp_path_factory.mktemp("voices")
    settings = ServeSettings(
        port=0, voices=voices, api_keys=("secret",), tls_cert=cert, tls_key=key
    )
    with running(settings, backend.load) as server:
        yield server


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    voices = tmp_path_factory.mktemp("voices")
    settings = ServeSettings(port=0, voices=voices, api_keys=("secret",))
    with running(settings, backend.load) as server:
        yield server


@pytest.fixture
def eleven(
    secure: Running, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[ElevenLabs]:
    cert = str(certificate[0])
    # The package's WebSocket reads and writes in two threads. With TLS 1.3 the reader also receives
    # session tickets, and Python's SSLSocket is not safe for both at once (CPython issue 151508).
    two_threads = ssl.create_default_context(cafile=cert)
    two_threads.maximum_version = ssl.TLSVersion.TLSv1_2
    patient = partial(connect, ssl=two_threads, open_timeout=LIMIT_S)
    monkeypatch.setattr(realtime_tts, "connect", patient)
    context = ssl.create_default_context(cafile=cert)
    with httpx.Client(verify=context, timeout=30.0) as client:
        yield ElevenLabs(api_key="secret", base_url=secure.url, httpx_client=client)


def decode(content: bytes) -> tuple[int, float]:
    """Sample rate and duration in seconds."""
    with av.open(io.BytesIO(content)) as container:
        rate = container.streams.audio[0].rate
        return rate, sum(frame.samples for frame in container.decode(audio=0)) / rate


# --- Its own package --------------------------------------------------------------------------


def test_package_streams_words_as_mp3_by_default(eleven: ElevenLabs) -> None:
    words = iter(["Hello ", "there, ", "how ", "are ", "you?"])
    stream = eleven.text_to_speech.convert_realtime("alloy", text=words, model_id="eleven_v3")
    rate, seconds = decode(b"".join(stream))
    assert rate == 44_100
    assert seconds == pytest.approx(SECONDS, abs=0.15)


@pytest.mark.parametrize("rate", [16_000, 24_000])
def test_package_streams_words_as_pcm(eleven: ElevenLabs, rate: int) -> None:
    stream = eleven.text_to_speech.convert_realtime(
        "alloy",
        text=iter(["Hello."]),
        output_format=f"pcm_{rate}",
        voice_settings=VoiceSettings(stability=0.5, similarity_boost=0.5),
    )
    assert len(b"".join(stream)) / 2 / rate == pytest.approx(SECONDS, abs=0.001)


def test_package_raises_for_an_unknown_voice(eleven: ElevenLabs) -> None:
    stream = eleven.text_to_speech.convert_realtime("nobody", text=iter(["Hello."]))
    with pytest.raises(ApiError) as error:
        list(stream)
    assert error.value.status_code == 1008
    assert "nobody" in str(error.value.body)


def test_package_raises_for_a_failure_after_audio(
    eleven: ElevenLabs, backend: ScriptedSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "default", Plan(50, fails_at=25))
    stream = eleven.text_to_speech.convert_realtime("alloy", text=iter(["Hello."]))
    with pytest.raises(ApiError) as error:
        list(stream)
    assert error.value.status_code == 1011


def test_long_speech_over_tls_is_complete_for_a_client_that_pauses(
    secure: Running, certificate: tuple[Path, Path]
) -> None:
    """The speech exceeds the kernel's buffers, so asyncio's TLS buffers the rest."""
    context = ssl.create_default_context(cafile=str(certificate[0]))
    body = {"input": "Hello.", "seed": LONG, "max_new_tokens": 3_000, "response_format": "pcm"}
    headers, size = {"authorization": "Bearer secret"}, 0
    with (
        httpx.Client(verify=context, timeout=LIMIT_S) as client,
        client.stream("POST", f"{secure.url}/v1/audio/speech", json=body, headers=headers) as sent,
    ):
        time.sleep(0.3)  # until the buffers are full
        for part in sent.iter_raw():
            size += len(part)
    assert size == 3_000 * 1_920 * 2


def test_connection_with_a_wrong_key_is_refused(
    secure: Running, certificate: tuple[Path, Path]
) -> None:
    context = ssl.create_default_context(cafile=str(certificate[0]))
    with httpx.Client(verify=context) as client:
        eleven = ElevenLabs(api_key="wrong", base_url=secure.url, httpx_client=client)
        with pytest.raises(ApiError) as error:
            eleven.voices.get_all()
    assert error.value.status_code == 401


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
def test_package_converts_text_over_http(eleven: ElevenLabs, is_stream: bool) -> None:
    speech = eleven.text_to_speech
    method = speech.stream if is_stream else speech.convert
    content = b"".join(method("alloy", text="Hello.", model_id="eleven_multilingual_v2"))
    rate, seconds = decode(content)
    assert rate == 44_100
    assert seconds == pytest.approx(SECONDS, abs=0.15)
    with av.open(io.BytesIO(content)) as container:
        assert container.streams.audio[0].codec_context.bit_rate == 128_000


def test_package_lists_voices_and_models(eleven: ElevenLabs, secure: Running) -> None:
    speakers = list(secure.context.models.cards()[0].speakers)
    assert [voice.voice_id for voice in eleven.voices.get_all().voices] == speakers
    page = eleven.voices.search()
    assert [voice.name for voice in page.voices] == speakers
    assert (page.has_more, page.total_count) == (False, len(speakers))
    assert eleven.voices.get(speakers[0]).voice_id == speakers[0]
    assert [model.model_id for model in eleven.models.list()] == ["vivace"]


def test_package_raises_for_an_unknown_voice_over_http(eleven: ElevenLabs) -> None:
    with pytest.raises(ApiError) as error:
        list(eleven.text_to_speech.convert("nobody", text="Hello."))
    assert error.value.status_code == 400
    assert "nobody" in str(error.value.body)


# --- HTTP as Open WebUI sends it --------------------------------------------------------------


def test_open_webui_request_returns_mp3(server: Running) -> None:
    body = {
        "text": "Hello.",
        "model_id": "eleven_multilingual_v2",
        "voice_settings": {"stability": 0.5, "similarity_boost": 0.5},
    }
    headers = {"Accept": "audio/mpeg", **KEY}
    answer = httpx.post(f"{server.url}/v1/text-to-speech/alloy", json=body, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "audio/mpeg"
    assert int(answer.headers["content-length"]) == len(answer.content)


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("", {}),
        ("", {"text": 1}),
        ("", {"text": ""}),
        ("", {"text": "Hello.", "voice_settings": 1}),
        ("", {"text": "Hello.", "voice_settings": {"speed": "fast"}}),
        ("", {"text": "Hello.", "seed": "x"}),
        ("", {"text": "Hello.", "language_code": "tlh"}),
        ("?output_format=ulaw_8000", {"text": "Hello."}),
        ("?output_format=" + "x" * 1_000, {"text": "Hello."}),
    ],
)
def test_invalid_http_request_returns_400(
    server: Running, query: str, body: dict[str, Any]
) -> None:
    url = f"{server.url}/v1/text-to-speech/alloy/stream{query}"
    answer = httpx.post(url, json=body, headers=KEY)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_alignment_is_null_without_word_timings(eleven: ElevenLabs) -> None:
    """The scripted voice has no word timings."""
    whole = eleven.text_to_speech.convert_with_timestamps("alloy", text="Hello.")
    pieces = list(eleven.text_to_speech.stream_with_timestamps("alloy", text="Hello."))
    assert whole.alignment is None
    assert [piece.alignment for piece in pieces] == [None] * len(pieces)
    audio = b"".join(base64.b64decode(piece.audio_base_64) for piece in pieces)
    for content in (audio, base64.b64decode(whole.audio_base_64)):
        rate, seconds = decode(content)
        assert rate == 44_100
        assert seconds == pytest.approx(SECONDS, abs=0.1)


@pytest.mark.ci
def test_package_reads_the_times_of_characters(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = certificate
    settings = ServeSettings(port=0, voices=tmp_path, tls_cert=cert, tls_key=key)
    context = ssl.create_default_context(cafile=str(cert))
    text = "Good evening."
    with running(settings) as server, httpx.Client(verify=context, timeout=60.0) as client:
        speech = ElevenLabs(api_key="none", base_url=server.url, httpx_client=client).text_to_speech
        options: dict[str, Any] = {"text": text, "seed": 7, "output_format": "pcm_24000"}
        whole = speech.convert_with_timestamps("alloy", **options)
        pieces = list(speech.stream_with_timestamps("alloy", **options))
    audio = b"".join(base64.b64decode(piece.audio_base_64) for piece in pieces)
    assert audio == base64.b64decode(whole.audio_base_64)
    aligned = [piece.alignment for piece in pieces if piece.alignment]
    assert whole.alignment is not None
    assert whole.alignment.characters == [c for one in aligned for c in one.characters]
    assert "".join(whole.alignment.characters) == text
    starts = [time for one in aligned for time in one.character_start_times_seconds]
    assert starts == pytest.approx(whole.alignment.character_start_times_seconds, abs=0.012)
    assert 0 < starts[5] < whole.alignment.character_end_times_seconds[-1] <= len(audio) / 48_000


# --- Message by message -----------------------------------------------------------------------


def open_talk(server: Running, path: str, query: str = "output_format=pcm_24000") -> Any:
    url = f"/v1/text-to-speech/alloy/{path}?{query}"
    return connected(server, url, additional_headers=KEY)


def spoken(messages: list[Message], context_id: str | None = None) -> bytes:
    found = [m for m in messages if isinstance(m, dict) and m.get("contextId") == context_id]
    return b"".join(base64.b64decode(m["audio"]) for m in found if m.get("audio"))


def finals(messages: list[Message]) -> list[str | None]:
    return [m.get("contextId") for m in messages if isinstance(m, dict) and m.get("isFinal")]


def until_final(talk: SocketClient) -> list[Message]:
    messages = [talk.read()]
    while not finals(messages):
        messages.append(talk.read())
    return messages


def test_empty_text_ends_with_final_message_and_code_1000(server: Running) -> None:
    with open_talk(server, "stream-input") as talk:
        for text in (" ", "Hello ", "there. ", ""):
            talk.send(text=text)
        messages, code = talk.until_closed()
    assert len(spoken(messages)) == NUM_FRAMES * 3_840
    assert messages[-1].pop("provenance").startswith("ai-generated; tool=Vivace")
    assert messages[-1] == {"audio": None, "isFinal": True}
    assert code == 1000


def test_final_message_lists_letters_that_the_checkpoint_does_not_read(server: Running) -> None:
    with open_talk(server, "stream-input") as talk:
        talk.send(text="The name is Мама, they say. ", flush=True)
        talk.send(text="And Папа. ")
        talk.send(text="")
        messages, code = talk.until_closed()
    assert messages[-1].pop("provenance").startswith("ai-generated; tool=Vivace")
    assert messages[-1] == {"audio": None, "isFinal": True, "skipped": ["Мама", "Папа"]}
    assert code == 1000


def test_final_message_of_a_context_lists_its_own_skipped_letters(server: Running) -> None:
    with open_talk(server, "multi-stream-input") as talk:
        talk.send(text="The name is Мама, they say. ", context_id="a")
        talk.send(text="The name is Mama. ", context_id="b")
        talk.send(close_socket=True)
        messages, _ = talk.until_closed()
    last = {m["contextId"]: m for m in messages if isinstance(m, dict) and m["isFinal"]}
    assert last["a"]["skipped"] == ["Мама"]
    assert "skipped" not in last["b"]


def test_package_speaks_text_with_unsupported_letters(eleven: ElevenLabs) -> None:
    pieces = eleven.text_to_speech.convert_realtime(
        "alloy", text=iter(["The name is Мама. "]), output_format="pcm_24000"
    )
    assert len(b"".join(pieces)) == NUM_FRAMES * 3_840


def test_session_without_text_ends_with_final_message(server: Running) -> None:
    with open_talk(server, "stream-input") as talk:
        talk.send(text=" ")
        talk.send(text="")
        assert talk.until_closed() == ([{"audio": None, "isFinal": True}], 1000)


def test_flush_speaks_the_text_so_far(server: Running) -> None:
    with open_talk(server, "stream-input") as talk:
        talk.send(text="Hello. ", flush=True)
        first = b""
        while (
            len(first) < NUM_FRAMES * 3_840
        ):  # the whole first utterance, before the next text is sent
            first += spoken([talk.read()])
        talk.send(text="Again. ")
        talk.send(text="")
        messages, code = talk.until_closed()
    assert len(spoken(messages)) == NUM_FRAMES * 3_840
    assert code == 1000


def test_text_after_the_end_closes_with_1008(
    server: Running, backend: ScriptedSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "default", Plan(6_000))
    with open_talk(server, "stream-input") as talk:
        for text in ("Hello. ", "", "More."):
            talk.send(text=text)
        messages, code = talk.until_closed()
        assert isinstance(messages[-1], dict)
        assert messages[-1]["error"] == "text_after_end"
        assert code == 1008
    wait_until(lambda: server.context.streams.num_active == 0)


def test_inactivity_timeout_of_the_query_closes_an_idle_session(server: Running) -> None:
    query = "output_format=pcm_24000&inactivity_timeout=1"
    with open_talk(server, "stream-input", query) as talk:
        talk.send(text=" ")
        messages, code = talk.until_closed()
        assert isinstance(messages[-1], dict)
        assert (messages[-1]["error"], code) == ("idle", 1008)


@pytest.mark.parametrize("timeout", ["-1", "0", "3601", "soon"])
def test_invalid_inactivity_timeout_is_refused(server: Running, timeout: str) -> None:
    with open_talk(server, "stream-input", f"inactivity_timeout={timeout}") as talk:
        talk.send(text=" ")
        [message], code = talk.until_closed()
    assert isinstance(message, dict)
    assert message["message"].startswith("inactivity_timeout: ")
    assert repr(timeout) in message["message"]
    assert code == 1008


def test_contexts_are_spoken_concurrently_and_end_separately(server: Running) -> None:
    with open_talk(server, "multi-stream-input") as talk:
        for name in ("a", "b"):
            talk.send(text=" ", context_id=name, voice_settings={"speed": 1.0})
            talk.send(text="Hello. ", context_id=name)
        talk.send(text="", context_id="a")  # a keep-alive
        talk.send(context_id="b", close_context=True)
        messages = until_final(talk)
        assert finals(messages) == ["b"]
        talk.send(text="", context_id="a", flush=True)
        talk.send(context_id="a", close_context=True)
        messages += until_final(talk)
        assert len(spoken(messages, "a")) == len(spoken(messages, "b")) == NUM_FRAMES * 3_840
        talk.send(close_socket=True)
        assert talk.until_closed() == ([], 1000)


def test_close_socket_speaks_all_contexts_first(server: Running) -> None:
    with open_talk(server, "multi-stream-input") as talk:
        for name in ("a", "b"):
            talk.send(text="Hello. ", context_id=name)
        talk.send(close_socket=True)
        messages, code = talk.until_closed()
    assert sorted(map(str, finals(messages))) == ["a", "b"]
    assert len(spoken(messages, "a")) == len(spoken(messages, "b")) == NUM_FRAMES * 3_840
    assert code == 1000


def test_failure_of_one_context_leaves_the_others(server: Running) -> None:
    too_long = "a" * (server.context.settings.max_text_chars + 1)
    with open_talk(server, "multi-stream-input") as talk:
        talk.send(text=too_long, context_id="a", flush=True)
        failed = talk.read()
        assert isinstance(failed, dict)
        assert failed["contextId"] == "a"
        assert failed["error"]
        talk.send(text="More of it. ", context_id="a")  # the failed context ignores it
        talk.send(context_id="a", close_context=True)
        talk.send(text="Hello. ", context_id="b")
        talk.send(close_socket=True)
        messages, code = talk.until_closed()
    assert spoken(messages, "a") == b""
    assert len(spoken(messages, "b")) == NUM_FRAMES * 3_840
    assert code == 1000


def test_text_to_a_closed_context_leaves_the_others(
    server: Running, backend: ScriptedSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "default", Plan(6_000))
    with open_talk(server, "multi-stream-input") as talk:
        talk.send(text="Hello. ", context_id="a")
        talk.send(context_id="a", close_context=True)
        talk.read()
        monkeypatch.undo()
        talk.send(text="Too late. ", context_id="a")
        talk.send(text="Hello. ", context_id="b", flush=True)
        talk.send(context_id="b", close_context=True)
        messages = until_final(talk)
    errors = [m for m in messages if isinstance(m, dict) and m.get("error")]
    assert [(m["contextId"], m["error"]) for m in errors] == [("a", "text_after_end")]
    assert finals(messages) == ["b"]
    assert len(spoken(messages, "b")) == NUM_FRAMES * 3_840
