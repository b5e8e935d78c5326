"""Tests of `vivace voice` and `vivace speakers`."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cli_harness import LIMIT_S, Captured, assert_fails, make_recording
from tests.support.cli_harness import run_here as run
from vivace import TTS, Voice
from vivace.cli.main import main
from vivace.voices.library import VoiceLibrary

HEAVY = {"torch", "numpy", "soundfile", "soxr", "tokenizers", "safetensors", "huggingface_hub"}
WEIGH = f"""
import sys
from vivace.cli.main import main
try:
    code = main()
except SystemExit as end:
    code = end.code
print(code, *sorted({HEAVY} & sys.modules.keys()), file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIVACE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return make_recording(tmp_path / "me.wav")


def add(tiny_folder: Path, name: str, recording: Path, *rest: str, model: str = "base") -> int:
    return run("voice", "add", name, recording, "--model", tiny_folder / model, *rest)


def keep(name: str, **fields: Any) -> Voice:
    voice = Voice(name=name, speaker=np.ones(32, np.float32), **fields)
    VoiceLibrary().add(voice)
    return voice


def weigh(*arguments: str) -> tuple[str, set[str]]:
    """The output of a new process, which must succeed, and the heavy modules it imported."""
    command = [sys.executable, "-c", WEIGH, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    code, *heavy = done.stderr.splitlines()[-1].split()
    assert code == "0", done.stderr
    return done.stdout, set(heavy)


# -- vivace voice add --------------------------------------------------------------------------


def test_added_voice_speaks_by_name(
    tiny_folder: Path, recording: Path, tmp_path: Path, home: Path, capsys: Captured
) -> None:
    assert add(tiny_folder, "ada", recording) == 0
    output = capsys.readouterr()
    assert output.out == ""
    assert (
        output.err == f"{home / 'voices' / 'ada.safetensors'}: voice 'ada', speaker vector only\n"
    )
    out = tmp_path / "out.wav"
    say = ("say", "Hello.", "--model", tiny_folder / "base", "--max-frames=2", "-o", out)
    assert run(*say, "--voice=ada") == 0
    assert out.exists()


def test_voice_add_stores_every_option(tiny_folder: Path, recording: Path) -> None:
    notes = ("--transcript=Words.", "--language=english", "--licence=CC0-1.0", "--device=cpu")
    assert add(tiny_folder, "ada", recording, *notes) == 0
    assert add(tiny_folder, "bob", recording, *notes, "--no-append-silence") == 0
    with TTS.load(tiny_folder / "base", device="cpu") as tts:
        for name, append_silence in (("ada", True), ("bob", False)):
            voice = VoiceLibrary().get(name)
            report = (voice.ref_text, voice.language, voice.licence)
            assert report == ("Words.", "english", "CC0-1.0")
            expected = tts.clone(recording, "Words.", append_silence=append_silence)
            np.testing.assert_array_equal(voice.ref_codes, expected.ref_codes)
            np.testing.assert_array_equal(voice.speaker, expected.speaker)
    assert VoiceLibrary().get("ada").reference_s > VoiceLibrary().get("bob").reference_s


def test_voice_add_with_existing_name_fails_before_model_loads(
    tiny_folder: Path, recording: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep("ada", licence="old")
    with monkeypatch.context() as patch:
        patch.setattr(TTS, "load", lambda *_, **__: pytest.fail("loaded"))
        code = add(tiny_folder, "ada", recording)
    assert_fails(code, capsys, "a voice named 'ada' exists already; .*--replace")
    assert add(tiny_folder, "ada", recording, "--replace", "--licence=new") == 0
    assert VoiceLibrary().get("ada").licence == "new"


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("Ada", [], "'Ada' cannot name a voice"),
        ("../ada", [], "'../ada' cannot name a voice"),
        ("../ada", ["--replace"], "'../ada' cannot name a voice"),
        ("ada.wav", [], "'ada.wav' would be read as a file name"),
        ("ada", ["--transcript= "], "the transcript is blank"),
        ("ada", ["--model=nowhere"], "no folder 'nowhere'"),
        ("ada", ["--device=gpu"], "no device named 'gpu'"),
        ("ada", [f"--licence={'x' * 201}"], "licence must be a text of at most 200"),
    ],
)
def test_failed_voice_add_is_one_line_and_leaves_no_file(
    tiny_folder: Path,
    recording: Path,
    home: Path,
    capsys: Captured,
    name: str,
    options: list[str],
    match: str,
) -> None:
    assert_fails(add(tiny_folder, name, recording, *options), capsys, match)
    assert not home.exists()


def test_voice_add_with_invalid_name_fails_before_model_loads(
    tiny_folder: Path, recording: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TTS, "load", lambda *_, **__: pytest.fail("loaded"))
    for options in ([], ["--replace"]):
        assert_fails(add(tiny_folder, "../ada", recording, *options), capsys, "cannot name")


def test_voice_add_with_unusable_recording_or_model_is_one_line(
    tiny_folder: Path, recording: Path, capsys: Captured
) -> None:
    code = add(tiny_folder, "ada", Path("absent.wav"))
    assert_fails(code, capsys, "absent.wav: there is no such file")
    code = add(tiny_folder, "ada", recording, model="custom_voice")
    assert_fails(code, capsys, "cannot clone a voice; use --model Qwen/.*-Base")


def test_unwritable_library_is_one_line_error(
    tiny_folder: Path, recording: Path, home: Path, capsys: Captured
) -> None:
    home.write_text("a file where the folder should be")
    code = add(tiny_folder, "ada", recording)
    assert_fails(code, capsys, "the voice library .*home/voices cannot take the voice 'ada'")


# -- vivace voice list, show, remove -----------------------------------------------------------


def test_voice_list_prints_table(capsys: Captured) -> None:
    notes = {"licence": "CC0-1.0", "consent": "Ada agreed"}
    keep("ada", language="english", created="2026-01-31", **notes)
    keep("bob", ref_text="Words.", ref_codes=np.zeros((25, 16), np.int64))
    assert run("voice", "list") == 0
    output = capsys.readouterr()
    assert output.err == ""
    rows = [re.split(r"  +", line) for line in output.out.splitlines()]
    assert rows == [
        ["name", "reference", "width", "language", "created", "licence", "consent"],
        ["ada", "speaker vector only", "32", "english", "2026-01-31", "CC0-1.0", "Ada agreed"],
        ["bob", "2.0 s in context", "32", "-", "-", "-", "-"],
    ]


def test_voice_list_json_is_array(capsys: Captured) -> None:
    keep("ada", language="中文", ref_text="\x1b[31mred", ref_codes=np.zeros((25, 16), np.int64))
    keep("bob")
    assert run("voice", "list", "--json") == 0
    ada, bob = json.loads(capsys.readouterr().out)
    assert (ada["name"], ada["language"], ada["reference_s"]) == ("ada", "中文", 2.0)
    assert ada["transcript"] == "\x1b[31mred"
    assert (bob["name"], bob["width"], bob["reference_s"]) == ("bob", 32, 0)
    assert bob["transcript"] is None


def test_voice_list_of_empty_library_prints_hint(capsys: Captured, home: Path) -> None:
    assert run("voice", "list") == 0
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"{home / 'voices'} has no voices; add one with `vivace voice add")
    assert run("voice", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert not home.exists()


def test_voice_show_prints_all_fields(capsys: Captured, home: Path) -> None:
    keep("ada", ref_text="Words.", ref_codes=np.zeros((25, 16), np.int64), language="english")
    assert run("voice", "show", "ada") == 0
    facts = {line[:14].strip(): line[15:] for line in capsys.readouterr().out.splitlines()}
    assert facts == {
        "name": "ada",
        "family": "qwen3-tts-12hz",
        "width": "32",
        "reference_s": "2.0",
        "transcript": "Words.",
        "language": "english",
        "file": str(home / "voices" / "ada.safetensors"),
    }


def test_voice_show_replaces_control_characters(capsys: Captured) -> None:
    keep("ada", licence="\x1b]0;owned\x07\nname   eve", language="\x9b2J")
    for command in (("list",), ("show", "ada")):
        assert run("voice", *command) == 0
        shown = capsys.readouterr().out
        assert not set(shown) & set("\x1b\x07\x9b")
        assert "?]0;owned??name" in shown


def test_voice_list_works_with_ascii_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    keep("ada", language="中文")
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii"))
    assert run("voice", "show", "ada") == 0
    sys.stdout.flush()
    assert b"\\u4e2d\\u6587" in buffer.getvalue()


def test_voice_remove_deletes_voice(capsys: Captured) -> None:
    keep("ada")
    keep("bob")
    assert run("voice", "remove", "ada") == 0
    assert capsys.readouterr().err == "removed the voice 'ada'\n"
    assert VoiceLibrary().names() == ["bob"]


@pytest.mark.parametrize("action", ["show", "remove"])
@pytest.mark.parametrize("name", ["eve", "../bob", "", "bob.safetensors"])
def test_unknown_voice_name_lists_known_names(capsys: Captured, action: str, name: str) -> None:
    keep("ada")
    keep("bob")
    code = run("voice", action, name)
    assert_fails(code, capsys, f"no voice named '{re.escape(name)}'; try one of: ada, bob")
    assert VoiceLibrary().names() == ["ada", "bob"]


def test_damaged_voice_is_listed_and_can_be_removed(capsys: Captured, home: Path) -> None:
    keep("ada")
    (home / "voices" / "ada.safetensors").write_bytes(b"half")
    assert_fails(run("voice", "show", "ada"), capsys, "ada.safetensors: not a voice")
    assert run("voice", "list") == 0
    assert run("voice", "remove", "ada") == 0


# -- vivace speakers ---------------------------------------------------------------------------


def test_speakers_lists_presets_and_languages(tiny_folder: Path, capsys: Captured) -> None:
    assert run("speakers", "--model", tiny_folder / "custom_voice") == 0
    facts = {line[:14].strip(): line[15:] for line in capsys.readouterr().out.splitlines()}
    assert facts["type"] == "custom_voice"
    assert facts["speakers"].startswith("aiden, dylan, eric")
    assert facts["languages"].startswith("auto, beijing_dialect, chinese, english")


@pytest.mark.parametrize("name", ["custom_voice", "base", "voice_design"])
def test_speakers_json_equals_tts(tiny_folder: Path, capsys: Captured, name: str) -> None:
    assert run("speakers", "--model", tiny_folder / name, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    with TTS.load(tiny_folder / name, device="cpu") as tts:
        expected = {"type": name, "speakers": tts.speakers, "languages": tts.languages}
    assert report == expected


@pytest.mark.parametrize(
    ("name", "hint"), [("base", "clone a recording"), ("voice_design", "describe a voice")]
)
def test_speakers_without_presets_explains_voices(
    tiny_folder: Path, capsys: Captured, name: str, hint: str
) -> None:
    assert run("speakers", "--model", tiny_folder / name) == 0
    assert f"none; {hint}" in capsys.readouterr().out


def test_speakers_of_missing_checkpoint_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    assert_fails(run("speakers", "--model", tmp_path), capsys, "config.json")
    assert_fails(run("speakers", "--model", "nowhere"), capsys, "no folder 'nowhere'")


# -- imports and usage errors ------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["voice"],
        ["voice", "add"],
        ["voice", "list"],
        ["voice", "show"],
        ["voice", "remove"],
        ["speakers"],
    ],
)
def test_help_imports_no_heavy_module(arguments: list[str]) -> None:
    output, heavy = weigh(*arguments, "--help")
    assert output.startswith("usage: vivace")
    assert heavy == set()


def test_voice_list_does_not_import_torch() -> None:
    keep("ada")
    output, heavy = weigh("voice", "list")
    assert "ada" in output
    assert heavy <= {"numpy", "safetensors"}
    assert "numpy" in heavy  # control: the check detects numpy


@pytest.mark.parametrize(
    "arguments", [["voice"], ["voice", "sing"], ["voice", "add", "ada"], ["speakers", "of"]]
)
def test_invalid_command_prints_usage(capsys: Captured, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("usage: vivace")
