"""Compiles the C++ sources of `native/` with the system compiler and loads the library.

The name of a cached library has the hashes of sources with flags, of the compiler and of the
library itself: loading a damaged file would crash the process. Where no compiler is found, such as
in the last stage of a container image, or the compiler fails, any cached library of the same
sources is used. A library inside the package, as a platform's wheel has it, is used first if it was
built from the same sources.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from threading import Event

from vivace.backends.cpu.compiler import find_compiler
from vivace.device.threads import count_processors
from vivace.disk import FileLock, user_cache, write_whole
from vivace.errors import BackendUnavailableError

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "native"
PREBUILT = SOURCES / "vivace_cpu.so"
TIMEOUT_S = 600.0  # of a whole build, which takes up to a minute of CPU time
POLL_S = 0.2  # between looks at a compiler
LIBRARY_BYTES = 1 << 20  # at most
FLAGS = (
    *("-std=c++17", "-O2", "-fPIC", "-pthread", "-fvisibility=hidden"),
    *("-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra"),
)
FAST_FLAGS = ("-O3",)  # of files with kernels, whose loops take the time
LINK_FLAGS = ("-shared", "-pthread")
AVX512F = (
    *("-march=skylake-avx512", "-mprefer-vector-width=512"),
    *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),  # in the compiler's own header
)
AVX512 = (*AVX512F, "-mavx512vnni")
# Flags of files for one instruction set, by the last word of the file's name. The file checks the
# compiler's macros: if the compiler rejects the flags, it is compiled without them and is empty.
TARGET_FLAGS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "avx2": ("-mavx2", "-mfma", "-mf16c"),
        "avx512f": AVX512F,
        "avx512": AVX512,
        "amx": (*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    },
    "aarch64": {
        "dotprod": ("-march=armv8.2-a+dotprod+fp16",),
        "half": ("-march=armv8.2-a+fp16",),
        "i8mm": ("-march=armv8.2-a+dotprod+fp16+i8mm",),
    },
}
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class BuildError(BackendUnavailableError):
    """There is a compiler, and it failed."""


@cache
def load_library() -> ctypes.CDLL:
    """The compiled library. Raises `BackendUnavailableError` if it cannot be built."""
    reason = _unsupported()
    if reason is not None:
        raise BackendUnavailableError(reason)
    return _load_prebuilt() or _load_built(TIMEOUT_S)


def find_refusal() -> str | None:
    """Why the library cannot be used on this machine, or None. Logs the reason of a failed build
    once."""
    return _refusal()


@cache
def _refusal() -> str | None:
    try:
        load_library()
    except BackendUnavailableError as error:
        level = logging.WARNING if isinstance(error, BuildError) else logging.INFO
        log.log(level, "the C++ kernels are not available: %s", error)
        return str(error)
    return None


def source_hash() -> str:
    """Identifies the sources and flags; the library reports the hash that it was built from."""
    digest = hashlib.sha256(repr((FLAGS, FAST_FLAGS, LINK_FLAGS, TARGET_FLAGS)).encode())
    for path in _files("*.h", "*.cpp"):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def build_library(compiler: str, timeout_s: float, machine: str = "") -> bytes:
    """Compile all sources and return the content of the library. The compiler is a command; it may
    have options."""
    deadline = time.monotonic() + timeout_s
    command = shlex.split(compiler)
    targets = TARGET_FLAGS.get(machine or machine_name(), {})
    define = f'-DVIVACE_SOURCE_HASH="{source_hash()}"'
    with tempfile.TemporaryDirectory(prefix="vivace-build-") as name:
        jobs, objects = [], []
        for source in _files("*.cpp"):
            part, _, target_name = source.stem.rpartition("_")
            target = targets.get(target_name, ())
            objects.append(str(Path(name, f"{source.stem}.o")))
            fast = FAST_FLAGS if part == "kernels" or "codec" in source.stem else ()
            base = [*command, *FLAGS, *fast, define, "-c", str(source), "-o", objects[-1]]
            jobs.append([[*base, *target], base] if target else [base])
        _run_all(jobs, deadline)
        library = Path(name, "library.so")
        _run_all([[[*command, *LINK_FLAGS, *objects, "-o", str(library)]]], deadline)
        return library.read_bytes()


def machine_name() -> str:
    name = platform.machine().lower()
    return MACHINES.get(name, name)


def _files(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in SOURCES.glob(pattern))


def _unsupported() -> str | None:
    if sys.platform == "win32":
        return "the C++ kernels are not written for Windows"
    if sys.byteorder != "little":
        return "the C++ kernels need a little-endian machine"
    return None


def _load_prebuilt() -> ctypes.CDLL | None:
    if not PREBUILT.is_file():
        return None
    try:
        return _open(PREBUILT)
    except OSError as error:
        log.info("the library of the package is not used: %s", error)
        return None


def _load_built(timeout_s: float) -> ctypes.CDLL:
    try:
        folder = user_cache() / "kernels"
    except RuntimeError as error:  # the user has no home folder
        find_compiler()  # without one, that is the reason
        raise BuildError(f"there is no cache folder; set XDG_CACHE_HOME: {error}") from error
    try:
        return _build_once(folder, find_compiler(), timeout_s)
    except BackendUnavailableError as error:
        if (library := _load_cached(folder)) is None:
            raise
        log.info("a library in the cache is used: %s", error)
        return library


def _build_once(folder: Path, compiler: str, timeout_s: float) -> ctypes.CDLL:
    """The library of this compiler from the cache. One process compiles it, and others wait."""
    prefix = f"{_file_prefix()}{_recipe_hash(compiler)}-"
    try:
        for path in _intact_files(folder, prefix):
            return _open(path)
        _check_writable(folder)  # before a compilation whose result would be lost
        with FileLock(folder / f".{prefix}lock") as lock:
            if not lock.take():
                log.warning("waiting for another process, which compiles the C++ kernels")
                lock.wait(timeout_s)  # without it, the process is suspended: compile beside it
            for path in _intact_files(folder, prefix):
                return _open(path)
            return _open(_compile(folder, prefix, compiler, timeout_s))
    except OSError as error:
        raise BuildError(
            f"the library cannot be written to {folder} or loaded: {error}; XDG_CACHE_HOME names "
            "another folder"
        ) from error


def _compile(folder: Path, prefix: str, compiler: str, timeout_s: float) -> Path:
    started = time.monotonic()
    log.warning("compiling the C++ kernels for this processor, once")
    content = build_library(compiler, timeout_s)
    path = folder / f"{prefix}{_content_hash(content)}.so"
    write_whole(path, content, replace=True)
    log.info("built %s in %.1f s", path, time.monotonic() - started)
    return path


def _load_cached(folder: Path) -> ctypes.CDLL | None:
    """A library that any compiler has built from these sources, or None."""
    for path in _intact_files(folder, _file_prefix()):
        try:
            return _open(path)
        except OSError as error:
            log.info("%s is not used: %s", path, error)
    return None


def _intact_files(folder: Path, prefix: str) -> Iterator[Path]:
    """Libraries whose names begin like this and end with the hash of their content."""
    for path in sorted(folder.glob(f"{prefix}*.so")):
        try:
            is_intact = path.stem.rpartition("-")[2] == _content_hash(path.read_bytes())
        except OSError as error:
            log.info("%s cannot be read: %s", path, error)
            continue
        if is_intact:
            yield path
        else:
            log.info("%s is damaged", path)


def _content_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _file_prefix() -> str:
    return f"cpu-{source_hash()[:16]}-"


def _check_writable(folder: Path) -> None:
    """Create the folder. Raises OSError if a library cannot be written to it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(LIBRARY_BYTES))


