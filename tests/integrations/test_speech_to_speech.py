"""The Qwen3-TTS handler of speech-to-speech over `vivace.compat.install()`.

Needs the package: `pip install -e ".[test,integrations-test]"` and
`pip install --no-deps speech-to-speech==1.1.0` (its dependencies pin another `openai`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from queue import Queue
from threading import Event, Thread, Timer
from typing import Any

import numpy as np
import pytest

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.websocket_client import wait_until
from vivace import TTS
from vivace.compat import install, uninstall

pytest.importorskip("speech_to_speech")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the framework
TEXT = "Hello there, how are you today?"
BLOCK = 512  # samples at 16 kHz
NUM_INTERRUPTIONS = 200


@pytest.fixture(autouse=True)
def shim() -> Iterator[None]:
    install()
    yield
    uninstall()


def open_handler(cancel_scope: Any = None, **options: Any) -> Any:
    from speech_to_speech.TTS.qwen3_tts_handler import Qwen3TTSHandler

    arguments = {"model_name": "mini", "speaker": "heart", "cancel_scope": cancel_scope, **options}
    return Qwen3TTSHandler(Event(), Queue(), Queue(), setup_args=(Event(),), setup_kwargs=arguments)


@pytest.fixture
def scope() -> Any:
    from speech_to_speech.pipeline.cancel_scope import CancelScope

    return CancelScope()


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedSpeech:
    backend = ScriptedSpeech()
    monkeypatch.setattr("vivace.engine.checkpoints.loading.build_backend", lambda *_: backend)
    return backend


def spoken(text: str = TEXT, **fields: Any) -> Any:
    from speech_to_speech.pipeline.messages import TTSInput

    return TTSInput(text=text, **fields)


def engine_is_idle(handler: Any) -> bool:
    tts: TTS = handler.model.tts
    load = tts.engine.capacity()
    return load.num_running == load.num_waiting == 0


def test_default_settings_set_up_warm_up_and_speak(scope: Any, caplog: Any) -> None:
    with caplog.at_level("INFO"):
        handler = open_handler(scope)  # the default: backend ggml on cuda
    assert "warmed up" in caplog.text
    assert "failed" not in caplog.text
    assert handler.model.model.model.tts_model_type == handler._model_type() == "custom_voice"
    assert handler._supported_speakers() == ["heart", "michael"]
    blocks = list(handler.process(spoken()))
    assert {(block.dtype, block.shape) for block in blocks} == {(np.dtype(np.int16), (BLOCK,))}
    assert np.abs(np.concatenate(blocks)).max() > 1_000
    assert 0.7 < len(blocks) * BLOCK / 16_000 < 6
    handler.cleanup()


def test_interrupted_turn_is_followed_by_the_next(scope: Any, scripted: ScriptedSpeech) -> None:
    handler = open_handler(scope)
    scripted.default = Plan(1_000)
    turn = handler.process(spoken())
    first = [next(turn) for _ in range(30)]
    scope.cancel()
    rest = list(turn)
    assert len(rest) * BLOCK <= 0.64 * 16_000  # at most the current chunk
    wait_until(lambda: engine_is_idle(handler) and not scripted.active_slots)
    scripted.default = Plan(25)
    scope.new_response()
    seconds = sum(map(len, handler.process(spoken()))) / 16_000
    assert seconds == pytest.approx(2.0, abs=0.1)
    assert len(first) == 30


def test_settings_of_the_handler_speak(scope: Any, scripted: ScriptedSpeech) -> None:
    """Chunk size, language and voice per turn; whole and streamed layouts."""
    handler = open_handler(
        scope, streaming_chunk_size=4, language="en", non_streaming_mode=False, blocksize=1_024
    )
    blocks = list(handler.process(spoken(tts_language_code="en", selected_language="auto")))
    assert {len(block) for block in blocks} == {1_024}
    handler.on_session_end()
    assert list(handler.process(spoken()))


def test_recording_is_cloned_by_a_base_checkpoint(
    scope: Any, tiny_folder: Any, tmp_path: Any
) -> None:
    from vivace.audio.writer import write_audio

    samples = 0.1 * np.sin(np.arange(48_000) / 20) * np.hanning(48_000)
    path = write_audio(tmp_path / "ref.wav", samples.astype(np.float32), 24_000)
    handler = open_handler(
        scope, model_name=str(tiny_folder / "base"), speaker=None, ref_audio=str(path),
        xvec_only=True, max_new_tokens=12,
    )  # fmt: skip
    assert handler._model_type() == "base"
    chunks = handler.model.generate_voice_clone_streaming(
        text=TEXT, language="auto", ref_audio=handler.ref_audio, ref_text=handler.ref_text,
        xvec_only=True, chunk_size=8, max_new_tokens=12, parity_mode=False,
        non_streaming_mode=True, ref_spk=None, ref_rvq=None,
    )  # fmt: skip
    assert 1 <= sum(timing["chunk_steps"] for _, _, timing in chunks) <= 12


def test_pipeline_thread_speaks_turns_in_order(scope: Any, scripted: ScriptedSpeech) -> None:
    from speech_to_speech.pipeline.messages import AUDIO_RESPONSE_DONE, PIPELINE_END, EndOfResponse

    scripted.default = Plan(10)
    handler = open_handler(scope)
    thread = Thread(target=handler.run)
    thread.start()
    for _ in range(2):
        handler.queue_in.put(spoken())
        handler.queue_in.put(EndOfResponse())
    handler.queue_in.put(PIPELINE_END)
    thread.join(60)
    assert not thread.is_alive()
    turns: list[int] = [0]
    for item in list(handler.queue_out.queue):
        if isinstance(item, np.ndarray):
            turns[-1] += len(item)
        elif item == AUDIO_RESPONSE_DONE:
            turns.append(0)
    assert [round(samples / 16_000, 1) for samples in turns] == [0.8, 0.8, 0.0]


def test_interruptions_at_random_times_free_all_slots(
    scope: Any, scripted: ScriptedSpeech, record_property: Callable[[str, object], None]
) -> None:
    record_property("interruptions", NUM_INTERRUPTIONS)
    handler = open_handler(scope)
    scripted.default, scripted.step_s = Plan(10_000), 0.0005
    chance = random.Random(15)
    for turn in range(NUM_INTERRUPTIONS):
        spoken_turn = handler.process(spoken())
        if turn % 3 == 0:  # from another thread, like the router
            canceller = Timer(chance.random() / 100, scope.cancel)
            canceller.start()
            list(spoken_turn)
            canceller.join()
        elif turn % 3 == 1:
            for _ in range(chance.randrange(1, 40)):
                next(spoken_turn)
            scope.cancel()
            list(spoken_turn)
        else:  # the pipeline ends without reading the rest
            next(spoken_turn)
            spoken_turn.close()
    wait_until(lambda: engine_is_idle(handler) and not scripted.active_slots)
    scripted.default, scripted.step_s = Plan(25), 0.0
    assert sum(map(len, handler.process(spoken()))) / 16_000 == pytest.approx(2.0, abs=0.1)
