"""Tests of `vivace` without a command, of the choice of model and output, and of help."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_harness import (
    LIMIT_S,
    Captured,
    assert_fails,
    make_player,
    num_frames,
    played,
    run,
    run_here,
    start,
)
from vivace import TTS
from vivace.cli.main import BLAS_THREADS, main, parse
from vivace.cli.parser import EXAMPLES, build_parser
from vivace.engine.synthesizer import Synthesizer
from vivace.errors import RequestError
from vivace.options import RAMP, StreamOptions

SHORT = ("--seed=1", "--max-frames=3")
TEN_FRAMES = ("--seed=1", "--max-frames=10", "--min-frames=10")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def pipe_in(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize("given", [None, "3"])
def test_command_is_imported_with_one_blas_thread_unless_environment_names_more(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(BLAS_THREADS, raising=False)
    if given is not None:
        monkeypatch.setenv(BLAS_THREADS, given)
    found = []

    def note_threads(name: str) -> Any:
        found.append((name, os.environ.get(BLAS_THREADS)))
        raise RequestError("stop")

    monkeypatch.setattr("vivace.cli.main.import_module", note_threads)
    assert main(["Hello."]) == 1
    assert found == [("vivace.cli.say", given or "1")]
    assert os.environ.get(BLAS_THREADS) == given


# -- text without a command --------------------------------------------------------------------


def test_text_without_command_writes_and_names_file(
    model: Path, tmp_path: Path, capsys: Captured
) -> None:
    assert run_here("Hello.", *SHORT) == 0
    assert num_frames(tmp_path / "speech.wav") == 3
    assert capsys.readouterr().err.startswith("speech.wav: first audio in ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["Hello.", "-o", "x.wav", "--voice=ryan", *SHORT],
        ["-o", "x.wav", "--voice", "ryan", *SHORT, "Hello."],
        ["-o", "x.wav", "Hello.", "--voice", "ryan", *SHORT],
    ],
)
def test_say_options_work_without_command_in_any_order(
    model: Path, tmp_path: Path, arguments: list[str]
) -> None:
    assert main(["say", "Hello.", "-o", "said.wav", "--voice=ryan", *SHORT]) == 0
    assert main(arguments) == 0
    assert (tmp_path / "x.wav").read_bytes() == (tmp_path / "said.wav").read_bytes()


@pytest.mark.parametrize("arguments", [["-"], ["say"], ["-o", "x.wav"], ["say", "-"]])
def test_piped_text_is_spoken(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    pipe_in(b"Hello there.\n", monkeypatch)
    assert main([*arguments, *SHORT]) == 0
    [spoken] = tmp_path.glob("*.wav")
    assert num_frames(spoken) == 3


def test_piped_text_needs_no_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pipe_in(b"Hello there.\n", monkeypatch)
    assert main([]) == 0
    assert num_frames(tmp_path / "speech.wav") > 0


def test_no_arguments_on_terminal_prints_help(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: vivace TEXT [OPTIONS]")


@pytest.mark.parametrize("arguments", [["say"], ["--seed=1"], ["clone", "--ref-audio=me.wav"]])
def test_no_text_on_terminal_is_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "TEXT is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("voices", "voice"),
        ("spekers", "speakers"),
        ("speak", "say"),
        ("Says", "say"),
        ("doktor", "doctor"),
        ("custom", "say"),
        ("server", "serve"),
        ("help", "--help"),
    ],
)
def test_word_similar_to_command_is_usage_error(
    model: Path, tmp_path: Path, capsys: Captured, word: str, meant: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main([word])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert f"did you mean `vivace {meant}`?" in error
    assert f"`vivace say {word}`" in error
    assert not list(tmp_path.glob("*.wav"))


@pytest.mark.parametrize("text", ["Hello", "voices.", "all voices", "5", "-5 degrees", "声音"])
def test_other_words_are_spoken(text: str) -> None:
    assert parse([text]).text == text
    assert parse([text]).work == "say:say"


def test_say_speaks_word_similar_to_command(model: Path) -> None:
    assert parse(["say", "voices"]).text == "voices"


def test_say_speaks_text_like_an_option() -> None:
    assert parse(["say", "--", "--help"]).text == "--help"


# -- model -------------------------------------------------------------------------------------


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The names passed to TTS.load, which loads nothing."""
    names: list[Any] = []

    def load(name: Any = None, **_: Any) -> None:
        names.append(name)
        raise KeyboardInterrupt

    monkeypatch.setattr(TTS, "load", load)
    return names


