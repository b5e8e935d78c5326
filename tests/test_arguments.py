"""`vivace.arguments`: a wrong type raises an error of Vivace at every public function."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vivace import TTS, Lexicon, Voice
from vivace.arguments import as_path, check_choice, check_flag
from vivace.audio.clip import Audio
from vivace.dialogue.talk import Dialogue
from vivace.errors import AudioError, CheckpointError, RequestError, TTSError
from vivace.options import DialogueOptions, SpeakOptions, SpeechOptions, StreamOptions
from vivace.script.request import as_pieces
from vivace.voices.library import VoiceLibrary

WRONG: list[Any] = [5, -1.5, True, b"x", [], ["a"], (), {1}, object(), np.zeros(3), lambda: 1, type]
FLAGS = [
    (kind, name)
    for kind in (SpeakOptions, StreamOptions, DialogueOptions)
    for name, field in kind.__dataclass_fields__.items()
    if isinstance(field.default, bool)
]
wrong_types = pytest.mark.parametrize("value", WRONG, ids=lambda value: type(value).__name__)


def load(**arguments: Any) -> None:
    TTS.load(**arguments).close()


@pytest.fixture(scope="module")
def audio(tiny_folder: Path) -> Iterator[Audio]:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as tts:
        yield tts.speak("Hello.", max_frames=3, seed=1)


@pytest.fixture(scope="module")
def dialogue(tiny_folder: Path) -> Iterator[Dialogue]:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as tts:
        yield tts.dialogue([("vivian", "Hello."), ("ryan", "Yes.")], max_frames=3, seed=1)


@wrong_types
@pytest.mark.parametrize("argument", ["name_or_folder", "revision", "cache_dir", "adapter"])
def test_load_with_a_path_or_name_of_another_type_raises(argument: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"must be|a model is"):
        load(**{argument: value})


@pytest.mark.parametrize("value", [5, "a.safetensors", ["a"], {"a": 1}, object()])
def test_load_with_adapters_that_are_no_mapping_of_files_raises(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"adapters? must be"):
        TTS.load(adapters=value)


@pytest.mark.parametrize("text", [{"a": "Hello."}, {"Hello."}, frozenset(("Hello.",))])
def test_mapping_or_set_as_text_raises(text: Any) -> None:
    with pytest.raises(RequestError, match="must be a string or an iterator of strings, not"):
        as_pieces(text)


@pytest.mark.parametrize("argument", ["offline", "split_camel_case"])
def test_load_with_a_flag_as_text_raises(argument: str) -> None:
    with pytest.raises(RequestError, match=f"{argument} must be True or False, not 'false'"):
        load(**{argument: "false"})


@pytest.mark.parametrize("value", [[], ["balanced"], {}, np.zeros(3), 5, None, "fast"])
def test_load_with_an_unknown_profile_raises_with_the_choices(value: Any) -> None:
    with pytest.raises(RequestError, match="profile must be one of latency, balanced, throughput"):
        TTS.load(profile=value)


@wrong_types
def test_audio_saved_to_a_path_of_another_type_raises(audio: Audio, value: Any) -> None:
    with pytest.raises(AudioError, match="path must be a path"):
        audio.save(value)
    with pytest.raises(AudioError, match="path must be a path"):
        audio.save_subtitles(value)


@wrong_types
def test_tracks_saved_to_a_path_of_another_type_raise(dialogue: Dialogue, value: Any) -> None:
    with pytest.raises(AudioError, match="path must be a path"):
        dialogue.save_tracks(value)


@pytest.mark.parametrize("path", ["", "/", ".", "talk.xyz"])
def test_tracks_saved_to_a_path_without_a_file_name_raise(dialogue: Dialogue, path: str) -> None:
    with pytest.raises(AudioError, match="unknown file extension"):
        dialogue.save_tracks(path)


@wrong_types
def test_audio_in_a_format_of_another_type_raises(audio: Audio, value: Any) -> None:
    with pytest.raises(AudioError, match="unknown audio format"):
        audio.to_bytes(value)


@wrong_types
@pytest.mark.parametrize(
    "read",
    [Voice.load, Voice(name="a", speaker=np.ones(8, np.float32)).save, VoiceLibrary, Lexicon.load],
)
def test_file_of_another_type_raises(read: Callable[[Any], object], value: Any) -> None:
    with pytest.raises(TTSError, match="must be a path"):
        read(value)


@pytest.mark.parametrize("value", [None, 5, "a", ["a"], {"a": "b"}, object()])
def test_lexicon_of_other_objects_than_rows_raises(value: Any) -> None:
    with pytest.raises(TTSError, match=r"use Lexicon\.of or Lexicon\.load"):
        Lexicon(value)


@wrong_types
def test_library_rejects_objects_that_are_no_voices(tmp_path: Path, value: Any) -> None:
    with pytest.raises(RequestError, match="voice must be a Voice"):
        VoiceLibrary(tmp_path).add(value)


@pytest.mark.parametrize("folder", ["a\0b", "\ud800"])
def test_library_in_an_impossible_folder_raises(folder: str) -> None:
    with pytest.raises(RequestError, match="cannot be listed"):
        VoiceLibrary(folder).names()


@pytest.mark.parametrize("value", ["x", ["a"], {"a": 1}, object()])
def test_voice_with_a_vector_of_other_objects_raises(value: Any) -> None:
    with pytest.raises(RequestError, match="speaker must be"):
        Voice(name="a", speaker=value)


@wrong_types
def test_voice_with_a_digest_of_another_type_raises(value: Any) -> None:
    with pytest.raises(RequestError, match="source_sha256 must be 64 hex digits"):
        Voice(name="a", speaker=np.ones(8, np.float32), source_sha256=value)


@pytest.mark.parametrize("value", [5, "a", ["a"], object()])
def test_dialogue_voices_that_are_no_mapping_raise(tiny_folder: Path, value: Any) -> None:
    with (
        TTS.load(tiny_folder / "custom_voice", device="cpu") as tts,
        pytest.raises(RequestError, match="voices must map names to voices"),
    ):
        tts.dialogue([("vivian", "Hello.")], voices=value)


@pytest.mark.parametrize(("kind", "name"), FLAGS)
@pytest.mark.parametrize("value", ["false", "no", 2, [], None, np.zeros(3)], ids=str)
def test_flag_that_is_no_boolean_raises(kind: type[SpeechOptions], name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"{name} must be True or False"):
        kind(**{name: value})


@pytest.mark.parametrize("value", [True, False, 0, 1, np.bool_(True)])
def test_flag_accepts_booleans_of_python_and_numpy(value: Any) -> None:
    check_flag("trim", value)


def test_as_path_accepts_strings_and_path_likes(tmp_path: Path) -> None:
    assert as_path("path", str(tmp_path)) == as_path("path", tmp_path) == tmp_path


def test_check_choice_accepts_none_only_where_it_is_allowed() -> None:
    check_choice("live", None, ("word", "sentence"), may_be_none=True)
    with pytest.raises(RequestError, match="live must be one of word, sentence, not None"):
        check_choice("live", None, ("word", "sentence"))


def test_pickling_a_tts_raises_with_a_hint(tiny_folder: Path) -> None:
    with (
        TTS.load(tiny_folder / "custom_voice", device="cpu") as tts,
        pytest.raises(TypeError, match="load it in each process"),
    ):
        pickle.dumps(tts)
