"""Tests of `vivace say` and `vivace doctor`: files, reports on stderr, one-line errors."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cli_harness import Captured, assert_fails, make_recording, num_frames, run, say
from tests.support.slots import auto_backend_name
from vivace import TTS, Voice, __version__
from vivace.audio.files import read_audio
from vivace.cli.main import main
from vivace.errors import CheckpointError
from vivace.speech import SamplingParams

HEAVY = {"torch", "numpy", "soundfile", "soxr", "tokenizers", "safetensors", "huggingface_hub"}
WEIGH = f"""
import sys
from vivace.cli.main import main
try:
    main()
except SystemExit as end:
    assert end.code == 0
print(len(sys.modules), *sorted({HEAVY} & sys.modules.keys()), file=sys.stderr)
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.wav"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return make_recording(tmp_path / "me.wav")


# -- vivace say --------------------------------------------------------------------------------


def test_say_writes_file_and_reports_on_stderr(
    tiny_folder: Path, out: Path, capsys: Captured
) -> None:
    code = say(
        tiny_folder / "custom_voice", "Hello.", "-o", out, "--seed", "7", "--max-frames", "3"
    )
    output = capsys.readouterr()
    assert code == 0
    assert num_frames(out) == 3
    assert output.out == ""
    assert re.fullmatch(
        rf"{re.escape(str(out))}: first audio in \d+ ms \(\d+\.\d\d s after the start\), "
        r"0\.24 s of audio in \d+\.\d\d s \(\d+\.\d\d times real time\), seed 7, length\n"
        rf"vivace: {re.escape(str(out))}: speech was cut at --max-frames 3; .*\n",
        output.err,
    )


def test_say_warns_of_skipped_characters_or_fails_on_request(
    tiny_folder: Path, out: Path, capsys: Captured
) -> None:
    text = "שלום עולם is it"
    options = ("-o", out, "--max-frames", "3", "--force")
    assert say(tiny_folder / "custom_voice", text, *options) == 0
    warning = "skipped 8 characters that the model does not support: 'שלום', 'עולם'"
    assert f"vivace: {out}: {warning}\n" in capsys.readouterr().err
    assert say(tiny_folder / "custom_voice", text, *options, "--json") == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == ["שלום", "עולם"]
    code = say(tiny_folder / "custom_voice", text, *options, "--on-unsupported", "error")
    assert_fails(code, capsys, "the text has the letter")


def test_say_without_output_writes_speech_wav(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert say(tiny_folder / "custom_voice", "Hello.", "--max-frames", "2") == 0
    assert num_frames(tmp_path / "speech.wav") == 2


def test_say_passes_every_option_to_speak(tiny_folder: Path, out: Path) -> None:
    choices: dict[str, Any] = {
        "voice": "ryan",
        "language": "german",
        "instruct": "Whisper.",
        "text_layout": "streamed",
        "seed": 5,
        "temperature": 0.8,
        "top_k": 20,
        "top_p": 0.9,
        "repetition_penalty": 1.2,
        "predictor_temperature": 0.7,
        "predictor_top_k": 30,
        "predictor_top_p": 0.8,
        "min_frames": 3,
        "max_frames": 6,
    }
    assert {field.name for field in dataclasses.fields(SamplingParams)} <= choices.keys()
    folder = tiny_folder / "custom_voice_projected"
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in choices.items()]
    assert say(folder, "Hello.", "-o", out, "--dtype", "float32", "--backend", "eager", *flags) == 0
    with TTS.load(folder, device="cpu", backend="eager") as tts:
        expected = tts.speak("Hello.", **choices).save(out.with_name("expected.wav"))
        plain = tts.speak("Hello.", seed=5, max_frames=6).save(out.with_name("plain.wav"))
    assert out.read_bytes() == expected.read_bytes()
    assert out.read_bytes() != plain.read_bytes()