@pytest.mark.parametrize(
    "arguments",
    [
        ["Hello."],
        ["clone", "--ref-audio=me.wav", "Hello."],
        ["design", "A calm voice.", "Hello."],
        ["voice", "add", "ada", "me.wav"],
        ["repl"],
    ],
)
def test_model_comes_from_option_environment_or_package(
    loaded: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "me.wav").touch()
    assert main(arguments) == 130
    monkeypatch.setenv("VIVACE_MODEL", "mine")
    assert main(arguments) == 130
    assert main([*arguments, "--model", "other"]) == 130
    assert loaded == [None, "mine", "other"]


def test_empty_model_variable_is_ignored(
    loaded: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIVACE_MODEL", "")
    assert main(["Hello."]) == 130
    assert loaded == [None]


def test_embedded_voice_is_default_model(tmp_path: Path) -> None:
    assert run_here("Hello.", "--device=cpu", "--max-frames=20", "-o", tmp_path / "x.wav") == 0
    assert num_frames(tmp_path / "x.wav") > 0


def test_speakers_without_model_lists_embedded_voice(capsys: Captured) -> None:
    assert main(["speakers", "--json"]) == 0
    with TTS.load(device="cpu") as tts:
        assert json.loads(capsys.readouterr().out)["speakers"] == tts.speakers


# -- speech that does not end ------------------------------------------------------------------


ENDLESS = ("--min-frames=999",)


def test_speech_that_does_not_end_is_retried_once(
    model: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Any] = []
    stream = Synthesizer.stream

    def counted(*arguments: Any) -> Any:
        tries.append(arguments)
        return stream(*arguments)

    monkeypatch.setattr(Synthesizer, "stream", counted)
    monkeypatch.setattr("vivace.engine.utterances.utterance.frame_budget", lambda num_ids: 12)
    code = run_here("Hello.", "-o", "x.wav", *ENDLESS)
    assert_fails(code, capsys, "did not end by itself or was silent, twice; .*a seed")
    assert not (tmp_path / "x.wav").exists()
    assert len(tries) == 2


def test_file_with_seed_equals_speak(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vivace.engine.utterances.guard.StallDetector.observe",
        lambda self, codes, samples: 4 if len(codes) else 0,
    )
    assert run_here("Hello.", "-o", "x.wav", *ENDLESS, "--seed=1", "--device=cpu") == 3
    with TTS.load(model, device="cpu") as tts:
        audio = tts.speak("Hello.", seed=1, min_frames=999)
    assert audio.finish_reason == "stall"
    assert len(audio.samples) == 1920 * (audio.usage.frames - 4)  # without the stall
    assert (tmp_path / "x.wav").read_bytes() == audio.save("y.wav").read_bytes()


# -- output ------------------------------------------------------------------------------------


def test_text_without_command_is_played_with_loudspeaker(tiny_folder: Path, tmp_path: Path) -> None:
    players = make_player(tmp_path / "bin", "aplay")
    arguments = ["Hello.", "--model", tiny_folder / "custom_voice", *SHORT]
    done = run(arguments, players=players, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(b"played: first audio in ")
    assert [len(content) for content in played(players)] == [3 * 1920 * 2]
    assert not list(tmp_path.glob("speech*"))


def test_format_option_writes_file_despite_loudspeaker(tiny_folder: Path, tmp_path: Path) -> None:
    players = make_player(tmp_path / "bin", "aplay")
    arguments = ["Hello.", "--format=flac", "--model", tiny_folder / "custom_voice", *SHORT]
    done = run(arguments, players=players, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "speech.flac").exists()
    assert not played(players)


# -- messages ----------------------------------------------------------------------------------


def test_progress_line_is_rewritten_and_erased(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run_here("Hello.", "-o", "x.wav", "--stream", *TEN_FRAMES) == 0
    *shown, last = terminal.getvalue().split("\r")
    made = [words for words in shown if "s of audio, " in words]
    assert len(made) >= 4
    assert re.match(r"first audio in \d+ ms, 0\.1 s of audio, \d+\.\d\d times real time", made[0])
    assert shown[-1].strip() == ""
    assert last.startswith("x.wav: first audio in ")
    assert last.count("\n") == terminal.getvalue().count("\n") == 2  # report and warning


@pytest.mark.parametrize("option", ["-q", "--json"])
def test_quiet_and_json_print_no_progress_line(
    model: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run_here("Hello.", "-o", "x.wav", option, *SHORT) == 0
    assert "s of audio" not in terminal.getvalue()
    if option == "-q":  # the warning is still printed
        assert terminal.getvalue().startswith("vivace: x.wav: speech was cut at --max-frames 3")
        assert terminal.getvalue().count("\n") == 1


def test_progress_line_needs_terminal(model: Path, capsys: Captured) -> None:
    assert run_here("Hello.", "-o", "x.wav", "--stream", *TEN_FRAMES) == 0
    report, warning = capsys.readouterr().err.splitlines()
    assert report.startswith("x.wav: first audio in ")
    assert warning.startswith("vivace: x.wav: speech was cut at --max-frames 10")


def test_json_audio_s_is_length_after_speed(model: Path, capsys: Captured) -> None:
    assert run_here("Hello.", "-o", "x.wav", "--json", "--speed=2", *TEN_FRAMES) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["output"] == "x.wav"
    assert facts["played"] is False
    assert facts["audio_s"] == pytest.approx(0.4, abs=0.05)


def test_chunk_frames_sets_chunk_size(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    sizes: list[object] = []
    stream = Synthesizer.stream

    def watch(self: Synthesizer, text: Any, options: StreamOptions) -> Any:
        sizes.append(options.chunk_frames)
        return stream(self, text, options)

    monkeypatch.setattr(Synthesizer, "stream", watch)
    assert run_here("Hello.", "--stream", "--chunk-frames=5", "-o", "x.wav", *TEN_FRAMES) == 0
    assert run_here("Hello.", "--stream", "-o", "y.wav", *TEN_FRAMES) == 0
    assert sizes == [5, RAMP]
    capsys.readouterr()
    code = run_here("Hello.", "--stream", "--chunk-frames=0", "-o", "z.wav")
    assert_fails(code, capsys, "--chunk-frames must be 1 or more")


@pytest.mark.parametrize("reader", ["json", "audio"])
def test_closed_pipe_is_no_error(tiny_folder: Path, tmp_path: Path, reader: str) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    output = ["-o", "-"] if reader == "audio" else ["-o", tmp_path / "x.wav", "--json"]
    arguments = ["Hello.", *output, *SHORT, "--model", tiny_folder / "custom_voice"]
    process = start(arguments, stdout=writes)
    os.close(writes)
    _, error = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, error) == (141, b"")


def test_audio_is_not_written_to_terminal(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert_fails(run_here("Hello.", "-o", "-"), capsys, "stdout is a terminal")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--format=mp9"], "unknown audio format 'mp9'; choose one of: wav, "),
        (["-o", "x.wav", "--format=mp3"], "--format mp3 contradicts the file name x.wav"),
        (["-o", "x.wav", "--speed=nan"], "speed must be 0.25 to 4"),
        (["-o", "x.wav", "--play"], r"no sound output works .*pip install '\.\[play\]'"),
        (["--ref-text-file=none.txt", "-o", "x.wav"], "none.txt: cannot be read: No such file"),
    ],
)
def test_invalid_option_is_one_line(
    model: Path, tmp_path: Path, capsys: Captured, arguments: list[str], match: str
) -> None:
    assert_fails(run_here("Hello.", *arguments), capsys, match)
    assert not list(tmp_path.glob("*.wav"))


def test_missing_package_fails_before_model_loads(
    model: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setattr(TTS, "load", lambda *_, **__: pytest.fail("loaded"))
    code = run_here("Hello.", "-o", "x.aac")
    assert_fails(code, capsys, r"needs the package av, .*pip install '\.\[av\]'")


def test_every_command_has_help(capsys: Captured) -> None:
    _, commands = build_parser()
    for command in commands:
        with pytest.raises(SystemExit) as end:
            main([command, "--help"])
        assert end.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: vivace {command}")


def test_examples_of_help_are_valid() -> None:
    lines = [line.split("vivace ", 1)[1] for line in EXAMPLES.splitlines() if "  vivace" in line]
    lines += [line.split("| vivace ")[1] for line in EXAMPLES.splitlines() if "| vivace" in line]
    works = [parse(shlex.split(line.split("   ")[0])).work for line in lines]
    assert works == ["say:say", "say:say", "say:clone", "say:design", "say:say"]


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["Hello.", "--vioce", "ryan"], "--voice"),
        (["Hello.", "--vioce=ryan"], "--voice"),
        (["--vioce", "ryan", "Hello."], "--voice"),
        (["say", "Hello.", "--sead", "3", "--languge", "en"], "--seed, --language"),
        (["serve", "--prot", "3"], "--port"),
        (["plan", "--calls", "3", "--prise", "2"], "--price"),
        (["voice", "list", "--jsn"], "--json"),
        (["--verison"], "--version"),
    ],
)
def test_misspelt_option_gets_suggestion(
    argv: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert f"did you mean {meant}?" in capsys.readouterr().err


def test_unrelated_option_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["Hello.", "--qqqqqq"])
    assert "did you mean" not in capsys.readouterr().err
