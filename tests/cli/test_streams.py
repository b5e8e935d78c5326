"""Tests of closed and full streams, JSON output, hostile names and early checks."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import fork_server
from tests.support.cli_harness import (
    LIMIT_S,
    RUN,
    Captured,
    command_line,
    environment,
    num_frames,
    run,
    run_here,
    run_python,
    start,
)
from vivace import TTS, Voice
from vivace.audio.files import read_audio
from vivace.cli.main import main
from vivace.voices.library import VoiceLibrary

SHORT = ("--seed=1", "--max-frames=3", "--min-frames=3")
ESCAPE = "\x1b]0;owned\x07\x9b2J"


def shell(redirections: str, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    """Run a command with shell redirections.

    A closed stream shows when Python starts, and a full device only when it is written to: a
    process that has imported torch already will do.
    """
    if redirections in FULL_DEVICE:
        with open("/dev/full", "wb") as full:
            streams: dict[str, Any] = {
                "stdout": subprocess.PIPE,
                FULL_DEVICE[redirections]: full.fileno(),
            }
            process = start(arguments, **streams)
            output, error = process.communicate(timeout=LIMIT_S)
        assert process.returncode is not None
        return subprocess.CompletedProcess([], process.returncode, output, error)
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirections}', "sh", *command_line(arguments)],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
        env=environment() | {"VIVACE_MODEL": os.environ.get("VIVACE_MODEL", "")},
    )


CLOSE = """
import os, sys
for number, name in enumerate(("stdin", "stdout", "stderr")):
    if name in sys.argv[1].split():
        os.close(number)
        setattr(sys, name, None)  # as Python does for a stream that is closed at its start
        setattr(sys, f"__{name}__", None)