def _open(path: Path) -> ctypes.CDLL:
    """Raises OSError for a library of other sources or another machine."""
    library = ctypes.CDLL(str(path))
    try:
        identify = library.vivace_source_hash
    except AttributeError as error:
        raise OSError(f"{path} is not a library of vivace") from error
    identify.restype = ctypes.c_char_p
    if identify() != source_hash().encode():
        raise OSError(f"{path} was built from other sources")
    return library


def _recipe_hash(compiler: str) -> str:
    """Hash of machine and compiler. The sizes and times of programs stand for their versions:
    starting the compiler would delay every start."""
    recipe: list[object] = [machine_name(), sys.platform]
    for word in shlex.split(compiler):  # the compiler may be the second word, after ccache
        real = os.path.realpath(shutil.which(word) or word)
        info = os.stat(real) if os.path.isfile(real) else None
        recipe.append((real, info.st_size, info.st_mtime_ns) if info else word)
    return hashlib.sha256(repr(recipe).encode()).hexdigest()[:16]


def _run_all(jobs: Sequence[Sequence[Sequence[str]]], deadline: float) -> None:
    """Run as many jobs at once as there are processors: a compiler needs up to 250 MB of memory. A
    job is a list of commands; the next is tried if one fails."""
    stop = Event()
    with ThreadPoolExecutor(count_processors(), thread_name_prefix="vivace-build") as pool:
        running = [pool.submit(_run, job, deadline, stop) for job in jobs]
        try:
            for job in wait(running, return_when=FIRST_EXCEPTION).done:
                job.result()
        finally:  # also after an interrupt
            stop.set()
            pool.shutdown(cancel_futures=True)


def _run(job: Sequence[Sequence[str]], deadline: float, stop: Event) -> None:
    for index, command in enumerate(job, 1):
        code, output = _run_command(command, deadline, stop)
        if code == 0:
            return
        if index < len(job):
            log.info("compiled without its instruction set: %s", output[-500:])
    reason = output[-2000:].strip() or f"exit status {code}"
    raise BuildError(f"{job[0][0]} failed: {reason}")


def _run_command(command: Sequence[str], deadline: float, stop: Event) -> tuple[int, str]:
    """Exit status and output. The command is killed after the deadline, or when `stop` is set."""
    with _start(command) as process:
        while True:
            try:
                output, _ = process.communicate(timeout=POLL_S)
                return process.returncode, output
            except subprocess.TimeoutExpired:
                if stop.is_set():
                    process.kill()
                    raise BuildError(f"{command[0]} was stopped") from None
                if time.monotonic() > deadline:
                    process.kill()
                    raise BuildError(
                        "compiling the C++ kernels took too long; the next start tries again"
                    ) from None


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        raise BackendUnavailableError(f"{command[0]} cannot be started: {error}") from error
