"""Compiles the C++ sources of `native/` with the system compiler and loads the library.

The library is cached by hashes of sources with flags, and of the compiler. Where no compiler is
found, such as in the last stage of a container image, or the compiler fails, any cached library of
the same sources is used. A library inside the package, as a platform's wheel has it, is used first
if it was built from the same sources.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from vivace.disk import user_cache, write_whole
from vivace.errors import BackendUnavailableError

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "native"
PREBUILT = SOURCES / "vivace_cpu.so"
TIMEOUT_S = 180.0  # of a whole build, which takes 10 s on two idle cores
COMPILERS = ("c++", "g++", "clang++")
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


def build_library(compiler: str, path: Path, timeout_s: float, machine: str = "") -> None:
    """Compile all sources in parallel and write the library to `path`."""
    deadline = time.monotonic() + timeout_s
    targets = TARGET_FLAGS.get(machine or machine_name(), {})
    define = f'-DVIVACE_SOURCE_HASH="{source_hash()}"'
    with tempfile.TemporaryDirectory(prefix="vivace-build-") as name:
        commands, objects = [], []
        for source in _files("*.cpp"):
            part, _, target_name = source.stem.rpartition("_")
            target = targets.get(target_name, ())
            objects.append(str(Path(name, f"{source.stem}.o")))
            fast = FAST_FLAGS if part == "kernels" or "codec" in source.stem else ()
            base = [compiler, *FLAGS, *fast, define, "-c", str(source), "-o", objects[-1]]
            commands.append([[*base, *target], base] if target else [base])
        _run_all(commands, deadline)
        library = Path(name, "library.so")
        _run_all([[[compiler, *LINK_FLAGS, *objects, "-o", str(library)]]], deadline)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, library.read_bytes(), replace=True)


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
        _find_compiler()  # without one, that is the reason
        raise BuildError(f"there is no cache folder; set XDG_CACHE_HOME: {error}") from error
    try:
        return _build_once(folder, _find_compiler(), timeout_s)
    except BackendUnavailableError as error:
        if (library := _load_cached(folder)) is None:
            raise
        log.info("a library in the cache is used: %s", error)
        return library


def _build_once(folder: Path, compiler: str, timeout_s: float) -> ctypes.CDLL:
    path = folder / f"{_file_prefix()}{_recipe_hash(compiler)}.so"
    try:
        if path.is_file():
            try:
                return _open(path)
            except OSError as error:
                log.info("%s is built again: %s", path, error)
        _check_writable(path.parent)  # before a compilation whose result would be lost
        started = time.monotonic()
        log.warning("compiling the C++ kernels for this processor, once")
        build_library(compiler, path, timeout_s)
        log.info("built %s in %.1f s", path, time.monotonic() - started)
        return _open(path)
    except OSError as error:
        raise BuildError(
            f"{path} cannot be written or loaded: {error}; XDG_CACHE_HOME names another folder"
        ) from error


def _load_cached(folder: Path) -> ctypes.CDLL | None:
    """A library that any compiler has built from these sources, or None."""
    for path in sorted(folder.glob(f"{_file_prefix()}*.so")):
        try:
            return _open(path)
        except OSError as error:
            log.info("%s is not used: %s", path, error)
    return None


def _file_prefix() -> str:
    return f"cpu-{source_hash()[:16]}-"


def _check_writable(folder: Path) -> None:
    """Create the folder. Raises OSError if files cannot be created in it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryFile(dir=folder):
        pass


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


def _find_compiler() -> str:
    named = os.environ.get("CXX")
    for name in (named,) if named else COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return found
    if named:
        raise BackendUnavailableError(f"CXX is {named!r}, which is not a program")
    raise BackendUnavailableError(
        "there is no C++ compiler (c++, g++ or clang++); install one, for example g++"
    )


def _recipe_hash(compiler: str) -> str:
    """Hash of machine and compiler. The compiler's size and time stand for its version:
    starting the compiler would delay every start."""
    real = os.path.realpath(compiler)
    info = os.stat(real)
    recipe = (machine_name(), sys.platform, real, info.st_size, info.st_mtime_ns)
    return hashlib.sha256(repr(recipe).encode()).hexdigest()[:16]


def _run_all(jobs: Sequence[Sequence[Sequence[str]]], deadline: float) -> None:
    """Run jobs in parallel. A job is a list of commands; the next is tried if one fails."""
    running = [(job, _start(job[0])) for job in jobs]
    try:
        for job, process in running:
            output = _wait(process, deadline)
            if process.returncode and len(job) > 1:
                log.info("compiled without its instruction set: %s", output[-500:])
                process = _start(job[1])
                output = _wait(process, deadline)
            if process.returncode:
                raise BuildError(f"{job[0][0]} failed: {output[-2000:].strip()}")
    finally:
        for _, process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


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


def _wait(process: subprocess.Popen[str], deadline: float) -> str:
    try:
        output, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise BuildError(
            "compiling the C++ kernels took too long; the next start tries again"
        ) from None
    return output
