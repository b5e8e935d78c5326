"""Tests of `vivace clone` and `vivace design`: speech with the voice, and saved voices."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cli_harness import Captured, assert_fails, make_recording, num_frames, run_here
from vivace import TTS, Voice
from vivace.audio.files import read_audio
from vivace.cli.command import UsageError
from vivace.cli.main import main, parse
from vivace.voices.library import VoiceLibrary

SHORT = ("--seed=1", "--max-frames=4")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return make_recording(tmp_path / "me.wav")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.wav"


def clone(tiny_folder: Path, recording: Path, *arguments: str | Path, model: str = "base") -> int:
    return run_here("clone", "--ref-audio", recording, "--model", tiny_folder / model, *arguments)


def design(tiny_folder: Path, *arguments: str | Path) -> int:
    return run_here("design", "--model", tiny_folder / "voice_design", *arguments)


# -- vivace clone ------------------------------------------------------------------------------


def test_clone_equals_say_with_recording(
    tiny_folder: Path, recording: Path, out: Path, tmp_path: Path
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("Words.\n")
    spoken = []
    for choice in ([], ["--ref-text=Words."], ["--ref-text-file", words]):
        assert clone(tiny_folder, recording, "Hello.", "-o", out, "--force", *SHORT, *choice) == 0
        spoken.append(read_audio(out).samples)
    with TTS.load(tiny_folder / "base", device="cpu") as tts:
        options: dict[str, Any] = {"seed": 1, "max_frames": 4}
        vector = tts.speak("Hello.", voice=tts.clone(recording), **options)
        in_context = tts.speak("Hello.", voice=tts.clone(recording, "Words."), **options)
    for samples, expected in zip(spoken, (vector, in_context, in_context), strict=True):
        np.testing.assert_allclose(samples, expected.samples, atol=1e-4)
    assert not np.allclose(vector.samples[:7000], in_context.samples[:7000], atol=1e-2)


def test_clone_saved_by_name_speaks(
    tiny_folder: Path, recording: Path, out: Path, capsys: Captured
) -> None:
    notes = ("--ref-text=Words.", "--licence=CC0-1.0", "--save=ada")
    assert clone(tiny_folder, recording, "Hello.", "-o", out, *SHORT, *notes) == 0
    kept, report, _ = capsys.readouterr().err.splitlines()
    assert kept.endswith("ada.safetensors: voice 'ada', 2.0 s in context")
    assert report.startswith(f"{out}: first audio")
    voice = VoiceLibrary().get("ada")
    assert (voice.ref_text, voice.licence) == ("Words.", "CC0-1.0")


def test_clone_saves_file_without_text(
    tiny_folder: Path, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", None)  # not read
    assert clone(tiny_folder, recording, "--save=kept.safetensors", "-q") == 0
    assert Voice.load(tmp_path / "kept.safetensors").name == "kept"
    assert not list(tmp_path.glob("speech*"))


@pytest.mark.parametrize("save", ["ada", "ada.safetensors"])
def test_clone_keeps_existing_voice_without_replace(
    tiny_folder: Path,
    recording: Path,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    save: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert clone(tiny_folder, recording, "--save", save, "-q") == 0
    with monkeypatch.context() as patch:
        patch.setattr(TTS, "load", lambda *_, **__: pytest.fail("loaded"))
        assert_fails(clone(tiny_folder, recording, "--save", save), capsys, "--replace")
    assert clone(tiny_folder, recording, "--save", save, "-q", "--replace") == 0


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--save=Ada"], "'Ada' cannot name a voice"),
        (["--save=no/ada.safetensors"], "the folder 'no' does not exist"),
        (["Hello.", "--ref-audio=absent.wav"], "absent.wav: there is no such file"),
        (["Hello.", "--ref-text= "], "the transcript is blank"),
        (["", "-o", "x.wav"], "text is empty or blank"),
    ],
)
def test_invalid_clone_is_one_line_error(
    tiny_folder: Path,
    recording: Path,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    match: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_fails(clone(tiny_folder, recording, *arguments), capsys, match)


def test_clone_with_wrong_model_suggests_base_model(
    tiny_folder: Path, recording: Path, out: Path, capsys: Captured
) -> None:
    code = clone(tiny_folder, recording, "Hello.", "-o", out, model="custom_voice")
    assert_fails(code, capsys, "use --model Qwen/Qwen3-TTS-12Hz-0.6B-Base")


# -- vivace design -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["A calm voice.", "Hello."],
        ["--instruct=A calm voice.", "Hello."],
        ["A calm voice.", "--language=auto", "Hello."],
        ["Hello.", "--instruct", "A calm voice."],
    ],
)
def test_design_speaks_with_described_voice(
    tiny_folder: Path, out: Path, arguments: list[str]
) -> None:
    assert design(tiny_folder, *arguments, "-o", out, *SHORT) == 0
    with TTS.load(tiny_folder / "voice_design", device="cpu") as tts:
        audio = tts.speak("Hello.", instruct="A calm voice.", seed=1, max_frames=4)
    np.testing.assert_allclose(read_audio(out).samples, audio.samples, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ([], "DESCRIPTION is missing"),
        (["A voice.", "Hello.", "--instruct=A voice."], "both describe the voice"),
        (["A voice.", "Hello.", "--save=ada"], "--save needs --base-model"),
        (["A voice.", "Hello.", "you"], "unrecognized arguments: you"),
    ],
)
def test_invalid_design_is_usage_error(capsys: Captured, arguments: list[str], match: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["design", *arguments])
    assert end.value.code == 2
    assert match in capsys.readouterr().err


def find_ending_seed(folder: Path, text: str) -> int:
    """A seed with which the random weights end after a second or more."""
    with TTS.load(folder, device="cpu") as tts:
        for seed in range(200):
            audio = tts.speak(text, instruct="A calm voice.", seed=seed, max_frames=40)
            if audio.finish_reason == "stop" and audio.duration_s > 1.1:
                return seed
    pytest.fail("no seed ends")


@pytest.mark.ci
def test_design_saves_voice_with_spoken_words(
    tiny_folder: Path, out: Path, capsys: Captured
) -> None:
    text = "**Good** morning."
    seed = find_ending_seed(tiny_folder / "voice_design", "Good morning.")
    save = ("--save=narrator", "--base-model", tiny_folder / "base", "--licence=mine")
    arguments = ("A calm voice.", text, "--clean", "--seed", str(seed), "-o", out)
    assert design(tiny_folder, *arguments, *save, "--speed=2", "--max-frames=40") == 0
    assert "voice 'narrator', " in capsys.readouterr().err
    voice = VoiceLibrary().get("narrator")
    assert (voice.ref_text, voice.licence) == ("Good morning.", "mine")
    # The voice is cloned from the speech before the change of speed.
    assert voice.reference_s == pytest.approx(2 * read_audio(out).duration_s + 0.5, abs=0.15)
    say = ("say", "Hello.", "--model", tiny_folder / "base", "--voice=narrator", *SHORT)
    assert run_here(*say, "-o", out, "--force") == 0


def test_design_with_incomplete_speech_saves_no_voice(
    tiny_folder: Path, out: Path, capsys: Captured
) -> None:
    save = ("--save=narrator", "--base-model", tiny_folder / "base")
    arguments = ("A calm voice.", "Hello.", "-o", out, "--max-frames=2", "-q")
    assert design(tiny_folder, *arguments, *save) == 1
    cut, refusal = capsys.readouterr().err.splitlines()
    assert "cut at --max-frames 2" in cut
    assert re.match(r"vivace: the voice is not saved: .*\(length\)", refusal)
    assert num_frames(out) == 2
    assert VoiceLibrary().names() == []


def test_text_after_options_is_accepted_only_if_missing() -> None:
    assert parse(["design", "A voice.", "--seed=1", "Hello."]).text == "Hello."
    with pytest.raises(UsageError, match="unrecognized arguments: you"):
        parse(["say", "Hello.", "--seed=1", "you"])


def test_design_with_wrong_model_suggests_voice_design_model(
    tiny_folder: Path, capsys: Captured
) -> None:
    code = run_here("design", "--model", tiny_folder / "custom_voice", "an old man", "Hi.")
    assert_fails(code, capsys, "use --model Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign")
