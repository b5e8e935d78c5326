"""Tests of the confinement: each mechanism denies a compromised process its actions."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from vivace.audio.confine import ALLOWED_CALLS, MACHINES, SET_LIMIT, Confinement, build_filter
from vivace.audio.sandbox import Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seccomp and Landlock need Linux")


def landlock_version() -> int:
    return int(ctypes.CDLL(None).syscall(444, None, 0, 1)) if sys.platform == "linux" else 0


HAS_LANDLOCK = landlock_version() > 0
HAS_SECCOMP = platform.machine() in MACHINES and Path("/proc/sys/kernel/seccomp").exists()
needs_landlock = pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")
needs_seccomp = pytest.mark.skipif(
    not HAS_SECCOMP, reason="no seccomp in this kernel, or an unsupported architecture"
)

ACTIONS = {
    "open to read": "open('victim').read()",
    "open to write": "open('made', 'w')",
    "truncate": "os.truncate('victim', 0)",
    "unlink": "os.unlink('victim')",
    "rename": "os.rename('victim', 'moved')",
    "link": "os.link('victim', 'made')",
    "symlink": "os.symlink('victim', 'made')",
    "mkdir": "os.mkdir('made')",
    "rmdir": "os.rmdir('folder')",
    "list": "os.listdir('.')",
    "stat": "os.stat('victim')",
    "chmod": "os.chmod('victim', 0o777)",
    "chdir": "os.chdir('folder')",
    "utime": "os.utime('victim', (1, 1))",
    "signal the parent": "os.kill(os.getppid(), 0)",
    "signal another process": "os.kill(1, 0)",
    "fork": "os.fork() or os._exit(0)",
    "spawn": "subprocess.run(['/bin/true'])",
    "exec": "os.execv('/bin/true', ['true'])",
    "thread": "threading.Thread(target=print).start()",
    "socket": "socket.socket()",
    "socket pair": "socket.socketpair()",
    "pipe": "os.pipe()",
    "memory file": "os.memfd_create('made')",
    "limits of the parent": "resource.prlimit(os.getppid(), resource.RLIMIT_CORE)",
    "trace": "libc('ptrace', 16, os.getppid(), 0, 0)",
    "unshare": "libc('unshare', 0x10000000)",
    "mount": "libc('mount', b'none', b'folder', b'tmpfs', 0, None)",
    "become another user": "os.setuid(os.getuid())",
}
BY_LANDLOCK = {  # actions that Landlock denies without seccomp
    "open to read", "open to write", "truncate", "unlink", "rename", "link", "symlink", "mkdir",
    "rmdir", "list", "exec", "spawn",
}  # fmt: skip
if landlock_version() >= 6:
    BY_LANDLOCK |= {"signal the parent", "signal another process"}
CHILD = """
import ctypes, os, resource, socket, subprocess, sys, threading
sys.path[:] = sys.argv[3:]
from vivace.audio import confine
LIBC = ctypes.CDLL(None, use_errno=True)

def libc(name, *arguments):
    if getattr(LIBC, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)

def skip(*_):
    return 0

layers = sys.argv[1].split("+")
if "limits" not in layers:
    confine._lower = skip
if "landlock" not in layers:
    confine.deny_files = skip
if "seccomp" not in layers:
    confine.deny_calls = skip
if layers != ["nothing"]:
    confine.confine()
try:
    exec(sys.argv[2])
except PermissionError as error:
    os.write(1, b"refused")
except RuntimeError as error:
    os.write(1, b"refused" if "thread" in str(error) else b"broke")
except OSError as error:
    os.write(1, b"refused, " + str(error.errno).encode())
else:
    os.write(1, b"done")