del sys.argv[1]
"""


def run_without(
    streams: str, *arguments: str | Path, code: str = CLOSE + RUN
) -> subprocess.CompletedProcess[bytes]:
    """Run a command that imports torch, with closed streams, in a process that has imported it."""
    process = fork_server.server().start(
        code,
        [streams, *map(str, arguments)],
        env=environment(),
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, error = process.communicate(timeout=LIMIT_S)
    assert process.returncode is not None
    return subprocess.CompletedProcess([], process.returncode, output, error)


def test_forked_process_has_the_closed_streams_of_a_new_process() -> None:
    """`run_without` gives a command the streams that Python itself would open."""
    code = (
        "import os, sys\n"
        "found = [sys.stdin, sys.stdout, sys.__stdout__, os.path.exists('/proc/self/fd/1')]\n"
        "print(found[1:], found[0] is None, file=sys.stderr)"
    )
    command = ["/bin/sh", "-c", 'exec "$@" 0<&- 1>&-', "sh", sys.executable, "-c", code]
    expected = subprocess.run(command, capture_output=True, check=True).stderr
    assert run_without("stdin stdout", code=CLOSE + code).stderr == expected


FULL_DEVICE = {">/dev/full": "stdout", "2>/dev/full": "stderr"}
CLOSED = ["0<&-", "1>&-", "2>&-"]


def in_ci(*values: object) -> Any:
    """Mark a further case: every process takes seconds."""
    return pytest.param(*values, marks=pytest.mark.ci)


def by_hand(*values: object) -> Any:
    """Mark a case that differs little from others."""
    return pytest.param(*values, marks=pytest.mark.slow)


def test_closed_streams_do_not_prevent_file(model: Path, tmp_path: Path) -> None:
    assert run_without("stdin stdout stderr", "Hello.", "-o", "x.wav", *SHORT).returncode == 0
    assert num_frames(tmp_path / "x.wav") == 3
    assert [path.name for path in tmp_path.glob("*.wav")] == ["x.wav"]


@pytest.mark.slow  # a new process for each case; the test above forks one
@pytest.mark.parametrize("closed", [*CLOSED, " ".join(CLOSED)])
def test_streams_that_a_shell_closes_do_not_prevent_file(
    model: Path, tmp_path: Path, closed: str
) -> None:
    done = shell(closed, "Hello.", "-o", "x.wav", *SHORT)
    assert done.returncode == 0
    assert num_frames(tmp_path / "x.wav") == 3
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr
    assert done.stderr.startswith(b"x.wav: first audio") != ("2>&-" in closed)
    assert [path.name for path in tmp_path.glob("*.wav")] == ["x.wav"]


def test_failure_with_closed_stderr_has_exit_code(model: Path, tmp_path: Path) -> None:
    assert run_without("stderr", "Hello.", "-o", "x.wav", "--voice=nobody").returncode == 1
    assert shell("2>&-", "Hello.", "--sing").returncode == 2
    assert not (tmp_path / "x.wav").exists()


@pytest.mark.parametrize("arguments", [["-"], by_hand(["-", "--stream"])])
def test_closed_stdin_prints_one_line_error(model: Path, arguments: list[str]) -> None:
    done = shell("0<&-", *arguments, "-o", "x.wav")
    assert done.returncode == 1
    assert done.stderr == b"vivace: stdin is closed; pass the text as an argument\n"


FULL, SHUT = (">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")
TO_STDOUT, FACTS = ["Hello.", "-o", "-", *SHORT], ["Hello.", "-o", "x.wav", "--json", *SHORT]


@pytest.mark.parametrize(
    ("arguments", "redirection", "reason"),
    [
        (TO_STDOUT, *FULL),
        (TO_STDOUT, *SHUT),
        in_ci(FACTS, *FULL),
        in_ci(FACTS, *SHUT),
        (["speakers"], *FULL),
        by_hand(["speakers"], *SHUT),
        in_ci(["speakers", "--json"], *FULL),
        by_hand(["speakers", "--json"], *SHUT),
        *(
            (arguments, *stdout)
            for arguments in (["--help"], ["--version"], ["say", "--help"])
            for stdout in (FULL, SHUT)
        ),
        (["voice", "list", "--json"], *FULL),
        (["voice", "list", "--json"], *SHUT),
    ],
)
def test_full_stdout_is_one_line_error(
    model: Path, tmp_path: Path, arguments: list[str], redirection: str, reason: str
) -> None:
    is_forked = redirection == SHUT[0] and "Hello." in arguments
    done = run_without("stdout", *arguments) if is_forked else shell(redirection, *arguments)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"vivace: cannot write to stdout: {reason}".encode()
    assert done.stderr.count(b"\n") == 1
    if "x.wav" in arguments:
        assert num_frames(tmp_path / "x.wav") == 3


def test_full_stderr_does_not_prevent_file(model: Path, tmp_path: Path) -> None:
    done = shell("2>/dev/full", "Hello.", "-o", "x.wav", *SHORT)
    assert done.returncode == 0
    assert num_frames(tmp_path / "x.wav") == 3


@pytest.mark.parametrize("name", ["/dev/stdout", in_ci("/dev/fd/1"), in_ci("-")])
def test_stdout_path_is_stdout(model: Path, tmp_path: Path, name: str) -> None:
    with open("x.wav", "wb") as file:
        process = start(["Hello.", "-o", name, "--format=wav", *SHORT], stdout=file.fileno())
        _, error = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, error
    assert read_audio(tmp_path / "x.wav").duration_s == pytest.approx(0.24)


def test_named_pipe_receives_audio_while_generated(model: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE) as reader:
        assert run(["Hello.", "-o", "pipe", "--format=pcm", *SHORT]).returncode == 0
        assert reader.stdout is not None
        assert len(reader.stdout.read()) == 3 * 1920 * 2
    assert run_here("Hello.", "-o", "/dev/null", *SHORT) == 0


# -- JSON --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "message"),
    [
        (["", "--json"], 1, "TextError", "text is empty"),
        (["Hello.", "--json", "--voice=nobody"], 1, "UnknownVoiceError", "no voice named"),
        (["Hello.", "--json", "-o", "x.xyz"], 1, "AudioError", "'x.xyz': unknown file extension"),
        (["Hello.", "--json", "--seed=one"], 2, "UsageError", "invalid int value"),
        (["Hello.", "--json", "--top-p=7"], 1, "RequestError", "--top-p must be from 1e-05 to 1"),
        (["speakers", "--json", "--model=nowhere"], 1, "CheckpointError", "no folder 'nowhere'"),
    ],
)
def test_error_with_json_is_json(
    model: Path, capsys: Captured, arguments: list[str], code: int, kind: str, message: str
) -> None:
    try:
        found: object = main(arguments)
    except SystemExit as end:
        found = end.code
    output = capsys.readouterr()
    facts = json.loads(output.out)
    assert found == code
    assert facts["type"] == kind
    assert message in facts["error"]
    assert output.err == ""


def test_json_error_goes_to_stderr_if_audio_is_on_stdout(model: Path) -> None:
    done = run(["Hello.", "--json", "-o", "-", "--voice=nobody"])
    assert (done.returncode, done.stdout) == (1, b"")
    assert json.loads(done.stderr)["type"] == "UnknownVoiceError"


def test_doctor_json_is_object(capsys: Captured) -> None:
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["backend eager"].startswith("available")
    assert {"vivace", "python", "torch", "auto picks", "voices"} <= facts.keys()


# -- hostile names -----------------------------------------------------------------------------


def test_escape_codes_in_names_are_replaced(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    home = tmp_path / f"home{ESCAPE}"
    monkeypatch.setenv("VIVACE_HOME", str(home))
    (tmp_path / "words.txt").write_text("x")
    out = tmp_path / f"out{ESCAPE}\n.wav"
    for arguments in (
        ["voice", "list"],
        ["doctor"],
        ["Hello.", "-o", out, *SHORT],
        ["Hello.", "-o", out],
        ["Hello.", "-o", tmp_path / f"{ESCAPE}.xyz"],
        ["Hello.", f"--voice=/{ESCAPE}.wav", "-o", "y.wav"],
        ["Hello.", f"--model={ESCAPE}", "-o", "y.wav"],
        ["clone", f"--ref-audio={ESCAPE}", "Hello."],
        ["speakers", f"--model={ESCAPE}"],
    ):
        run_here(*arguments)
    VoiceLibrary().add(Voice(name="ada", speaker=np.ones(32, np.float32), licence=ESCAPE))
    run_here("voice", "list")
    run_here("voice", "show", "ada")
    for arguments in (["Hello.", "you", ESCAPE], [f"--{ESCAPE}"]):
        with pytest.raises(SystemExit):
            run_here(*arguments)
    output = capsys.readouterr()
    shown = output.out + output.err
    assert shown.count("owned") >= 9
    assert not set(shown) & set("\x1b\x07\x9b\r")


def test_loading_line_replaces_escape_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert run_here("Hello.", f"--model=x{ESCAPE}", "-o", "x.wav") == 1
    assert "loading x?]0;owned" in terminal.getvalue()
    assert not set(terminal.getvalue()) & set("\x1b\x07\x9b")


# -- checks before the model loads -------------------------------------------------------------


INVALID: list[list[str]] = [
    [" "],
    ["Hello. [pause 99s]"],
    ["Hello.", "--seed=-1"],
    ["Hello.", "--top-p=2"],
    ["Hello.", "--temperature=nan"],
    ["Hello.", "--speed=9"],
    ["Hello.", "--chunk-frames=0"],
    ["Hello.", "--min-frames=100", "--max-frames=10"],
    ["Hello.", "-o", "none/x.wav"],
    ["clone", "--ref-audio=none.wav", "Hello."],
    ["clone", "--ref-audio=.", "Hello."],
    ["voice", "add", "ada", "none.wav"],
    ["design", "A voice.", " "],
    ["repl", "--chunk-frames=0"],
    ["--batch=none.txt", "-o", "out"],
]


def test_invalid_arguments_fail_before_torch_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All commands in one process, which has imported torch as soon as one of them imports it."""
    monkeypatch.chdir(tmp_path)
    code = (
        "import json, sys; sys.modules['sounddevice'] = None; from vivace.cli.main import main\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    print(main(arguments), 'torch' in sys.modules)"
    )
    done = run_python(code, json.dumps(INVALID))
    assert done.stdout.splitlines() == ["1 False"] * len(INVALID), done.stderr
    errors = done.stderr.splitlines()
    assert len(errors) == len(INVALID)
    assert all(error.startswith("vivace: ") for error in errors)
    assert list(tmp_path.iterdir()) == []


