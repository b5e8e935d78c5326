"""Runs the agents of examples/ with a recording, scripted transcription and a scripted LLM."""

from __future__ import annotations

import os
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from tests.support.project import ROOT
from tests.support.scripted_openai import ScriptedOpenAI, scripted_openai
from vivace import TTS

LIMIT_S = 200.0
DEVICES = ROOT / "tests" / "examples" / "devices"  # modules of sound libraries, without hardware
QUESTION = "What is the weather like in Vienna today?"
REPLY = "It is sunny, and quite warm."


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "question.wav"
    with TTS.load(device="cpu") as tts:
        tts.speak(QUESTION, seed=7).save(path)
    return path


def run_agent(recording: Path, played: Path, *arguments: str) -> ScriptedOpenAI:
    with scripted_openai(QUESTION, REPLY) as script:
        done = subprocess.run(
            [sys.executable, *arguments],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT, DEVICES))),
                "OPENAI_BASE_URL": script.url,
                "OPENAI_API_KEY": "none",
                "RECORDING": str(recording),
                "PLAYED": str(played),
            },
            capture_output=True,
            text=True,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=False,
        )
    assert played.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    return script


def check_conversation(script: ScriptedOpenAI, played: Path) -> None:
    assert b"RIFF" in script.uploads[0]
    assert len(script.uploads[0]) > 2 * 16_000  # more than a second
    assert QUESTION in [message["content"] for message in script.chats[0]]
    with wave.open(str(played)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        rate = file.getframerate()
    sounding = np.abs(samples.astype(np.int32)) > 300
    spoken_s = (np.flatnonzero(sounding)[-1] - np.flatnonzero(sounding)[0]) / rate
    assert 1.0 < spoken_s < 6.0


def test_pipecat_agent_answers_a_spoken_question(recording: Path, tmp_path: Path) -> None:
    pytest.importorskip("pipecat")
    played = tmp_path / "reply.wav"
    script = run_agent(recording, played, "examples/pipecat_agent.py")
    check_conversation(script, played)


def test_livekit_agent_answers_a_spoken_question(recording: Path, tmp_path: Path) -> None:
    pytest.importorskip("livekit.agents")
    played = tmp_path / "reply.wav"
    script = run_agent(recording, played, "examples/livekit_agent.py", "console")
    check_conversation(script, played)