os._exit(0)
"""


def attempt(action: str, layers: str, folder: Path) -> str:
    """The outcome of an action in a process confined by these mechanisms; empty for exec."""
    (folder / "victim").write_text("mine")
    (folder / "folder").mkdir()
    command = [sys.executable, "-I", "-c", CHILD, layers, ACTIONS[action], *filter(None, sys.path)]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, check=True
    ).stdout.decode()


def is_untouched(folder: Path) -> bool:
    return (
        sorted(os.listdir(folder)) == ["folder", "victim"]
        and (folder / "victim").read_text() == "mine"
        and (folder / "victim").stat().st_mode & 0o777 != 0o777
    )


@needs_seccomp
@pytest.mark.parametrize("layers", ["limits+landlock+seccomp", "seccomp"])
@pytest.mark.parametrize("action", ACTIONS)
def test_confined_process_is_denied_action(action: str, layers: str, tmp_path: Path) -> None:
    assert attempt(action, layers, tmp_path).startswith("refused")
    assert is_untouched(tmp_path)


@needs_landlock
@pytest.mark.parametrize("action", sorted(BY_LANDLOCK))
def test_landlock_alone_denies_file_access(action: str, tmp_path: Path) -> None:
    assert attempt(action, "landlock", tmp_path) == "refused"
    assert is_untouched(tmp_path)


@pytest.mark.parametrize(
    "action", ["open to read", "open to write", "list", "socket", "socket pair", "pipe"]
)
def test_limits_alone_deny_file_descriptors(action: str, tmp_path: Path) -> None:
    assert attempt(action, "limits", tmp_path) == f"refused, {errno.EMFILE}"
    assert is_untouched(tmp_path)


# The excluded actions need root.
@pytest.mark.parametrize(
    "action", sorted(ACTIONS.keys() - {"signal another process", "trace", "unshare", "mount"})
)
def test_unconfined_process_can_do_each_action(action: str, tmp_path: Path) -> None:
    assert attempt(action, "nothing", tmp_path) == ("" if action == "exec" else "done")


def test_sandbox_reports_confinement_of_child() -> None:
    with Sandbox() as sandbox:
        assert sandbox.confinement() == Confinement(
            limits=True, memory=True, landlock=landlock_version(), seccomp=HAS_SECCOMP
        )


@pytest.mark.parametrize(
    ("confinement", "words"),
    [
        (Confinement(), "time limit only"),
        (Confinement(limits=True), "resource limits"),
        (
            Confinement(limits=True, memory=True, landlock=7, seccomp=True),
            "seccomp, Landlock 7, resource limits, memory limit",
        ),
    ],
)
def test_confinement_str_lists_active_mechanisms(confinement: Confinement, words: str) -> None:
    assert str(confinement) == words


# -- the seccomp filters of all architectures, interpreted as the kernel does -------------------


def run_filter(code: bytes, machine: int, number: int, first: int = 0) -> bool:
    """Whether a system call is allowed: interprets the BPF instructions in use."""
    data = struct.pack("<IIQ6Q", number, machine, 0, first, 0, 0, 0, 0, 0)
    instructions = list(struct.iter_unpack("<HBBI", code))
    place = held = 0
    while True:
        operation, then, otherwise, value = instructions[place]
        place += 1
        if operation == 0x20:
            held = struct.unpack_from("<I", data, value)[0]
        elif operation == 0x15:
            place += then if held == value else otherwise
        else:
            assert operation == 0x06
            return bool(value == 0x7FFF0000)


@pytest.mark.parametrize("name", list(MACHINES))
def test_filter_allows_listed_calls_only(name: str) -> None:
    column, (machine, _) = list(MACHINES).index(name), MACHINES[name]
    code = build_filter(machine, column)
    allowed = {number for number in range(1_000) if run_filter(code, machine, number)}
    assert allowed == {numbers[column] for numbers in ALLOWED_CALLS.values()} | {SET_LIMIT[column]}
    for first in (1, 2**31, 2**32, 2**63):
        assert not run_filter(code, machine, SET_LIMIT[column], first)
    assert not run_filter(code, machine, ALLOWED_CALLS["read"][column] | 0x4000_0000)  # x32
    assert not run_filter(code, 0x4000_0003, ALLOWED_CALLS["read"][column])  # 32 bits


@pytest.mark.parametrize("name", list(MACHINES))
def test_system_call_numbers_equal_kernel_headers(name: str) -> None:
    headers = {"x86_64": "asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}
    column, path = list(MACHINES).index(name), Path("/usr/include", headers[name])
    paths = [path, *Path("/usr/include").glob(f"*/{headers[name]}")]
    text = "".join(path.read_text() for path in paths if path.exists())
    if f"__NR_read {ALLOWED_CALLS['read'][column]}\n" not in text:
        pytest.skip(f"the kernel's headers for {name} are not installed")
    for call, numbers in {**ALLOWED_CALLS, "prlimit64": SET_LIMIT}.items():
        assert any(
            line.split()[1:3] in ([f"__NR_{call}", str(numbers[column])],
                                  [f"__NR3264_{call}", str(numbers[column])])
            for line in text.splitlines() if line.startswith("#define __NR")
        ), call  # fmt: skip


def test_docs_state_number_of_allowed_calls() -> None:
    page = (Path(__file__).parents[2] / "docs" / "audio.md").read_text(encoding="utf-8")
    assert f"lists the {len(ALLOWED_CALLS) + 1} system\ncalls" in page
