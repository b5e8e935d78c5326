"""A voice agent with pipecat: microphone, speech to text, language model, Vivace, loudspeaker.

    pip install '.[pipecat]' 'pipecat-ai[local,openai,silero]'
    OPENAI_API_KEY=… python examples/pipecat_agent.py

OPENAI_BASE_URL selects another server with the OpenAI API, such as a local one, for transcription
and language model. VIVACE_MODEL selects the voice's model; the embedded voice is the default.
Speak, and interrupt the agent by speaking. Ctrl-C ends the program.
"""

from __future__ import annotations

import asyncio
import os

from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.transports.local.audio import LocalAudioTransport, LocalAudioTransportParams
from pipecat.workers.runner import WorkerRunner

from vivace import TTS
from vivace.integrations.pipecat import VivaceTTSService

INSTRUCTIONS = "You are a voice assistant. Answer in one or two short sentences, without markup."


async def main() -> None:
    microphone = LocalAudioTransportParams(audio_in_enabled=True, audio_out_enabled=True)
    transport = LocalAudioTransport(microphone)
    context = LLMContext([{"role": "system", "content": INSTRUCTIONS}])
    detection = LLMUserAggregatorParams(vad_analyzer=SileroVADAnalyzer())
    user, assistant = LLMContextAggregatorPair(context, user_params=detection)
    with TTS.load(os.environ.get("VIVACE_MODEL")) as tts:
        stages = [
            transport.input(),
            OpenAISTTService(),
            user,  # detects the end of a turn and adds it to the context
            OpenAILLMService(),
            VivaceTTSService(tts),
            transport.output(),
            assistant,  # adds the spoken words to the context
        ]
        runner = WorkerRunner()
        await runner.add_workers(PipelineWorker(Pipeline(stages)))
        await runner.run()


if __name__ == "__main__":
    asyncio.run(main())