def test_say_with_instruct_designs_voice(tiny_folder: Path, out: Path) -> None:
    instruct = ("--instruct", "A deep and calm voice.")
    folder = tiny_folder / "voice_design"
    assert say(folder, "Hello.", "-o", out, *instruct, "--max-frames", "2") == 0
    assert num_frames(out) == 2


def test_say_strips_final_line_ends_of_stdin(
    tiny_folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = ("--seed", "1", "--max-frames", "3")
    assert say(tiny_folder / "custom_voice", "Grüße, 世界.", "-o", out, *rest) == 0
    given = out.read_bytes()
    stdin = io.TextIOWrapper(io.BytesIO("Grüße, 世界.\n".encode()), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", stdin)  # UTF-8 in any locale
    assert say(tiny_folder / "custom_voice", "-", "-o", out, "--force", *rest) == 0
    assert out.read_bytes() == given


@pytest.mark.parametrize(
    ("content", "match"), [(b"caf\xe9 au lait", "not UTF-8"), (b"\n", "text is empty")]
)
def test_say_with_invalid_stdin_fails(
    tiny_folder: Path,
    out: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    match: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert_fails(say(tiny_folder / "custom_voice", "-", "-o", out), capsys, match)
    assert not out.exists()


# -- voices ------------------------------------------------------------------------------------


def test_say_accepts_recording_transcript_or_voice_file(
    tiny_folder: Path, tmp_path: Path, recording: Path
) -> None:
    folder = tiny_folder / "base"
    with TTS.load(folder, device="cpu") as tts:
        voice_file = tts.clone(recording, "Words.").save(tmp_path / "me.safetensors")
    spoken = []
    for number, choice in enumerate(
        [
            ("--voice", recording),
            ("--voice", recording, "--transcript", "Words."),
            ("--voice", voice_file),
        ]
    ):
        path = tmp_path / f"{number}.wav"
        assert say(folder, "Hello.", "-o", path, "--seed=1", "--max-frames=4", *choice) == 0
        spoken.append(path.read_bytes())
    vector, in_context, from_file = spoken
    assert in_context == from_file
    assert vector != in_context


def test_say_accepts_recording_path_with_any_extension(
    tiny_folder: Path, out: Path, recording: Path, capsys: Captured
) -> None:
    other = recording.rename(recording.with_name("me"))
    assert say(tiny_folder / "base", "Hello.", "-o", out, f"--voice={other}", "--max-frames=2") == 0
    capsys.readouterr()
    code = say(tiny_folder / "base", "Hello.", "-o", out, "--force", "--voice=no/such.m4a")
    assert_fails(code, capsys, "no/such.m4a: there is no such file")


@pytest.mark.parametrize(
    ("model", "arguments", "match"),
    [
        ("custom_voice", ["--voice=nobody"], "no voice named 'nobody'; try one of: aiden, "),
        ("custom_voice", ["--voice="], "no voice named ''"),
        ("custom_voice", ["--voice=vivian", "--transcript=x"], "transcript needs a recording"),
        ("custom_voice", ["--ref-text=x"], "--ref-text needs a recording"),
        ("custom_voice", [f"--voice={__file__}"], "cannot clone a voice; use --model Qwen/.*-Base"),
        ("custom_voice", ["--voice=absent.wav"], "absent.wav: there is no such file"),
        ("base", ["--voice=absent.wav"], "absent.wav: there is no such file"),
        ("base", ["--voice=absent.safetensors"], "absent.safetensors: there is no such voice"),
        ("base", ["--voice=https://example.com/me.wav"], "URLs are not fetched"),
        ("base", ["--voice=vivian"], "cannot speak with the preset voice 'vivian'; use"),
        ("base", [], "a Base model needs a voice: .*--voice me.wav"),
    ],
)
def test_say_with_invalid_voice_fails(
    tiny_folder: Path, out: Path, capsys: Captured, model: str, arguments: list[str], match: str
) -> None:
    code = say(tiny_folder / model, "Hello.", "-o", out, *arguments)
    assert_fails(code, capsys, match)
    assert not out.exists()


def test_say_with_voice_of_other_width_fails(
    tiny_folder: Path, out: Path, capsys: Captured, tmp_path: Path
) -> None:
    voice = Voice(name="wide", speaker=np.ones(64, np.float32)).save(tmp_path / "w.safetensors")
    code = say(tiny_folder / "base", "Hello.", "-o", out, "--voice", voice)
    assert_fails(code, capsys, "'wide' has width 64 and this model 32")


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ([""], "text is empty or blank"),
        (["x" * 1_000_001], "1,000,001 characters and the limit is 1,000,000"),
        (["\udcff"], "TEXT, line 1: not UTF-8"),
        (["Hello.", "--language=klingon"], "no language named 'klingon'; try one of: auto, "),
        (["Hello.", "--temperature=-1"], r"temperature must be 0 \(greedy\) or from"),
        (["Hello.", "--temperature=nan"], r"temperature must be 0 \(greedy\) or from"),
        (["Hello.", "--top-p=0"], "--top-p must be from 1e-05 to 1"),
        (["Hello.", "--seed=-1"], "seed must be from 0 to"),
        (["Hello.", "--instruct=Whisper."], "; use --model Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice"),
        (["Hello.", "--dtype=float16"], "float16 is refused: the talker's logits overflow"),
        (["Hello.", "--weights=fp4"], "weights must be one of full, fp8, int8, int4, not 'fp4'"),
        (["Hello.", "--device=gpu"], "no device named 'gpu'"),
        (["Hello.", "--backend=warp"], "no backend named 'warp'"),
        (["Hello.", "--model=nowhere"], "no folder 'nowhere'"),
        (["Hello.", "--model=no/where", "--offline"], "no/where .*offline mode is on"),
    ],
)
def test_invalid_request_is_one_line_and_exit_code_1(
    tiny_folder: Path, out: Path, capsys: Captured, arguments: list[str], match: str
) -> None:
    code = say(tiny_folder / "custom_voice", "-o", out, *arguments)
    assert_fails(code, capsys, match)
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("out.xyz", r"'out\.xyz': unknown file extension; use one of: \.wav"),
        ("out", "'out': unknown file extension; use one of"),
        ("absent/out.wav", r"the folder '.*absent' does not exist"),
        ("file.txt/out.wav", r"the folder '.*file\.txt' does not exist"),
        ("folder.wav", "it is a folder"),
        ("", "it is a folder"),
    ],
)
def test_unwritable_output_fails_before_model_loads(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, name: str, match: str
) -> None:
    monkeypatch.setattr(TTS, "load", lambda *_, **__: pytest.fail("loaded"))
    (tmp_path / "file.txt").touch()
    (tmp_path / "folder.wav").mkdir()
    assert_fails(say(tmp_path, "Hello.", "-o", tmp_path / name), capsys, match)


