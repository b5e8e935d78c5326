"""Every module imports without POSIX-only features; the embedded voice speaks and is served.

A child process, forked after the import of torch, imports all packages, then removes what Windows
or macOS lacks and imports `vivace` again. This does not replace a run on those systems.
"""

from __future__ import annotations

import wave
from pathlib import Path

import pytest

from tests.support import fork_server
from tests.support.network import free_port

CHILD = """
import importlib, json, os, pkgutil, signal, socket, sys, threading, time, urllib.request
import asyncio, multiprocessing, subprocess, tempfile  # need the real platform

WINDOWS_MODULES = (
    "fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty", "readline",
)
WINDOWS_SIGNALS = (
    "SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP",
    "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGXCPU", "alarm", "pause", "pthread_kill",
    "pthread_sigmask", "setitimer", "sigwait",
)
LINUX_FUNCTIONS = (
    "memfd_create", "posix_fadvise", "sched_getaffinity", "sched_setaffinity", "pidfd_open",
)
POSIX_FUNCTIONS = (
    "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "WNOHANG", "chown", "fchmod", "fork",
    "forkpty", "getegid", "geteuid", "getgid", "getloadavg", "getpgid", "getuid", "killpg",
    "mkfifo", "nice", "openpty", "pread", "register_at_fork", "setsid", "sysconf", "uname", "wait",
    "waitid",
)


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in WINDOWS_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def become(platform):
    for name in LINUX_FUNCTIONS:
        vars(os).pop(name, None)
    if platform == "win32":
        for name in WINDOWS_MODULES:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, Blocked())
        for name in WINDOWS_SIGNALS:
            vars(signal).pop(name, None)
        for name in POSIX_FUNCTIONS:
            vars(os).pop(name, None)
        asyncio.SelectorEventLoop.add_signal_handler = asyncio.AbstractEventLoop.add_signal_handler
    sys.platform = platform


def import_all():
    import vivace
    from vivace.errors import IntegrationError

    names = [found.name for found in pkgutil.walk_packages(vivace.__path__, "vivace.")]
    imported = []
    for name in names:
        if name.endswith("__main__"):
            continue
        try:
            importlib.import_module(name)
            imported.append(name)
        except IntegrationError:  # the framework is not installed
            pass
        except ModuleNotFoundError as error:
            if error.name not in ("triton", "ray"):
                raise
    return imported


first = import_all()
for name in [name for name in sys.modules if name.partition(".")[0] == "vivace"]:
    del sys.modules[name]
become(sys.argv[1])
assert import_all() == first
print(len(first))

from vivace.cli.main import main

sys.modules["sounddevice"] = None
assert main(["Hello.", "--device", "cpu", "-o", sys.argv[2], "-q"]) == 0
assert main(["doctor", "--json"]) == 0


def request_and_stop(address):
    while True:
        try:
            urllib.request.urlopen(f"{address}/health/ready").close()
            break
        except OSError:
            time.sleep(0.05)
    body = json.dumps({"input": "Hello.", "response_format": "pcm"}).encode()
    request = urllib.request.Request(f"{address}/v1/audio/speech", body)
    request.add_header("Content-Type", "application/json")
    num_bytes.append(len(urllib.request.urlopen(request).read()))
    os.kill(os.getpid(), signal.SIGTERM)


port = int(sys.argv[3])
num_bytes = []
threading.Thread(target=request_and_stop, args=(f"http://127.0.0.1:{port}",), daemon=True).start()
assert main(["serve", "--device", "cpu", "--port", str(port)]) == 0
assert num_bytes[0] > 10_000
"""
DISK = 'DISK = pkgutil.ModuleInfo(None, "vivace.disk", ispkg=False)\n\n\n'


@pytest.mark.parametrize("platform", ["win32", pytest.param("darwin", marks=pytest.mark.ci)])
def test_modules_import_and_speak_on_other_platforms(platform: str, tmp_path: Path) -> None:
    arguments = [platform, str(tmp_path / "hello.wav"), str(free_port())]
    done = fork_server.run(CHILD, *arguments)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 300
    with wave.open(str(tmp_path / "hello.wav")) as file:
        assert any(file.readframes(file.getnframes()))


def test_posix_only_import_is_detected() -> None:
    """Control: without the platform check of `disk.py`, the import fails."""
    code = CHILD.replace("sys.platform = platform", "")
    code = code.replace('pkgutil.walk_packages(vivace.__path__, "vivace.")', "[DISK]")
    code = code.replace("class Blocked:", DISK + "class Blocked:")
    done = fork_server.run(code, "win32", "x.wav")
    assert done.returncode != 0
    assert "No module named 'fcntl'" in done.stderr
