"""Measures how much latency each voice-agent framework adds to the engine's first audio.

    python benchmarks/integrations.py --runs 30 --json benchmarks/results/integrations-cpu.json

Needs the frameworks (extra `integrations-test`; `.ci/frameworks` installs all of them). Each run
speaks one text with the engine alone and then through the framework. The overhead of the run is the
difference of the two times to first audio. The server runs in a separate process. By default a
scripted backend takes 30 ms per frame without CPU load, like a GPU. `--voice mini` computes real
speech on the CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import queue
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from report import write_report

from vivace import TTS
from vivace.cli.bench.machine import machine
from vivace.serve.settings import ModelSpec, ServeSettings

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.scripted_tts import ScriptedSpeech
from tests.support.serving import running

SENTENCE = "Hello there, this is your agent, and it speaks at once."
WORDS = [f"{word} " for word in SENTENCE.split()]
TEXT = "".join(WORDS).strip()
VOICE, SEED, CHUNK_FRAMES = "heart", 7, 8
LIMIT_S, STEP_S = 60.0, 0.03
FRAMEWORKS = ("pipecat-ai", "livekit-agents", "realtimetts", "speech-to-speech")
GOAL_MS = {"in process": 15.0, "over a socket": 25.0}
First = Callable[[], Awaitable[float]]  # milliseconds to the first audio


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--voice", choices=("paced", "mini"), default="paced")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.voice)
        return
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    results = asyncio.run(measure(arguments.runs, arguments.voice))
    for result in results:
        print(
            f"{result['framework']:24} {result['way']:14} engine {result['engine_ms']:6.1f} ms, "
            f"framework {result['framework_ms']:6.1f} ms, overhead {result['overhead_ms']:5.1f} ms "
            f"(goal {result['goal_ms']:.0f})"
        )
    if arguments.json:
        versions = {name: metadata.version(name) for name in FRAMEWORKS}
        report = {"benchmark": "integrations", "voice": arguments.voice, "versions": versions}
        report |= {"machine": machine(), "results": results}
        write_report(arguments.json, report)


async def measure(num_runs: int, voice: str) -> list[dict[str, Any]]:
    results = []
    tts = load(voice)
    with serving(voice) as url:
        for name, way, engine, opened in (
            ("pipecat", "in process", engine_live, pipecat(tts)),
            ("pipecat", "over a socket", engine_live, pipecat(url)),
            ("livekit-agents", "in process", engine_live, livekit(tts)),
            ("livekit-agents", "over a socket", engine_live, livekit(url)),
            ("realtimetts", "in process", engine_live, realtimetts(tts)),
            ("speech-to-speech", "in process", engine_chunks, speech_to_speech(tts)),
        ):
            async with opened as framework:
                found = await compare(partial(engine, tts), framework, num_runs)
            results.append({"framework": name, "way": way, **found, "goal_ms": GOAL_MS[way]})
    return results


async def compare(engine: First, framework: First, num_runs: int) -> dict[str, Any]:
    pairs = []
    for run in range(num_runs + 2):  # the first two warm up
        if run % 2:
            ours = await engine()
            pairs.append((ours, await framework()))
        else:
            theirs = await framework()
            pairs.append((await engine(), theirs))
    pairs = pairs[2:]
    overheads = sorted(theirs - ours for ours, theirs in pairs)
    return {
        "runs": num_runs,
        "engine_ms": round(statistics.median(ours for ours, _ in pairs), 2),
        "framework_ms": round(statistics.median(theirs for _, theirs in pairs), 2),
        "overhead_ms": round(statistics.median(overheads), 2),
        "overhead_quartiles_ms": [round(q, 2) for q in statistics.quantiles(overheads, n=4)],
    }


# -- the engine alone ------------------------------------------------------------------------


async def words() -> AsyncIterator[str]:
    for word in WORDS:
        yield word


async def engine_live(tts: TTS) -> float:
    began = time.perf_counter()
    async with tts.astream(words(), voice=VOICE, seed=SEED) as stream:
        await stream.__anext__()
        return 1000 * (time.perf_counter() - began)


async def engine_chunks(tts: TTS) -> float:
    """The request of speech-to-speech: a complete text, with eight frames in the first chunk."""
    began = time.perf_counter()
    options: dict[str, Any] = {"text_layout": "whole", "chunk_frames": CHUNK_FRAMES}
    with tts.stream(TEXT, voice=VOICE, seed=SEED, **options) as stream:
        next(stream)
        return 1000 * (time.perf_counter() - began)


# -- the frameworks --------------------------------------------------------------------------


@asynccontextmanager
async def pipecat(source: TTS | str) -> AsyncIterator[First]:
    from loguru import logger

    logger.remove()
    from pipecat.frames.frames import (
        EndFrame,
        Frame,
        InterruptionFrame,
        LLMFullResponseEndFrame,
        LLMFullResponseStartFrame,
        LLMTextFrame,
        TTSAudioRawFrame,
    )
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.worker import PipelineWorker
    from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
    from pipecat.workers.runner import WorkerRunner

    from vivace.integrations.pipecat import VivaceTTSService

    class FirstAudio(FrameProcessor):  # type: ignore[misc]
        first, interrupted = asyncio.Event(), asyncio.Event()

        async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
            await super().process_frame(frame, direction)
            if isinstance(frame, TTSAudioRawFrame):
                self.first.set()
            if isinstance(frame, InterruptionFrame):
                self.interrupted.set()
            await self.push_frame(frame, direction)

    first_audio = FirstAudio()
    settings = VivaceTTSService.Settings(voice=VOICE)
    service = VivaceTTSService(source, settings=settings, options={"seed": SEED})
    worker = PipelineWorker(
        Pipeline([service, first_audio]), cancel_on_idle_timeout=False, enable_rtvi=False
    )
    started = asyncio.Event()

    async def on_started(*_: Any) -> None:
        started.set()

    worker.event_handler("on_pipeline_started")(on_started)

    async def first() -> float:
        first_audio.first.clear()
        first_audio.interrupted.clear()
        began = time.perf_counter()
        for frame in (LLMFullResponseStartFrame(), *map(LLMTextFrame, WORDS)):
            await worker.queue_frame(frame)
        await worker.queue_frame(LLMFullResponseEndFrame())
        await asyncio.wait_for(first_audio.first.wait(), LIMIT_S)
        took = 1000 * (time.perf_counter() - began)
        await worker.queue_frame(InterruptionFrame())
        await asyncio.wait_for(first_audio.interrupted.wait(), LIMIT_S)
        return took

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.ensure_future(runner.run())
    await asyncio.wait_for(started.wait(), LIMIT_S)
    yield first
    await worker.queue_frame(EndFrame())
    await asyncio.wait_for(running, LIMIT_S)


@asynccontextmanager
async def livekit(source: TTS | str) -> AsyncIterator[First]:
    from vivace.integrations.livekit import TTS as Voice

    async with AsyncExitStack() as stack:
        voice = await stack.enter_async_context(Voice(source, voice=VOICE, seed=SEED))

        async def first() -> float:
            async with voice.stream() as stream:
                began = time.perf_counter()
                for word in WORDS:
                    stream.push_text(word)
                stream.end_input()
                await asyncio.wait_for(stream.__anext__(), LIMIT_S)
                return 1000 * (time.perf_counter() - began)

        yield first


@asynccontextmanager
async def realtimetts(tts: TTS) -> AsyncIterator[First]:
    install_loudspeaker()
    from RealtimeTTS import TextToAudioStream

    from vivace.integrations.realtimetts import VivaceEngine

    stream = TextToAudioStream(VivaceEngine(tts, voice=VOICE, seed=SEED), muted=True)

    async def first() -> float:
        has_audio = threading.Event()
        began = time.perf_counter()
        stream.feed(iter(WORDS))
        stream.play_async(on_audio_chunk=lambda _: has_audio.set())
        while not has_audio.is_set():  # polls with a sleep, so that the engine keeps its core
            await asyncio.sleep(0.001)
        took = 1000 * (time.perf_counter() - began)
        stream.stop()
        return took

    yield first


@asynccontextmanager
async def speech_to_speech(tts: TTS) -> AsyncIterator[First]:
    from vivace.compat import FasterQwen3TTS, install

    install()
    from speech_to_speech.pipeline.cancel_scope import CancelScope
    from speech_to_speech.pipeline.messages import TTSInput
    from speech_to_speech.TTS import qwen3_tts_handler as module

    module.console.quiet = True
    scope = CancelScope()
    arguments = {"model_name": "mini", "speaker": VOICE, "cancel_scope": scope}
    arguments["streaming_chunk_size"] = CHUNK_FRAMES
    handler = module.Qwen3TTSHandler(
        threading.Event(),
        queue.Queue(),
        queue.Queue(),
        setup_args=(threading.Event(),),
        setup_kwargs=arguments,
    )
    handler.model = FasterQwen3TTS(tts)  # the same engine as in the direct measurement

    async def first() -> float:
        began = time.perf_counter()
        turn = handler.process(TTSInput(text=TEXT))
        next(turn)
        took = 1000 * (time.perf_counter() - began)
        turn.close()
        return took

    yield first


# -- setup -----------------------------------------------------------------------------------


def load(voice: str) -> TTS:
    return (
        TTS.load("mini")
        if voice == "mini"
        else ScriptedSpeech(step_s=STEP_S).load(ModelSpec("mini", None))
    )


def serve(voice: str) -> None:
    """Print the address and serve until stdin is closed."""
    settings = ServeSettings(port=0)
    with running(settings, lambda _: load(voice)) as server:
        print(server.url, flush=True)
        sys.stdin.read()


class serving:
    """A context manager that runs the server in a separate process on a free port."""

    def __init__(self, voice: str) -> None:
        self._voice = voice

    def __enter__(self) -> str:
        command = [sys.executable, __file__, "--serve", "--voice", self._voice]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_S)


def install_loudspeaker() -> None:
    """Install a PyAudio stub: RealtimeTTS imports PyAudio even when it is muted."""

    class PyAudio:
        def get_sample_size(self, format: int) -> int:
            return 2

    module, core = ModuleType("pyaudio"), ModuleType("pyaudio._portaudio")
    for number, name in enumerate(("paCustomFormat", "paFloat32", "paInt32", "paInt24", "paInt8")):
        setattr(module, name, 100 + number)
    module.paInt16, module.paUInt8, module.PyAudio = 8, 32, PyAudio  # type: ignore[attr-defined]
    core.paFramesPerBufferUnspecified = 0  # type: ignore[attr-defined]
    module._portaudio = core  # type: ignore[attr-defined]
    sys.modules.update({"pyaudio": module, "pyaudio._portaudio": core})


if __name__ == "__main__":
    main()
