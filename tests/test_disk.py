"""`AtomicFile` and `sweep`: complete files, reserved names, removal of leftover files."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vivace import disk
from vivace.disk import (
    AtomicFile,
    FileLock,
    NameInUseError,
    numbered,
    sweep,
    user_cache,
    why_not_regular,
    write_whole,
)

HOLD = """
import sys, time
from pathlib import Path
from vivace.disk import AtomicFile
file = AtomicFile(Path(sys.argv[1]), replace=sys.argv[2] == "replace")
file.file.write(b"half")
file.file.flush()
print("ready", flush=True)
time.sleep(600)
"""
EXIT_AT = """
import os, sys
from pathlib import Path
from vivace.disk import write_whole
def refuse(*_):
    raise OSError(1, "no hard links")
if sys.argv[2] == "rename":
    os.link = refuse
setattr(os, sys.argv[2], lambda *_: os._exit(9))
write_whole(Path(sys.argv[1]), b"whole", replace=sys.argv[2] == "replace")
"""


class Holder:
    """Start a process that writes `path` until it is killed."""

    def __init__(self, path: Path, how: str = "new") -> None:
        command = [sys.executable, "-c", HOLD, str(path), how]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def hidden(folder: Path) -> list[Path]:
    return list(folder.glob(".vivace-*.tmp"))


# --- Names are claimed ------------------------------------------------------------------------


def test_first_process_reserves_a_name(tmp_path: Path) -> None:
    path = tmp_path / "a"
    first = AtomicFile(path, replace=False)
    with pytest.raises(NameInUseError, match="another process is writing it"):
        AtomicFile(path, replace=False)
    first.file.write(b"first")
    assert not path.exists()
    first.commit()
    assert path.read_bytes() == b"first"
    with pytest.raises(FileExistsError, match="it exists"):
        AtomicFile(path, replace=False)
    assert list(tmp_path.iterdir()) == [path]


def test_discard_frees_the_name(tmp_path: Path) -> None:
    AtomicFile(tmp_path / "a", replace=False).discard()
    write_whole(tmp_path / "a", b"x", replace=False)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_replace_does_not_reserve_the_name(tmp_path: Path) -> None:
    files = [AtomicFile(tmp_path / "a", replace=True) for _ in range(3)]
    for number, file in enumerate(files):
        file.file.write(b"%d" % number)
        file.commit()
    assert (tmp_path / "a").read_bytes() == b"2"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_commit_does_not_replace_a_file_created_meanwhile(tmp_path: Path) -> None:
    file = AtomicFile(tmp_path / "a", replace=False)
    file.file.write(b"ours")
    (tmp_path / "a").write_bytes(b"theirs")
    with pytest.raises(FileExistsError):
        file.commit()
    file.commit(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == b"theirs"
    assert (tmp_path / "b").read_bytes() == b"ours"


def test_commit_without_hard_links_does_not_replace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", refuse)
    write_whole(tmp_path / "a", b"first", replace=False)
    file = AtomicFile(tmp_path / "b", replace=False)
    (tmp_path / "b").write_bytes(b"theirs")
    with pytest.raises(FileExistsError):
        file.commit()
    file.discard()
    assert (tmp_path / "b").read_bytes() == b"theirs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_numbered_paths_keep_the_ending() -> None:
    names = numbered(Path("a.b.wav"))
    assert [next(names).name for _ in range(3)] == ["a.b.wav", "a.b-2.wav", "a.b-3.wav"]


# --- Files of killed processes ----------------------------------------------------------------


def test_name_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with Holder(path) as holder:
        with pytest.raises(NameInUseError):
            write_whole(path, b"mine", replace=False)
        holder.kill()
        assert len(hidden(tmp_path)) == 1
    write_whole(path, b"mine", replace=False)
    assert path.read_bytes() == b"mine"
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("how", ["new", "replace"])
def test_sweep_removes_only_files_of_ended_processes(tmp_path: Path, how: str) -> None:
    (tmp_path / ".vivace-notes.tmp").write_bytes(b"another program's")
    (tmp_path / ".vivace-0123456789abcdef.tmp").symlink_to(tmp_path / ".vivace-notes.tmp")
    with Holder(tmp_path / "running", how) as running:
        Holder(tmp_path / "ended", how).kill()
        assert len(hidden(tmp_path)) == 4
        sweep(tmp_path)
        assert len(hidden(tmp_path)) == 3
        running.process.poll()
        assert running.process.returncode is None
    sweep(tmp_path)
    assert sorted(path.name for path in hidden(tmp_path)) == [
        ".vivace-0123456789abcdef.tmp",
        ".vivace-notes.tmp",
    ]


def test_sweep_of_a_missing_folder_does_nothing(tmp_path: Path) -> None:
    sweep(tmp_path / "absent")


@pytest.mark.parametrize("call", ["link", "rename", "replace"])
def test_kill_before_commit_leaves_no_file(tmp_path: Path, call: str) -> None:
    path = tmp_path / "a"
    if call == "replace":
        path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", EXIT_AT, str(path), call], check=False)
    assert done.returncode == 9
    assert path.exists() == (call == "replace")
    write_whole(path, b"new", replace=call == "replace")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_sweep_between_creation_and_lock_is_tolerated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate a process that removes the file between creation and lock."""
    open_file, swept = os.open, list[str]()

    def open_and_sweep(path: Any, flags: int, *rest: Any) -> int:
        descriptor = open_file(path, flags, *rest)
        if flags & os.O_CREAT and not swept:
            swept.append(path)
            sweep(tmp_path)
            assert hidden(tmp_path) == []
        return descriptor

    monkeypatch.setattr(os, "open", open_and_sweep)
    write_whole(tmp_path / "a", b"x", replace=False)
    assert swept
    assert (tmp_path / "a").read_bytes() == b"x"


