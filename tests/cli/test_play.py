"""Tests of `--play` with fake player programs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support.cli_harness import (
    LIMIT_S,
    LONG_TEXT,
    WAV_HEADER_BYTES,
    command_line,
    environment,
    make_player,
    played,
    run,
    start,
    wait_until,
)
from vivace.audio.files import read_audio

SHORT = ("--seed=1", "--max-frames=9")


@pytest.mark.parametrize("name", ["paplay", "aplay", "ffplay"])
def test_player_program_receives_samples_of_file(
    tiny_folder: Path, tmp_path: Path, name: str
) -> None:
    players = make_player(tmp_path / "bin", name)
    arguments = ["Hello.", "--model", tiny_folder / "custom_voice", *SHORT]
    done = run([*arguments, "--play", "-o", tmp_path / "x.wav", "--json"], players=players)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["played"] is True
    assert facts["output"] == str(tmp_path / "x.wav")
    content = played(players)[-1]
    pcm = np.frombuffer(content[WAV_HEADER_BYTES if content.startswith(b"RIFF") else 0 :], "<i2")
    written = read_audio(tmp_path / "x.wav").samples
    np.testing.assert_array_equal(pcm, np.rint(written * 32_768))


def test_failing_player_program_is_skipped(tiny_folder: Path, tmp_path: Path) -> None:
    players = make_player(tmp_path / "bin", "paplay", then="sys.exit('Connection refused')")
    make_player(players, "aplay")
    arguments = ["Hello.", "--model", tiny_folder / "custom_voice", *SHORT, "--play"]
    assert run(arguments, players=players).returncode == 0
    assert len(played(players)) == 1


def test_error_lists_reason_of_each_player_program(tmp_path: Path) -> None:
    players = make_player(tmp_path / "bin", "paplay", then="sys.exit('Connection refused')")
    make_player(players, "ffplay", then="print('no device', file=sys.stderr); break")
    done = run(["Hello.", "--play", "--model", tmp_path], players=players)
    assert done.returncode == 1
    assert done.stderr == (
        b"vivace: no sound output works (sounddevice: not installed; paplay: Connection "
        b"refused; ffplay: no device); run: pip install '.[play]'\n"
    )


def test_failed_player_stops_speech_and_finishes_file(tiny_folder: Path, tmp_path: Path) -> None:
    exits = "if any(content): sys.exit('the cable was pulled')"
    players = make_player(tmp_path / "bin", "aplay", then=exits)
    arguments = [LONG_TEXT, "--model", tiny_folder / "custom_voice", "--play"]
    done = run([*arguments, "-o", tmp_path / "x.wav"], players=players)
    assert done.returncode == 1
    report, kept, error = done.stderr.decode().splitlines()
    assert report.endswith(", cancelled")
    assert re.fullmatch(rf"vivace: {tmp_path / 'x.wav'}: only the first [\d.]+ s are kept", kept)
    assert error == "vivace: playback failed: the cable was pulled"
    assert 0 < read_audio(tmp_path / "x.wav").duration_s < 60


def test_ctrl_c_stops_player_program(tiny_folder: Path, tmp_path: Path) -> None:
    """A terminal sends SIGINT to the process group; the player program must not receive it."""
    players = make_player(tmp_path / "bin", "aplay", then="time.sleep(9_999 * any(content))")
    arguments = [LONG_TEXT, "--model", tiny_folder / "custom_voice", "--play"]
    process = start(arguments, players=players)
    wait_until(lambda: bool(played(players)), "sound")
    [player] = [p for p in players.glob("*.raw") if any(p.read_bytes())]
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=LIMIT_S)  # queued audio would play for hours
    assert process.returncode == 130
    report, interrupted = error.decode().splitlines()
    assert report.endswith(", cancelled")
    assert interrupted == "vivace: interrupted"
    assert not (players / "interrupted").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(player.stem.split("-")[1]), 0)


def test_playback_starts_while_text_is_written(tiny_folder: Path, tmp_path: Path) -> None:
    players = make_player(tmp_path / "bin", "aplay")
    arguments = ["-", "--stream", "--play", "--model", tiny_folder / "custom_voice", "--seed=1"]
    process = start(arguments, players=players, stdin=-1)
    assert process.stdin is not None
    process.stdin.write(b"Good morning, dear listeners, it is ")
    process.stdin.flush()
    wait_until(lambda: bool(played(players)), "sound")
    assert process.poll() is None
    process.stdin.write("zwölf.".encode())
    _, error = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, error
    assert error.startswith(b"played: first audio in ")


def test_messages_of_sound_libraries_are_hidden(tmp_path: Path) -> None:
    """ALSA writes to file descriptor 2 when it is imported and opened."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "sounddevice.py").write_text(
        "import os\n"
        "os.write(2, b'ALSA lib confmisc.c:855 cannot find card\\n')\n"
        "class OutputStream:\n"
        "    def __init__(self, **_):\n"
        "        os.write(2, b'Expression failed in pa_linux_alsa.c\\n')\n"
        "        raise Exception('Error querying device -1')\n"
    )
    command = command_line(["Hello.", "--play"])
    find_it = f"sys.path.insert(0, {str(tmp_path / 'lib')!r})"
    command[2] = command[2].replace('sys.modules["sounddevice"] = None', find_it)
    done = subprocess.run(
        command, capture_output=True, timeout=LIMIT_S, check=False, env=environment()
    )
    assert done.returncode == 1
    assert done.stderr == (
        b"vivace: no sound output works (sounddevice: Error querying device -1); "
        b"run: pip install '.[play]'\n"
    )
