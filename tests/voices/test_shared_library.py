"""`SharedLibrary`: all servers see voices that one server adds, replaces or removes."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Lock, Thread, current_thread
from typing import Any

import fsspec
import numpy as np
import pytest

from vivace.errors import (
    IntegrationError,
    RequestError,
    TTSError,
    UnknownVoiceError,
    VoiceFileError,
    VoiceStoreError,
)
from vivace.voices.library import VoiceLibrary
from vivace.voices.shared import SharedLibrary, open_library
from vivace.voices.voice import MAX_FILE_BYTES, Voice

NUMBERS = itertools.count()
LIMIT_S = 60.0


def make_voice(name: str = "ada", value: float = 1.0) -> Voice:
    return Voice(name=name, speaker=np.full(32, value, np.float32))


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """An S3 server of moto, run manually: `pip install s3fs 'moto[server]'`."""
    pytest.importorskip("s3fs", reason="no s3fs")
    moto = pytest.importorskip("moto.server", reason="no moto")
    server = moto.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fsspec.config.conf, "s3", {"endpoint_url": f"http://{host}:{port}"})
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        fsspec.filesystem("s3").mkdir("voices-bucket")
        yield "s3://voices-bucket"
    server.stop()


@pytest.fixture(params=["memory", "file", pytest.param("s3", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/shared-{next(NUMBERS)}/voices"
    if request.param == "file":
        return f"file://{tmp_path / 'shared' / 'voices'}"
    return f"memory://shared-{next(NUMBERS)}/voices"


@pytest.fixture
def pair(url: str) -> tuple[VoiceLibrary, VoiceLibrary]:
    return open_library(url), open_library(url)


Pair = tuple[VoiceLibrary, VoiceLibrary]


def test_open_library_treats_urls_as_stores(tmp_path: Path) -> None:
    assert isinstance(open_library("memory://x"), SharedLibrary)
    for folder in (tmp_path, str(tmp_path)):
        assert type(open_library(folder)) is VoiceLibrary
        assert open_library(folder).folder == tmp_path
    assert open_library(None).folder == VoiceLibrary().folder


def test_added_voice_is_visible_to_other_servers(pair: Pair) -> None:
    first, second = pair
    assert second.names() == []
    assert "ada" not in second
    first.add(make_voice(value=3.0))
    assert "ada" in second
    assert second.get("ada").speaker[0] == 3.0
    assert second.names() == first.names() == ["ada"]


def test_separate_folders_do_not_share_voices(tmp_path: Path) -> None:
    """Control of the test above."""
    first, second = VoiceLibrary(tmp_path / "one"), VoiceLibrary(tmp_path / "two")
    first.add(make_voice())
    assert "ada" not in second


def test_replaced_voice_is_copied_again(pair: Pair) -> None:
    first, second = pair
    for value in (1.0, 2.0, 3.0):  # the same size and the same timestamp
        first.add(make_voice(value=value), replace=True)
        assert second.get("ada").speaker[0] == value
        assert [voice.speaker[0] for voice in second] == [value]


class SignallingLock:
    """Sets an event whenever a thread is about to wait for the lock."""

    def __init__(self, is_wanted: Event) -> None:
        self._lock, self._is_wanted = Lock(), is_wanted

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._is_wanted.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_slow_copy_of_replaced_voice_never_overwrites_the_newer_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread has read the old content when another thread copies the new content."""
    other, library = pair
    assert isinstance(library, SharedLibrary)
    other.add(make_voice(value=1))
    has_old, may_write = Event(), Event()
    monkeypatch.setattr(library, "_lock", SignallingLock(may_write))
    cat_file, load = library._store.cat_file, library._load

    def read_slowly(path: str) -> bytes:
        content: bytes = cat_file(path)
        if current_thread() is slow:
            has_old.set()
            assert may_write.wait(LIMIT_S)
        return content

    def load_late(name: str) -> Voice:
        may_write.set()
        slow.join(LIMIT_S)
        return load(name)

    monkeypatch.setattr(library._store, "cat_file", read_slowly)
    monkeypatch.setattr(library, "_load", load_late)
    slow = Thread(target=library.has_file, args=("ada.safetensors",))
    slow.start()
    assert has_old.wait(LIMIT_S)
    other.add(make_voice(value=2), replace=True)
    assert library.get("ada").speaker[0] == 2
    slow.join(LIMIT_S)


