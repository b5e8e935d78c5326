"""`VoiceLibrary` stores voices by name, one file each, and reads only its own folder."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vivace.errors import RequestError, UnknownVoiceError, VoiceFileError
from vivace.voices.folders import enrolments_folder, voices_folder
from vivace.voices.library import VoiceLibrary
from vivace.voices.voice import Voice, load_voice

BAD_NAMES = ["", "../ada", "/etc/passwd", "a/b", "a\\b", ".ada", "Ada", "a\0", "a\n", "x" * 65, 7]
ADD = """
import sys, time
from pathlib import Path
import numpy as np
from vivace.errors import VoiceFileError
from vivace.voices.library import VoiceLibrary
from vivace.voices.voice import Voice

folder, number, replace = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "replace"
library = VoiceLibrary(folder / "voices")
(folder / f"ready-{number}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
for name in map("voice-{}".format, range(30)):
    voice = Voice(name=name, speaker=np.full(1024, float(number), np.float32), licence=number)
    try:
        library.add(voice, replace=replace)
    except VoiceFileError as error:
        assert "already" in str(error), error
    else:
        print(name)
"""


def make_voice(name: str = "ada", value: float = 1.0, **fields: Any) -> Voice:
    return Voice(name=name, speaker=np.full(32, value, np.float32), **fields)


@pytest.fixture
def library(tmp_path: Path) -> VoiceLibrary:
    return VoiceLibrary(tmp_path / "data" / "voices")


def fail(code: int) -> Any:
    def raise_it(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    return raise_it


# --- Keeping and finding ----------------------------------------------------------------------


def test_added_voice_is_found_by_name(library: VoiceLibrary) -> None:
    codes = np.arange(48).reshape(3, 16)
    path = library.add(make_voice(ref_codes=codes, ref_text="Words.", language="english"))
    assert path == library.path("ada") == library.folder / "ada.safetensors"
    found = library.get("ada")
    np.testing.assert_array_equal(found.ref_codes, codes)
    assert (found.name, found.ref_text, found.language) == ("ada", "Words.", "english")


def test_names_and_voices_are_sorted(library: VoiceLibrary) -> None:
    for name in ("bob", "ada", "0", "a.b-c_d"):
        library.add(make_voice(name))
    assert library.names() == ["0", "a.b-c_d", "ada", "bob"]
    assert [voice.name for voice in library.voices()] == library.names()
    assert "bob" in library
    assert "eve" not in library


def test_empty_library_creates_no_folder(library: VoiceLibrary) -> None:
    assert library.names() == []
    assert "ada" not in library
    with pytest.raises(UnknownVoiceError):
        library.get("ada")
    assert not library.folder.exists()


def test_new_folder_is_private(library: VoiceLibrary) -> None:
    library.add(make_voice())
    assert stat.S_IMODE(library.folder.stat().st_mode) == 0o700


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")
@pytest.mark.parametrize("mode", [0o755, 0o2775, 0o1777, 0o700])
def test_existing_folder_keeps_its_mode(library: VoiceLibrary, mode: int) -> None:
    library.folder.mkdir(parents=True)
    library.folder.chmod(mode)
    library.add(make_voice())
    library.add(make_voice(), replace=True)
    library.remove("ada")
    assert stat.S_IMODE(library.folder.stat().st_mode) == mode


def test_replaced_voice_keeps_its_mode(library: VoiceLibrary, tmp_path: Path) -> None:
    kept, saved = library.add(make_voice()), make_voice().save(tmp_path / "a.safetensors")
    kept.chmod(0o600)
    saved.chmod(0o600)
    library.add(make_voice(value=2), replace=True)
    make_voice(value=2).save(saved)
    for path in (kept, saved):
        assert load_voice(path).speaker[0] == 2
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["con", "nul", "aux.x", "com1", "lpt9.old"])
def test_name_of_a_windows_device_is_rejected(library: VoiceLibrary, name: str) -> None:
    with pytest.raises(RequestError, match="Windows reserves it"):
        library.check_free(name)


@pytest.mark.parametrize("name", ["conrad", "com", "nula", "a.con", "com10"])
def test_name_that_begins_like_a_device_is_accepted(library: VoiceLibrary, name: str) -> None:
    library.add(make_voice(name))
    assert library.get(name).name == name


def test_existing_name_is_rejected_without_replace(library: VoiceLibrary) -> None:
    library.add(make_voice(value=1))
    library.check_free("bob")
    with pytest.raises(VoiceFileError, match="a voice named 'ada' exists already"):
        library.check_free("ada")
    with pytest.raises(VoiceFileError, match="exists already; use replace=True"):
        library.add(make_voice(value=2))
    assert library.get("ada").speaker[0] == 1
    library.add(make_voice(value=3), replace=True)
    assert library.get("ada").speaker[0] == 3
    assert [entry.name for entry in library.folder.iterdir()] == ["ada.safetensors"]


def test_removed_voice_frees_its_name(library: VoiceLibrary) -> None:
    library.add(make_voice())
    library.remove("ada")
    assert library.names() == []
    with pytest.raises(UnknownVoiceError, match="'ada'"):
        library.remove("ada")
    library.add(make_voice())


def test_unknown_voice_error_lists_known_voices(library: VoiceLibrary) -> None:
    library.add(make_voice("ada"))
    library.add(make_voice("bob"))
    for ask in (library.get, library.path, library.remove):
        with pytest.raises(UnknownVoiceError, match="no voice named 'eve'; try one of: ada, bob"):
            ask("eve")


def test_copied_file_gets_the_name_of_the_file(library: VoiceLibrary) -> None:
    path = library.add(make_voice("ada"))
    path.with_name("bob.safetensors").write_bytes(path.read_bytes())
    assert library.names() == ["ada", "bob"]
    assert library.get("bob").name == "bob"


# --- Where it is ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "variables", "data", "cache"),
    [
        ("linux", {}, ".local/share/vivace", ".cache/vivace"),
        ("linux", {"XDG_DATA_HOME": "/d", "XDG_CACHE_HOME": "/c"}, "/d/vivace", "/c/vivace"),
        ("linux", {"XDG_DATA_HOME": "relative"}, ".local/share/vivace", ".cache/vivace"),
        (
            "darwin",
            {"XDG_DATA_HOME": "/d"},
            "Library/Application Support/vivace",
            "Library/Caches/vivace",
        ),
        ("win32", {"APPDATA": "/r", "LOCALAPPDATA": "/l"}, "/r/vivace", "/l/vivace"),
        ("win32", {}, "AppData/Roaming/vivace", "AppData/Local/vivace"),
        ("linux", {"VIVACE_HOME": "/v", "XDG_DATA_HOME": "/d"}, "/v", "/v"),
        ("linux", {"VIVACE_HOME": "~/v"}, "v", "v"),
        ("linux", {"VIVACE_HOME": ""}, ".local/share/vivace", ".cache/vivace"),
    ],
)
def test_default_folder_follows_the_system(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    variables: dict[str, str],
    data: str,
    cache: str,
) -> None:
    for name in ("VIVACE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "APPDATA", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    folders = voices_folder(), enrolments_folder()
    monkeypatch.undo()
    assert folders == (tmp_path / data / "voices", tmp_path / cache / "enrolments")


def test_unknown_home_folder_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("VIVACE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(VoiceFileError, match="set VIVACE_HOME"):
        VoiceLibrary().names()


# --- Names, links and other files in the folder -----------------------------------------------


@pytest.mark.parametrize("name", BAD_NAMES)
def test_invalid_name_reads_no_file(library: VoiceLibrary, tmp_path: Path, name: Any) -> None:
    library.add(make_voice("bob"))
    outside = make_voice().save(library.folder.parent / "ada.safetensors")
    for ask in (library.get, library.path, library.remove):
        with pytest.raises(UnknownVoiceError):
            ask(name)
    assert name not in library
    with pytest.raises(RequestError, match="cannot name a voice"):
        library.check_free(name)
    assert outside.exists()


@pytest.mark.parametrize("name", ["ada.wav", "ada.safetensors", "a.opus"])
def test_name_with_a_file_ending_is_rejected(library: VoiceLibrary, name: str) -> None:
    with pytest.raises(RequestError, match="would be read as a file name"):
        library.add(make_voice(name))
    assert not library.folder.exists()


def test_link_out_of_the_library_is_not_followed(library: VoiceLibrary, tmp_path: Path) -> None:
    library.add(make_voice("bob"))
    outside = make_voice("ada", value=7).save(tmp_path / "outside.safetensors")
    (library.folder / "ada.safetensors").symlink_to(outside)
    assert load_voice(library.folder / "ada.safetensors").speaker[0] == 7  # is readable
    for ask in (library.get, library.path):
        with pytest.raises(VoiceFileError, match="a link out of the library"):
            ask("ada")
    assert library.names() == ["bob"]
    library.add(make_voice("ada", value=8), replace=True)
    assert load_voice(outside).speaker[0] == 7
    assert library.get("ada").speaker[0] == 8


def test_remove_of_a_link_keeps_its_target(library: VoiceLibrary, tmp_path: Path) -> None:
    library.add(make_voice("bob"))
    outside = make_voice("ada").save(tmp_path / "outside.safetensors")
    (library.folder / "ada.safetensors").symlink_to(outside)
    library.remove("ada")
    assert outside.exists()
    assert "ada" not in library


def test_link_within_the_library_is_a_second_name(library: VoiceLibrary) -> None:
    library.add(make_voice("bob", value=5))
    (library.folder / "robert.safetensors").symlink_to("bob.safetensors")
    assert library.get("robert").speaker[0] == 5
    library.add(make_voice("robert", value=6), replace=True)
    assert library.get("bob").speaker[0] == 5


@pytest.mark.parametrize("target", ["nowhere.safetensors", "ada.safetensors"])
def test_broken_link_raises_voice_file_error(library: VoiceLibrary, target: str) -> None:
    library.add(make_voice("bob"))
    (library.folder / "ada.safetensors").symlink_to(target)
    with pytest.raises(VoiceFileError, match="is a broken link"):
        library.get("ada")
    assert library.names() == ["bob"]
    with pytest.raises(VoiceFileError, match="already"):
        library.add(make_voice("ada"))


def test_library_folder_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    library = VoiceLibrary(tmp_path / "link")
    library.add(make_voice())
    assert library.get("ada").name == "ada"


def test_other_files_in_the_folder_are_skipped(library: VoiceLibrary) -> None:
    path = library.add(make_voice("bob"))
    content = path.read_bytes()
    others = {
        "notes.txt": b"hello",
        "half.safetensors": content[:-1],
        "empty.safetensors": b"",
        "Capital.safetensors": content,
        "two words.safetensors": content,
        "bob.safetensors.bak": content,
        ".hidden.safetensors": content,
        ".vivace-0123.tmp": content,
    }
    for name, other in others.items():
        (library.folder / name).write_bytes(other)
    (library.folder / "folder.safetensors").mkdir()
    assert library.names() == ["bob"]
    with pytest.raises(VoiceFileError, match="half"):
        library.get("half")


# --- Errors of the disk -----------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("replace", [False, True])
def test_failed_write_keeps_the_library_unchanged(
    library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch, code: int, replace: bool
) -> None:
    library.add(make_voice("ada", value=1))
    before = {path.name: path.read_bytes() for path in library.folder.iterdir()}
    for call in ("fsync", "replace" if replace else "link"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail(code))
            patch.setattr(os, "open", fail(code))  # also without hard links
            with pytest.raises(VoiceFileError, match=os.strerror(code)):
                library.add(make_voice("ada" if replace else "bob", value=2), replace=replace)
        assert {path.name: path.read_bytes() for path in library.folder.iterdir()} == before


def test_folder_that_cannot_be_created_raises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "voices"):
        library = VoiceLibrary(folder)
        with pytest.raises(VoiceFileError, match=r"the voice library .*file.* cannot"):
            library.add(make_voice())
        with pytest.raises(VoiceFileError, match="cannot be listed"):
            library.names()


def test_unreadable_folder_raises(library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    library.add(make_voice())
    monkeypatch.setattr(Path, "iterdir", fail(errno.EACCES))
    with pytest.raises(VoiceFileError, match="cannot be listed: Permission denied"):
        library.names()


def test_folder_without_search_permission_raises_no_other_error(
    library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.add(make_voice())
    monkeypatch.setattr(os.path, "lexists", lambda path: False)  # no search permission
    monkeypatch.setattr(Path, "resolve", fail(errno.EACCES))
    assert library.names() == []
    with pytest.raises(UnknownVoiceError):
        library.get("ada")


def test_failed_remove_reports_the_reason(
    library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.add(make_voice())
    monkeypatch.setattr(Path, "unlink", fail(errno.EROFS))
    with pytest.raises(VoiceFileError, match="cannot remove the voice 'ada': Read-only"):
        library.remove("ada")


def test_concurrent_add_without_hard_links_has_one_winner(
    library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", fail(errno.EPERM))
    library.add(make_voice(value=1))
    with pytest.raises(VoiceFileError, match="already"):
        library.add(make_voice(value=2))
    assert library.get("ada").speaker[0] == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail(errno.EIO))
        with pytest.raises(VoiceFileError, match="error"):
            library.add(make_voice("bob"))
    assert [entry.name for entry in library.folder.iterdir()] == ["ada.safetensors"]


# --- Several at once --------------------------------------------------------------------------


def race(folder: Path, how: str, num_processes: int = 4) -> dict[str, list[str]]:
    """Let processes add the same thirty names concurrently; return the winners of each name."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ADD, str(folder), str(number), how],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(num_processes)
    ]
    try:
        while len(list(folder.glob("ready-*"))) < num_processes:
            assert all(process.poll() is None for process in processes)
        (folder / "go").touch()
        won = [process.communicate(timeout=300)[0].split() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * num_processes
    names = sorted({name for names in won for name in names})
    return {name: [str(n) for n, names in enumerate(won) if name in names] for name in names}


def test_concurrent_add_has_one_winner(tmp_path: Path) -> None:
    winners = race(tmp_path, "keep")
    library = VoiceLibrary(tmp_path / "voices")
    assert len(winners) == len(library.names()) == 30
    for name, numbers in winners.items():
        voice = library.get(name)
        assert numbers == [voice.licence]
        assert (voice.speaker == float(voice.licence or -1)).all()
    assert len(list(library.folder.iterdir())) == 30


def test_race_check_detects_two_winners(tmp_path: Path) -> None:
    winners = race(tmp_path, "replace")
    assert Counter(map(len, winners.values())) == {4: 30}
    assert len(VoiceLibrary(tmp_path / "voices").names()) == 30


def test_reader_never_gets_a_partial_voice(library: VoiceLibrary) -> None:
    library.add(make_voice(value=0))
    is_over = threading.Event()

    def keep_replacing() -> None:
        value = 0
        while not is_over.is_set():
            value += 1
            library.add(make_voice(value=value), replace=True)

    writer = threading.Thread(target=keep_replacing)
    writer.start()
    try:
        seen = {float(library.get("ada").speaker[0]) for _ in range(300)}
    finally:
        is_over.set()
        writer.join()
    assert len(seen) > 1  # another process replaced it