# --- Modes and kinds --------------------------------------------------------------------------


def test_replaced_file_keeps_its_mode_and_new_file_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        for mode in (0o600, 0o664, 0o444):
            path = tmp_path / oct(mode)
            path.touch()
            path.chmod(mode)
            write_whole(path, b"x", replace=True)
            assert stat.S_IMODE(path.stat().st_mode) == mode
        write_whole(tmp_path / "new", b"x", replace=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_why_not_regular_names_the_type(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    assert why_not_regular(tmp_path / "file") is None
    assert why_not_regular(tmp_path) == "it is a folder, not a file"
    assert why_not_regular(tmp_path / "pipe") == "it is a pipe, not a file"
    assert why_not_regular(Path("/dev/null")) == "it is a device, not a file"
    assert why_not_regular(tmp_path / "absent") == "there is no such file"


def test_relative_path_is_resolved_at_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = AtomicFile(Path("a"), replace=False)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    file.commit()
    assert (tmp_path / "a").exists()


# One process imports the package and forks the ten: ten imports would take five seconds.
TAKE = """
import os, sys
from pathlib import Path
from vivace.disk import AtomicFile, numbered
folder = Path(sys.argv[1])
start, hold = os.pipe()


def take(number):
    names = []
    os.close(hold)
    os.read(start, 1)  # returns when the first process closes its end
    for _ in range(20):
        for path in numbered(folder / "out" / "speech.wav"):
            try:
                file = AtomicFile(path, replace=False)
            except FileExistsError:
                continue
            file.file.write(str(number).encode())
            file.commit()
            names.append(path.name)
            break
    (folder / f"names-{number}").write_text(" ".join(names))


for number in range(10):
    if os.fork() == 0:
        take(number)
        os._exit(0)
os.close(hold)
for _ in range(10):
    assert os.wait()[1] == 0
"""


@pytest.mark.ci
def test_ten_concurrent_processes_lose_no_file(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-c", TAKE, str(tmp_path)]
    subprocess.run(command, check=True, timeout=300)
    outputs = [(tmp_path / f"names-{number}").read_text().split() for number in range(10)]
    for number, names in enumerate(outputs):
        assert len(names) == 20
        for name in names:
            assert (tmp_path / "out" / name).read_text() == str(number)
    assert len(list((tmp_path / "out").iterdir())) == 200


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_link_to_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    link = tmp_path / "stdout"
    link.symlink_to("pipe")
    with pytest.raises(OSError, match="is not a file"):
        write_whole(link, b"", replace=True)
    assert link.is_symlink()
    (tmp_path / "file").write_bytes(b"kept")
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", b"new", replace=True)
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"kept"


def test_relative_cache_folder_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for named in ("relative", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", named)
        assert user_cache() == tmp_path / ".cache" / "vivace"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert user_cache() == tmp_path / "cache" / "vivace"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
def test_lock_excludes_others_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path) as first:
        assert first.take()
        with FileLock(path) as second:
            assert not second.take()
            assert not second.wait(0.0)
        assert path.exists()  # the second did not hold it
    assert not path.exists()
    with FileLock(path) as third:
        assert third.wait(0.0)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
def test_lock_that_was_opened_before_its_release_is_not_taken(tmp_path: Path) -> None:
    """Its file has no name any more: another process would lock a new file."""
    path = tmp_path / "lock"
    real_lock = disk._lock
    with FileLock(path) as first, FileLock(path) as second:
        assert first.take()

        def release_first(descriptor: int) -> bool:
            first.release()
            return real_lock(descriptor)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(disk, "_lock", release_first)
            assert not second.take()
        assert second.take()


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = (
        "import sys; from pathlib import Path; from vivace.disk import FileLock\n"
        "lock = FileLock(Path(sys.argv[1])); print(lock.take(), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process, FileLock(path) as lock:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        assert not lock.take()
        process.kill()
        assert lock.wait(60.0)