def test_removed_voice_is_gone_for_all_servers_and_can_be_added_again(pair: Pair) -> None:
    first, second = pair
    first.add(make_voice(value=1.0))
    assert second.get("ada").speaker[0] == 1.0
    second.remove("ada")
    assert "ada" not in first
    assert first.names() == second.names() == []
    assert not list(second.folder.iterdir()), "a copy of somebody's voice stayed"
    with pytest.raises(UnknownVoiceError):
        first.remove("ada")
    second.add(make_voice(value=2.0))
    assert first.get("ada").speaker[0] == 2.0


def test_second_voice_with_the_same_name_is_rejected(pair: Pair) -> None:
    first, second = pair
    first.add(make_voice(value=1.0))
    with pytest.raises(VoiceFileError, match="already"):
        second.add(make_voice(value=2.0))
    with pytest.raises(FileExistsError):  # even if both found the name free
        second.write_file("ada.safetensors", b"other", replace=False)
    assert second.get("ada").speaker[0] == 1.0


def test_unchanged_file_is_copied_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pair
    first.add(make_voice())
    assert second.get("ada").name == second.names()[0] == "ada"
    assert isinstance(second, SharedLibrary)
    monkeypatch.setattr(second._store, "cat_file", None)
    for _ in range(3):
        assert second.get("ada").name == "ada"
        assert second.names() == ["ada"]


def test_other_files_in_the_store_are_ignored(url: str, tmp_path: Path) -> None:
    store, root = fsspec.core.url_to_fs(url)
    store.makedirs(root, exist_ok=True)
    store.pipe_file(f"{root}/../outside.safetensors", b"x")
    store.pipe_file(f"{root}/notes.txt", b"x")
    store.pipe_file(f"{root}/.hidden.safetensors", b"x")
    store.pipe_file(f"{root}/torn.safetensors", b"x")
    store.pipe_file(f"{root}/huge.safetensors", b"x" * (MAX_FILE_BYTES + 1))
    store.makedirs(f"{root}/folder.safetensors", exist_ok=True)
    library = open_library(url)
    library.add(make_voice())
    assert library.names() == ["ada"]
    copied = {path.name for path in library.folder.iterdir()}
    assert copied == {"ada.safetensors", "torn.safetensors"}
    with pytest.raises(VoiceFileError):
        library.get("torn")
    for name in ("huge", "../outside", "folder"):
        assert name not in library
        with pytest.raises(UnknownVoiceError):
            library.get(name)
    with pytest.raises(RequestError):
        library.add(Voice(name="../x", speaker=np.ones(32, np.float32)))


def refuse(*_: Any, **__: Any) -> None:
    raise TimeoutError("the store is away")


def test_unreachable_store_keeps_copied_voices_usable(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = pair
    first.add(make_voice("ada"))
    first.add(make_voice("bob"))
    assert "ada" in second
    assert isinstance(second, SharedLibrary)
    for name in ("info", "ls", "cat_file", "pipe_file", "rm_file"):
        monkeypatch.setattr(second._store, name, refuse)
    with caplog.at_level(logging.WARNING):
        assert second.get("ada").name == "ada"
        assert second.names() == ["ada"]
    assert "the store is away" in caplog.text
    for call in (lambda: second.get("bob"), lambda: second.add(make_voice("eve"))):
        with pytest.raises(VoiceStoreError, match="try again") as found:
            call()
        assert "://" not in str(found.value)  # reported to clients
    with pytest.raises(VoiceStoreError):
        second.remove("ada")
    assert issubclass(VoiceStoreError, TTSError)
    assert not issubclass(VoiceStoreError, RequestError)


def test_unknown_store_type_raises_integration_error() -> None:
    with pytest.raises(IntegrationError, match="nowhere://x"):
        open_library("nowhere://x/voices")


def test_close_removes_the_copies(url: str) -> None:
    library = open_library(url)
    library.add(make_voice())
    assert library.get("ada").name == "ada"
    folder = library.folder
    assert folder.stat().st_mode & 0o077 == 0
    del library
    assert not folder.exists()
