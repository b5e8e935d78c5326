"""Reading DATA: every layout, and rows that cannot be used."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.finetune.recordings import tone, wav_bytes, write_ljspeech
from vivace.errors import TrainingDataError
from vivace.finetune.sources import Defaults, Entry, Rejection, Row, read_rows

ME = Defaults("me", "english")


def entries(rows: list[Row]) -> list[Entry]:
    return [row for row in rows if isinstance(row, Entry)]


def reasons(rows: list[Row]) -> list[str]:
    return [row.reason for row in rows if isinstance(row, Rejection)]


def test_ljspeech_folder_is_read(tmp_path: Path) -> None:
    rows = entries(read_rows(write_ljspeech(tmp_path / "data", 3), ME))
    assert rows[0].transcript.text == "The rain it raineth every day."
    assert {row.transcript.speaker for row in rows} == {"me"}
    assert {row.transcript.language for row in rows} == {"english"}
    assert rows[2].audio == tmp_path / "data" / "wavs" / "002.wav"


def test_ljspeech_name_finds_a_suffix_in_capitals(tmp_path: Path) -> None:
    folder = write_ljspeech(tmp_path / "data", 2)
    (folder / "wavs" / "001.wav").rename(folder / "wavs" / "001.WAV")
    rows = read_rows(folder, ME)
    assert [row.audio.name for row in rows if isinstance(row, Entry) and row.audio] == [
        "000.wav", "001.WAV",
    ]  # fmt: skip


def test_ljspeech_normalized_text_is_preferred(tmp_path: Path) -> None:
    folder = write_ljspeech(tmp_path / "data", 1)
    (folder / "metadata.csv").write_text("000|In 1999.|In nineteen ninety-nine.\n")
    [row] = entries(read_rows(folder, ME))
    assert row.transcript.text == "In nineteen ninety-nine."


def test_csv_with_header_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav_bytes(tone(1)))
    (tmp_path / "metadata.csv").write_text('file_name,text\na.wav,"Hello, you."\n')
    [row] = entries(read_rows(tmp_path, ME))
    assert row.transcript.text == "Hello, you."


def test_jsonl_has_speakers_languages_instructions_and_codes(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav_bytes(tone(1)))
    lines = [
        {"audio": "a.wav", "text": "Hallo.", "speaker": "Bob", "language": "de"},
        {"audio": str(tmp_path / "a.wav"), "text": "Hello.", "instruct": "slowly"},
        {"audio_codes": [[1, 2], [3, 4]], "text": "Codes.", "ref_audio": "ignored.wav"},
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("\ufeff" + "\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    first, second, third = entries(read_rows(path, ME))
    assert (first.transcript.speaker, first.transcript.language) == ("bob", "german")
    assert (second.transcript.speaker, second.transcript.instruct) == ("me", "slowly")
    assert third.codes is not None
    assert third.codes.tolist() == [[1, 2], [3, 4]]


def test_audio_beside_text_files_is_read(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    for name in ("a", "part/b", "c"):
        (tmp_path / f"{name}.wav").write_bytes(wav_bytes(tone(1)))
    (tmp_path / "a.txt").write_text("One\n two.\n")
    (tmp_path / "part" / "b.txt").write_text("Three.")
    rows = read_rows(tmp_path, ME)
    assert [row.transcript.text for row in entries(rows)] == ["One two.", "Three."]
    assert reasons(rows) == ["no transcript: c.txt is missing"]


@pytest.mark.parametrize("name", ["me", "ann"])
def test_relative_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for folder in (tmp_path / "data" / "part", tmp_path / "named" / "ann"):
        folder.mkdir(parents=True)
        (folder / "a.wav").write_bytes(wav_bytes(tone(1)))
        (folder / "a.txt").write_text("One two.")
    monkeypatch.chdir(tmp_path)
    by_name = Defaults(None, "auto", by_folder=True)
    rows = read_rows(Path("data"), ME) if name == "me" else read_rows(Path("named"), by_name)
    [row] = entries(rows)
    assert row.transcript.speaker == name
    assert row.audio is not None
    assert row.audio.read_bytes() == wav_bytes(tone(1))


def test_recordings_without_a_speaker_are_explained(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav_bytes(tone(1)))
    with pytest.raises(TrainingDataError, match="no speaker; give --name"):
        read_rows(tmp_path, Defaults(None, "auto", by_folder=True))


def test_folders_are_speakers_without_a_name(tmp_path: Path) -> None:
    for name in ("Ann", "bob"):
        write_ljspeech(tmp_path / name, 2)
    rows = entries(read_rows(tmp_path, Defaults(None, "auto", by_folder=True)))
    assert [row.transcript.speaker for row in rows] == ["ann", "ann", "bob", "bob"]


def test_rows_of_speaker_folders_are_named_with_their_folder(tmp_path: Path) -> None:
    for name in ("ann", "bob"):
        write_ljspeech(tmp_path / name, 1)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.wav").write_bytes(wav_bytes(tone(1)))
    rows = read_rows(tmp_path, Defaults(None, "auto", by_folder=True))
    assert [row.where for row in rows] == ["ann/metadata.csv:1", "bob/metadata.csv:1", "cat/a.wav"]


@pytest.mark.parametrize("by_folder", [False, True])
def test_folder_of_a_run_and_hidden_folders_are_not_read(tmp_path: Path, by_folder: bool) -> None:
    for name in ("ann", "ann.finetune", ".trash", ".trash/deep", "ann/.cache"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.wav").write_bytes(wav_bytes(tone(1)))
        (tmp_path / name / "a.txt").write_text("One two.")
    rows = read_rows(tmp_path, Defaults(None if by_folder else "me", "auto", by_folder=by_folder))
    assert [row.where for row in rows] == ["ann/a.wav"]


def test_pipe_named_like_audio_is_no_recording(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("One two.")
    (tmp_path / "a.wav").write_bytes(wav_bytes(tone(1)))
    os.mkfifo(tmp_path / "b.wav")
    rows = read_rows(tmp_path, ME)
    assert [row.where for row in entries(rows)] == ["a.wav"]
    assert reasons(rows) == ["it is not a file"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{broken", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"text": "Hello."}', "no audio"),
        ('{"audio": "a.wav"}', "the transcript is empty"),
        ('{"audio": "a.wav", "text": "  "}', "the transcript is empty"),
        ('{"audio": "a.wav", "text": 5}', "the transcript is empty"),
        ('{"audio": "gone.wav", "text": "Hello."}', "there is no file 'gone.wav'"),
        ('{"audio": "a\\u0000.wav", "text": "Hello."}', "null character"),
        ('{"audio": "' + "x" * 5_000 + '", "text": "Hello."}', "there is no file 'xxx"),
        ('{"audio": "/", "text": "Hello."}', "there is no file '/'"),
        ('{"audio": "a.wav", "text": "Hello.", "speaker": "no name!"}', "cannot name a voice"),
        ('{"audio": "a.wav", "text": "Hello.", "speaker": 3}', "speaker must be a name"),
        ('{"audio": "a.wav", "text": "Hello.", "instruct": 3}', "instruct must be a string"),
        ('{"audio": "a.wav", "text": "Hello.", "language": 3}', "language must be a string"),
        ('{"audio_codes": [[1, 2], [3]], "text": "Hello."}', "audio_codes must"),
        ('{"audio_codes": [0.5], "text": "Hello."}', "audio_codes must"),
    ],
)
def test_bad_line_of_jsonl_is_rejected_with_its_number(
    tmp_path: Path, line: str, reason: str
) -> None:
    (tmp_path / "a.wav").write_bytes(wav_bytes(tone(1)))
    path = tmp_path / "data.jsonl"
    path.write_text('{"audio": "a.wav", "text": "Good."}\n' + line + "\n")
    good, bad = read_rows(path, ME)
    assert isinstance(good, Entry)
    assert isinstance(bad, Rejection)
    assert bad.where == "data.jsonl:2"
    assert reason in bad.reason


def test_table_with_another_name_is_suggested(tmp_path: Path) -> None:
    folder = write_ljspeech(tmp_path / "data", 2)
    table = (folder / "metadata.csv").rename(folder / "sentences.csv")
    with pytest.raises(TrainingDataError, match=f"give {table} as DATA"):
        read_rows(folder, ME)
    assert len(read_rows(table, ME)) == 2
    (folder / "wavs" / "000.txt").write_text("Hello.")  # a transcript: the others are rejected
    assert reasons(read_rows(folder, ME)) == ["no transcript: 001.txt is missing"]


def test_line_of_csv_without_text_is_rejected(tmp_path: Path) -> None:
    folder = write_ljspeech(tmp_path / "data", 1)
    (folder / "metadata.csv").write_text("000\n000|\n")
    assert reasons(read_rows(folder, ME)) == [
        "no | between the file's name and its text",
        "the transcript is empty",
    ]


def test_missing_and_empty_data_raise(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="no such folder or file"):
        read_rows(tmp_path / "gone", ME)
    with pytest.raises(TrainingDataError, match="no recordings"):
        read_rows(tmp_path, ME)
    (tmp_path / "metadata.csv").write_bytes(b"\xff\xfe\x00bad")
    with pytest.raises(TrainingDataError, match="not UTF-8"):
        read_rows(tmp_path, ME)


@pytest.mark.ci
def test_twenty_thousand_rows_are_read_quickly(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"")
    lines = [f'{{"audio": "a.wav", "text": "Sentence {n}."}}' for n in range(20_000)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    began = time.process_time()
    assert len(read_rows(tmp_path / "data.jsonl", ME)) == 20_000
    assert time.process_time() - began < 15  # one second; to compare all pairs takes minutes


def write_pair(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.wav").write_bytes(wav_bytes(tone(1)))
    (folder / f"{name}.txt").write_text("Hello.")


def audio_names(folder: Path, defaults: Defaults = ME) -> list[str]:
    rows = entries(read_rows(folder, defaults))
    return [str(row.audio.relative_to(folder)) for row in rows if row.audio is not None]


def test_linked_folder_of_audio_is_read(tmp_path: Path) -> None:
    write_pair(tmp_path / "data" / "own", "a")
    write_pair(tmp_path / "elsewhere" / "deep", "b")
    (tmp_path / "elsewhere" / "more").mkdir()
    write_pair(tmp_path / "third", "c")
    (tmp_path / "elsewhere" / "more" / "link").symlink_to(tmp_path / "third")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    found = audio_names(tmp_path / "data")
    assert found == ["link/deep/b.wav", "link/more/link/c.wav", "own/a.wav"]


def test_loops_and_second_links_to_a_folder_are_read_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_pair(data / "z", "a")
    write_pair(tmp_path, "outside")  # reached only through a link to a parent
    (data / "a_second_name").symlink_to(data / "z")
    (data / "z" / "back").symlink_to(data)
    (data / "z" / "self").symlink_to(data / "z")
    (data / "up").symlink_to(tmp_path)
    (data / "nowhere").symlink_to(tmp_path / "missing")
    (data / "ring").symlink_to(data / "ring")
    assert audio_names(data) == ["z/a.wav"]


def test_linked_folder_of_a_speaker_is_read_and_a_link_to_the_data_is_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_pair(data / "ann", "a")
    write_pair(tmp_path / "recordings", "b")
    (data / "bob").symlink_to(tmp_path / "recordings")
    (data / "everyone").symlink_to(data)
    rows = entries(read_rows(data, Defaults(None, "english", by_folder=True)))
    assert [row.transcript.speaker for row in rows] == ["ann", "bob"]


@pytest.mark.parametrize("name", ["a.wav", "a.MP3", "missing.flac"])
def test_audio_file_as_data_is_rejected_with_a_hint(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.wav").write_bytes(wav_bytes(tone(1)))
    (tmp_path / "a.MP3").write_bytes(b"not UTF-8: \xff")
    with pytest.raises(TrainingDataError, match=r"give a folder of recordings, or a \.jsonl"):
        read_rows(tmp_path / name, ME)