def test_base_model_without_voice_suggests_option(
    tiny_folder: Path, tmp_path: Path, capsys: Captured
) -> None:
    assert run_here("Hello.", "--model", tiny_folder / "base", "-o", tmp_path / "x.wav") == 1
    error = capsys.readouterr().err
    assert "--voice me.wav" in error
    assert "tts." not in error


@pytest.mark.parametrize("name", ["folder", "pipe"])
def test_reference_that_is_no_file_reports_its_kind(
    tiny_folder: Path, tmp_path: Path, capsys: Captured, name: str
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    base = ("--model", tiny_folder / "base", "Hello.")
    for arguments in (
        ("clone", *base, "--ref-audio", tmp_path / name),
        ("say", *base, "--voice", tmp_path / name, "-o", tmp_path / "x.wav"),
    ):
        assert run_here(*arguments) == 1
        assert f"it is a {name}, not a file" in capsys.readouterr().err


# -- suggestions -------------------------------------------------------------------------------


def test_file_name_as_text_is_usage_error(
    model: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TTS, "load", lambda *_, **__: pytest.fail("loaded"))
    (tmp_path / "book.txt").write_text("Call me Ishmael.")
    for name, words in (("book.txt", "is a file"), ("bok.txt", "looks like a file")):
        with pytest.raises(SystemExit) as end:
            run_here(name)
        assert end.value.code == 2
        error = capsys.readouterr().err
        assert f"{name} {words}; to speak its text, use `vivace - < {name}`" in error
        assert f"To speak its name, use `vivace say {name}`" in error


@pytest.mark.parametrize("command", [[], ["say"]])
def test_unquoted_words_get_suggestion(model: Path, capsys: Captured, command: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run_here(*command, "Hello", "big", "world", "--seed=1")
    assert end.value.code == 2
    assert 'several words: "Hello big world"' in capsys.readouterr().err


def test_threads_option_sets_number_of_threads(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    load = TTS.load

    def recorded(*arguments: Any, **options: Any) -> TTS:
        asked.append(options.get("threads"))
        return load(*arguments, **options)

    monkeypatch.setattr(TTS, "load", recorded)
    assert run_here("Hello.", "--threads=2", "-o", "x.wav", *SHORT) == 0
    assert run_here("Hello.", "-o", "y.wav", *SHORT) == 0
    assert asked == [2, None]
    assert run_here("Hello.", "--threads=0", "-o", "z.wav") == 1