def test_read_only_folder_fails_before_model_loads(
    out: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TTS, "load", lambda *_, **__: pytest.fail("loaded"))
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert_fails(say(out.parent, "Hello.", "-o", out), capsys, "is read-only")


@pytest.mark.parametrize("name", ["x" * 300 + ".wav", "x" * 300 + "/out.wav"])
def test_output_with_invalid_name_is_one_line(
    tiny_folder: Path, tmp_path: Path, capsys: Captured, name: str
) -> None:
    arguments = ("Hello.", "--max-frames=1", "-o", tmp_path / name)
    assert_fails(say(tiny_folder / "custom_voice", *arguments), capsys, "cannot write")
    assert list(tmp_path.iterdir()) == []


def test_multiline_error_is_printed_as_one_line(
    tmp_path: Path, out: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise CheckpointError("404 Client Error.\n\n  Cannot access\nthe gated repo")

    monkeypatch.setattr(TTS, "load", fail)
    code = say(tmp_path, "Hello.", "-o", out)
    assert_fails(code, capsys, r"404 Client Error\. Cannot access the gated repo")


def test_interrupt_exits_with_130(
    tmp_path: Path, out: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TTS, "load", interrupt)
    assert say(tmp_path, "Hello.", "-o", out) == 130
    assert capsys.readouterr().err == "vivace: interrupted\n"


@pytest.mark.parametrize(
    "arguments",
    [["say", "Hello.", "--seed=one"], ["say", "Hello.", "--sing"], ["say", "Hello.", "you"]],
)
def test_invalid_command_prints_usage(capsys: Captured, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("usage: vivace")


# -- processes ---------------------------------------------------------------------------------


def test_process_speaks_piped_text_to_file(tiny_folder: Path, out: Path) -> None:
    arguments = ["say", "-", "--model", tiny_folder / "custom_voice", "-o", out, "--max-frames=2"]
    done = run(arguments, input="Привет.\n".encode())
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    assert done.stderr.startswith(f"{out}: first audio in ".encode())
    assert b" 0.16 s of audio" in done.stderr
    assert num_frames(out) == 2


def test_failed_process_prints_one_line_without_traceback(tiny_folder: Path, out: Path) -> None:
    done = run(["say", "-", "--model", tiny_folder / "custom_voice", "-o", out], input=b"\xff\n")
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.startswith(b"vivace: stdin, line 1: not UTF-8")
    assert done.stderr.count(b"\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("arguments", [["--help"], ["say", "--help"], ["--version"]])
def test_help_imports_few_modules_and_no_heavy_one(arguments: list[str]) -> None:
    """Counts the modules, because a time limit would depend on the machine."""
    done = subprocess.run(
        [sys.executable, "-c", WEIGH, *arguments], capture_output=True, text=True, check=True
    )
    num_modules, *heavy = done.stderr.split()
    assert heavy == []
    assert int(num_modules) < 220  # Python alone: 35 to 60
    assert done.stdout.startswith(("usage: vivace", f"vivace {__version__}\n"))


def test_import_check_detects_heavy_module() -> None:
    code = WEIGH.replace("import sys", "import sys, numpy")
    command = [sys.executable, "-c", code, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.split()[1:] == ["numpy"]


# -- vivace doctor -----------------------------------------------------------------------------


def test_doctor_lists_versions_devices_and_backends(capsys: Captured) -> None:
    assert main(["doctor"]) == 0
    output = capsys.readouterr()
    facts = {line[:20].strip(): line[21:] for line in output.out.splitlines()}
    assert facts["vivace"] == __version__
    assert facts["backend eager"].startswith("available")
    for package in ("torch", "numpy", "safetensors", "tokenizers", "soundfile", "soxr"):
        assert re.match(r"\d+\.\d+", facts[package]), package
    assert {"python", "cpu", "cuda", "mps", "auto picks"} <= facts.keys()
    assert re.match(r"device \w+, talker in \w+, codec in (float32|half)", facts["auto picks"])
    assert output.out.count("selected by auto") == 1
    assert output.err == ""


def test_doctor_with_model_loads_it(tiny_folder: Path, capsys: Captured) -> None:
    assert main(["doctor", "--model", str(tiny_folder / "custom_voice"), "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert f"backend {auto_backend_name()}> in" in shown
    assert "at a time" in shown


def test_doctor_reports_reason_for_unavailable_backend(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vivace.backends import BACKENDS, BackendEntry

    broken = BackendEntry("warp", "goes too fast", lambda device: "no dilithium", BACKENDS[0].build)
    monkeypatch.setattr("vivace.backends.BACKENDS", (broken, *BACKENDS))
    assert main(["doctor"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"backend warp +unavailable: no dilithium \(goes too fast\)", output)
    assert re.search(rf"backend {auto_backend_name()} +available, selected by auto", output)


def test_doctor_reports_why_integer_weights_have_no_faster_kernels(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vivace.backends import BACKENDS, BackendEntry

    others = tuple(entry for entry in BACKENDS if entry.name != "cpu")
    for refusal, shown in (
        ("no compiler", r"PyTorch \(int8 .+, int4 .+\); no C\+\+ kernels: no compiler"),
        (None, r"C\+\+ kernels of the backend cpu"),
    ):
        refuse = partial(lambda reason, device: reason, refusal)
        entry = BackendEntry("cpu", "", refuse, others[-1].build)
        monkeypatch.setattr("vivace.backends.BACKENDS", (entry, *others))
        assert main(["doctor"]) == 0
        assert re.search(rf"int8 and int4 +{shown}", capsys.readouterr().out)


def test_doctor_lists_missing_packages(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivace.cli.doctor.PACKAGES", ("torch", "no-such-package"))
    assert main(["doctor"]) == 0
    assert re.search(r"no-such-package +not installed", capsys.readouterr().out)


def test_say_keeps_existing_file_without_force(
    tiny_folder: Path, out: Path, capsys: Captured
) -> None:
    out.write_bytes(b"precious")
    code = say(tiny_folder / "custom_voice", "Hello.", "-o", out, "--max-frames=2")
    assert_fails(code, capsys, "exists; .*--force")
    assert out.read_bytes() == b"precious"
    assert say(tiny_folder / "custom_voice", "Hi.", "-o", out, "--max-frames=2", "--force") == 0
    assert out.read_bytes() != b"precious"


def test_say_without_output_uses_next_free_name(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert say(tiny_folder / "custom_voice", "Hello.", "--max-frames=2") == 0
    assert say(tiny_folder / "custom_voice", "Hello.", "--max-frames=2", "--format=flac") == 0
    names = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert names == {"speech.wav", "speech-2.wav", "speech.flac"}


def test_streamed_file_equals_whole_file(tiny_folder: Path, tmp_path: Path) -> None:
    rest = ("--seed=1", "--max-frames=9")
    paths = [tmp_path / "spoken.wav", tmp_path / "streamed.wav"]
    assert say(tiny_folder / "custom_voice", "Hello.", "-o", paths[0], *rest) == 0
    assert say(tiny_folder / "custom_voice", "Hello.", "-o", paths[1], "--stream", *rest) == 0
    spoken, streamed = (read_audio(path).samples for path in paths)
    assert len(spoken) == len(streamed)
    assert abs(spoken - streamed).max() < 1e-3


def test_say_to_stdout_writes_audio_only(tiny_folder: Path) -> None:
    model = tiny_folder / "custom_voice"
    done = run(
        ["say", "Hello.", "--model", model, "-o", "-", "--format=pcm", "--max-frames=3", "--json"]
    )
    assert done.returncode == 0
    assert len(done.stdout) == 3 * 1920 * 2
    facts = json.loads(done.stderr)
    assert facts["frames"] == 3
    assert facts["output"] == "-"


def test_speed_changes_duration(tiny_folder: Path, tmp_path: Path) -> None:
    rest = ("--seed=1", "--max-frames=10")
    plain, fast = tmp_path / "plain.wav", tmp_path / "fast.wav"
    assert say(tiny_folder / "custom_voice", "Hello.", "-o", plain, *rest) == 0
    assert say(tiny_folder / "custom_voice", "Hello.", "-o", fast, "--speed=2", *rest) == 0
    half = read_audio(plain).duration_s / 2
    assert read_audio(fast).duration_s == pytest.approx(half, abs=0.05)


def test_invalid_speed_or_format_fails(tiny_folder: Path, out: Path, capsys: Captured) -> None:
    code = say(tiny_folder / "custom_voice", "Hi.", "-o", out, "--speed=9")
    assert_fails(code, capsys, "speed")
    code = say(tiny_folder / "custom_voice", "Hi.", "-o", "-", "--format=mp9")
    assert_fails(code, capsys, "mp9")
