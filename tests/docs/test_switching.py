"""docs/switching.md lists every command of other packages, and its Vivace commands run."""

from __future__ import annotations

import io
import re
import shlex
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.support.project import ROOT
from vivace.cli.main import main

PAGE = (ROOT / "docs" / "switching.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.*?) \| `(vivace .*?)`[^|]* \|$", PAGE, re.M)
TINY_OF = {"Base": "base", "CustomVoice": "custom_voice", "VoiceDesign": "voice_design"}
THEIRS = [
    *("faster-qwen3-tts clone", "faster-qwen3-tts custom", "faster-qwen3-tts design"),
    *("faster-qwen3-tts serve", "--list-speakers", "--streaming", "--xvec-only", "--greedy"),
    *("extract_speaker.py", "generate_xvec.py", "generate_with_embedding.py"),
    *("./setup.sh", "./benchmark.sh", "demo/server.py", "demo.py", "tests/bench.py"),
]


@pytest.mark.parametrize("command", THEIRS)
def test_page_lists_every_command_of_other_packages(command: str) -> None:
    assert command in PAGE


def stand_in(argument: str, tiny_folder: Path) -> str:
    """Load a tiny checkpoint of the same type, whose speakers have other names."""
    if argument.startswith("Qwen/"):
        return str(tiny_folder / TINY_OF[argument.rpartition("-")[2]])
    return "ryan" if argument == "aiden" else argument


@pytest.mark.ci
def test_vivace_commands_on_page_run(
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run in the order of the page: a command may use the voice that an earlier one saved."""
    monkeypatch.chdir(tmp_path)
    time = np.arange(36_000) / 24_000
    for name in ("ref_audio.wav", "voice.wav"):
        soundfile.write(name, 0.2 * np.sin(2 * np.pi * 150 * time) * np.sin(3 * time), 24_000)
    assert len(ROWS) >= 12
    for _, ours in ROWS:
        arguments = [stand_in(argument, tiny_folder) for argument in shlex.split(ours)[1:]]
        speaks = "-o" in arguments
        if speaks:
            arguments += ["--max-frames", "4"]
        if arguments[0] == "bench":
            arguments += ["--frames=4", "--repeats=1", "--rounds=1", "--streams=2"]
        lines = io.TextIOWrapper(io.BytesIO(b"One line.\nexit\n"), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", lines)
        assert main(arguments) == 0, capsys.readouterr().err
        if speaks:
            with wave.open(arguments[arguments.index("-o") + 1]) as file:
                assert file.getnframes() > 0
