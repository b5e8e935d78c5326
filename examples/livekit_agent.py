"""A voice agent with LiveKit: microphone, speech to text, language model, Vivace, loudspeaker.

    pip install '.[livekit]' 'livekit-agents[openai]'
    OPENAI_API_KEY=… python examples/livekit_agent.py console   # this machine's sound devices
    OPENAI_API_KEY=… python examples/livekit_agent.py dev       # rooms of LIVEKIT_URL

OPENAI_BASE_URL selects another server with the OpenAI API, such as a local one, for transcription
and language model. VIVACE_MODEL selects the voice's model; the embedded voice is the default.
Speak, and interrupt the agent by speaking. Ctrl-C ends the program.
"""

from __future__ import annotations

import os

from livekit.agents import Agent, AgentServer, AgentSession, JobContext, JobProcess, cli
from livekit.plugins import openai

import vivace
from vivace.integrations.livekit import TTS

INSTRUCTIONS = "You are a voice assistant. Answer in one or two short sentences, without markup."


def load_voice(process: JobProcess) -> None:
    """Load the model once per process; all its sessions share the model."""
    process.userdata["voice"] = TTS(vivace.TTS.load(os.environ.get("VIVACE_MODEL")))


server = AgentServer(setup_fnc=load_voice)


@server.rtc_session()
async def talk(context: JobContext) -> None:
    session: AgentSession = AgentSession(
        stt=openai.STT(model="gpt-4o-mini-transcribe"),
        llm=openai.LLM(model="gpt-4.1-mini"),
        tts=context.proc.userdata["voice"],
    )
    await session.start(Agent(instructions=INSTRUCTIONS), room=context.room)


if __name__ == "__main__":
    cli.run_app(server)
