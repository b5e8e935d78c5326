"""Compiling and loading the C++ library: cache, prebuilt library, failures."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from vivace.backends.cpu import build
from vivace.backends.cpu.compiler import find_compiler
from vivace.disk import FileLock, user_cache
from vivace.errors import BackendUnavailableError

BUILD_TIMEOUT_S = 300.0  # a busy machine compiles slowly
NATIVE = build.SOURCES
SOURCE = '#include "api.h"\nVIVACE_API const char* vivace_source_hash()'
GOOD = SOURCE + " { return VIVACE_SOURCE_HASH; }\n"

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")

Load = Callable[[], ctypes.CDLL]


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small set of sources and an empty cache."""
    folder = tmp_path / "native"
    folder.mkdir()
    shutil.copy(build.SOURCES / "api.h", folder)
    (folder / "library.cpp").write_text(GOOD, "utf-8")
    monkeypatch.setattr(build, "SOURCES", folder)
    monkeypatch.setattr(build, "PREBUILT", folder / "vivace_cpu.so")
    monkeypatch.setattr(build, "TIMEOUT_S", BUILD_TIMEOUT_S)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    return folder


@pytest.fixture
def load(sources: Path) -> Load:
    return build.load_library.__wrapped__  # without the process's result


def cached() -> list[Path]:
    return sorted((user_cache() / "kernels").glob("*.so"))


def test_library_is_compiled_once(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    [path] = cached()
    monkeypatch.setattr(build, "build_library", None)  # a second call would fail
    load()
    assert cached() == [path]


def test_changed_source_is_compiled_again(load: Load, sources: Path) -> None:
    load()
    (sources / "more.cpp").write_text('#include "api.h"\nVIVACE_API int more() { return 7; }\n')
    assert load().more() == 7
    assert len(cached()) == 2


def test_changed_compiler_is_used(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    wrapper = write_program(tmp_path / "my-compiler", f'exec {shutil.which("c++")} "$@"\n')
    monkeypatch.setenv("CXX", str(wrapper))
    load()
    assert len(cached()) == 2


def write_program(path: Path, commands: str) -> Path:
    """Write a shell script that can be run."""
    path.write_text(f"#!/bin/sh\n{commands}")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9])
def test_truncated_cached_library_is_compiled_again(load: Load, share: float) -> None:
    """Loading it would end the process with a bus error."""
    load()
    [path] = cached()
    content = path.read_bytes()
    path.unlink()  # the process has mapped it
    path.write_bytes(content[: int(share * len(content))])
    load()
    assert cached() == [path]
    assert path.read_bytes() == content


def test_changed_cached_library_is_not_loaded(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    [path] = cached()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()  # the process has mapped it
    path.write_bytes(content)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BackendUnavailableError, match=r"no C\+\+ compiler"):
        load()


def test_library_that_cannot_be_loaded_is_compiled_once(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is mounted with noexec refuses the library at every start."""

    def fail(path: Path) -> ctypes.CDLL:
        raise OSError("failed to map segment from shared object")

    load()
    monkeypatch.setattr(build, "_open", fail)
    monkeypatch.setattr(build, "build_library", None)  # a second call would raise TypeError
    with pytest.raises(build.BuildError, match=r"failed to map segment.*XDG_CACHE_HOME"):
        load()


def test_prebuilt_library_is_used_without_a_compiler(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.PREBUILT.write_bytes(build.build_library("c++", BUILD_TIMEOUT_S))
    monkeypatch.setenv("PATH", "")
    load()
    assert not cached()


@pytest.mark.parametrize("variables", [{"PATH": ""}, {"PATH": "", "CXX": "no-such-compiler"}])
def test_cached_library_is_used_without_a_compiler(
    load: Load, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    load()
    [path] = cached()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert load()._name == str(path)
    damaged = path.with_name(f"{build._file_prefix()}0.so")  # sorted first
    damaged.write_bytes(b"")
    assert load()._name == str(path)


def test_cached_library_is_used_if_the_compiler_fails(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load()
    [path] = cached()
    broken = write_program(tmp_path / "broken-compiler", "echo no headers; exit 1\n")
    monkeypatch.setenv("CXX", str(broken))
    with caplog.at_level(logging.INFO):
        assert load()._name == str(path)
    assert "no headers" in caplog.text


def test_cached_library_of_other_sources_is_ignored_without_a_compiler(
    load: Load, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    [path] = cached()
    (sources / "more.cpp").write_text('#include "api.h"\nVIVACE_API int more() { return 7; }\n')
    content_hash = path.stem.rpartition("-")[2]
    copy = path.with_name(f"{build._file_prefix()}copied-{content_hash}.so")
    shutil.copy(path, copy)  # reports its sources
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BackendUnavailableError, match=r"no C\+\+ compiler"):
        load()


def test_prebuilt_library_of_other_sources_is_ignored(load: Load, sources: Path) -> None:
    build.PREBUILT.write_bytes(build.build_library("c++", BUILD_TIMEOUT_S))
    (sources / "more.cpp").write_text('#include "api.h"\nVIVACE_API int more() { return 7; }\n')
    assert load().more() == 7


def test_missing_compiler_is_named(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BackendUnavailableError, match=r"no C\+\+ compiler.*install"):
        load()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BackendUnavailableError, match="CXX is 'no-such-compiler'"):
        load()


def test_compiler_may_have_a_launcher_and_options(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = write_program(tmp_path / "a launcher", 'exec "$@"\n')
    monkeypatch.setenv("CXX", f"'{launcher}' c++ -DEXTRA=7")
    (tmp_path / "native" / "extra.cpp").write_text(
        '#include "api.h"\nVIVACE_API int extra() { return EXTRA; }'
    )
    assert load().extra() == 7
    monkeypatch.setenv("CXX", f"'{launcher}' c++ -DEXTRA=8")
    load()
    assert len(cached()) == 2


@pytest.mark.parametrize("command", ["no-such-compiler -O2", "'c++", "  ", "/"])
def test_compiler_that_is_no_program_is_named(
    load: Load, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("CXX", command)
    with pytest.raises(BackendUnavailableError, match="which is not a program"):
        load()


def test_compilers_run_one_per_processor(
    load: Load, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(3):
        (sources / f"more_{index}.cpp").write_text("")
    busy, overlap = tmp_path / "busy", tmp_path / "overlap"
    wrapper = tmp_path / "compiler"
    wrapper.write_text(
        f'#!/bin/sh\nmkdir {busy} || touch {overlap}\nc++ "$@"; code=$?\nrmdir {busy}; exit $code\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    monkeypatch.setattr(build, "count_processors", lambda: 1)
    load()
    assert not overlap.exists()


def test_compiler_error_is_reported_and_nothing_is_cached(load: Load, sources: Path) -> None:
    (sources / "broken.cpp").write_text("int broken() { return nowhere; }\n", "utf-8")
    with pytest.raises(BackendUnavailableError, match="nowhere"):
        load()
    assert not cached()


def test_rejected_instruction_set_leaves_the_other_files(
    load: Load, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {build.machine_name(): {"future": ("-mno-such-instructions",)}}
    monkeypatch.setattr(build, "TARGET_FLAGS", flags)
    (sources / "extra_future.cpp").write_text('#include "api.h"\nVIVACE_API int f() { return 5; }')
    assert load().f() == 5


def test_slow_compiler_is_stopped_at_the_timeout(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = write_program(tmp_path / "slow-compiler", "exec sleep 600\n")
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setattr(build, "TIMEOUT_S", 0.2)
    with pytest.raises(BackendUnavailableError, match="too long"):
        load()


def test_failure_stops_the_other_compilers(
    load: Load, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other compiler of this test would run for ten minutes."""
    mixed = write_program(
        tmp_path / "mixed-compiler", 'case "$*" in *broken.cpp*) exit 3 ;; esac\nexec sleep 600\n'
    )
    for name in ("a_slow.cpp", "broken.cpp"):  # they start together
        (sources / name).write_text("")
    monkeypatch.setenv("CXX", str(mixed))
    monkeypatch.setattr(build, "count_processors", lambda: 2)
    with pytest.raises(build.BuildError, match="mixed-compiler failed: exit status 3"):
        load()


def test_unwritable_cache_is_reported(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(BackendUnavailableError, match=r"cannot be written.*XDG_CACHE_HOME"):
        load()


@pytest.fixture
def fresh_refusal() -> Iterator[None]:
    """Forgets the process's own library for a test."""
    build._refusal.cache_clear()
    build.load_library.cache_clear()
    yield
    build._refusal.cache_clear()
    build.load_library.cache_clear()


def test_unwritable_cache_is_found_before_the_compilation(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("not a folder")
    monkeypatch.setattr(build, "build_library", None)  # a call would raise TypeError
    with pytest.raises(build.BuildError, match=r"cannot be written.*XDG_CACHE_HOME"):
        load()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk_is_found_before_the_compilation(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = partial(Path.open, Path("/dev/full"), "wb")
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: full())
    monkeypatch.setattr(build, "build_library", None)  # a call would raise TypeError
    with pytest.raises(build.BuildError, match="No space left"):
        load()


def test_missing_home_folder_is_reported(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", fail)
    with pytest.raises(build.BuildError, match="set XDG_CACHE_HOME"):
        load()


def test_failed_build_is_logged_once(
    load: Load, sources: Path, fresh_refusal: None, caplog: pytest.LogCaptureFixture
) -> None:
    (sources / "broken.cpp").write_text("int broken() { return nowhere; }\n", "utf-8")
    with caplog.at_level(logging.INFO):
        reasons = [build.find_refusal() for _ in range(3)]
    assert "nowhere" in (reasons[0] or "")
    assert reasons == reasons[:1] * 3
    [_, failure] = caplog.messages  # the first one announces the build
    assert "nowhere" in failure


def test_missing_compiler_is_no_warning(
    load: Load,
    fresh_refusal: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PATH", "")
    with caplog.at_level(logging.INFO):
        assert "no C++ compiler" in (build.find_refusal() or "")
    assert [record.levelname for record in caplog.records] == ["INFO"]


@dataclass(frozen=True)
class SlowBuilds:
    """Processes that build the library with a compiler that waits until it is released."""

    sources: Path
    compiler: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @classmethod
    def make(cls, folder: Path, sources: Path) -> SlowBuilds:
        wait = f"while ! test -e {folder}/released; do test -d {folder} || exit 1; sleep 0.05; done"
        record = f'echo "$@" >> {folder}/calls'
        script = f'{record}\n{wait}\nexec {shutil.which("c++")} "$@"\n'
        return cls(sources, write_program(folder / "slow-compiler", script))

    def start(self) -> subprocess.Popen[str]:
        script = (
            "import sys; from pathlib import Path; from vivace.backends.cpu import build\n"
            "build.SOURCES = Path(sys.argv[1]); build.PREBUILT = build.SOURCES / 'none'\n"
            f"build.TIMEOUT_S = {BUILD_TIMEOUT_S}\n"
            "build.load_library()\n"
        )
        command = [sys.executable, "-c", script, str(self.sources)]
        variables = {**os.environ, "CXX": str(self.compiler)}
        process = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def release(self) -> None:
        self.compiler.with_name("released").touch()

    def num_calls(self) -> int:
        return len(self.compiler.with_name("calls").read_text().splitlines())


@pytest.fixture
def slow_builds(tmp_path: Path, sources: Path) -> Iterator[SlowBuilds]:
    builds = SlowBuilds.make(tmp_path, sources)
    yield builds
    builds.release()  # ends compilers whose process was killed
    for process in builds.started:
        process.kill()
        if process.stderr is not None and not process.stderr.closed:
            process.communicate()


def first_warning(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def test_second_process_waits_for_the_library_of_the_first(slow_builds: SlowBuilds) -> None:
    first = slow_builds.start()
    assert "compiling" in first_warning(first)
    second = slow_builds.start()
    assert "waiting for another process" in first_warning(second)
    slow_builds.release()
    assert [process.communicate()[1] for process in (first, second)] == ["", ""]
    assert [first.returncode, second.returncode] == [0, 0]
    assert slow_builds.num_calls() == 2  # one file, and the library
    [path] = cached()
    assert list(path.parent.iterdir()) == [path]  # no lock or other hidden file


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_waiting_process_compiles_after_the_first_was_killed(slow_builds: SlowBuilds) -> None:
    first = slow_builds.start()
    assert "compiling" in first_warning(first)
    second = slow_builds.start()
    assert "waiting for another process" in first_warning(second)
    first.kill()
    first.communicate()
    assert "compiling" in first_warning(second)
    slow_builds.release()
    second.communicate()
    assert second.returncode == 0
    assert len(cached()) == 1


def test_process_that_waited_too_long_compiles_itself(
    load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = user_cache() / "kernels"
    prefix = f"{build._file_prefix()}{build._recipe_hash(find_compiler())}-"
    folder.mkdir(parents=True)
    monkeypatch.setattr(FileLock, "wait", lambda self, timeout_s: False)
    with FileLock(folder / f".{prefix}lock") as lock:
        assert lock.take()
        load()
    assert [message.split()[0] for message in caplog.messages] == ["waiting", "compiling"]


# Files with most of the code. The test with all files is `slow`.
MAIN_FILES = ("cache", "codec_plain", "codec_weights", "kernels_avx2", "model", "sampling")


def write_recording_compiler(folder: Path, option: str, link: str) -> Path:
    """A compiler whose messages are in the file `reports`."""
    return write_program(
        folder / "compiler",
        f'for last; do :; done\ncase "$*" in *-shared*) {link} ;; esac\n'
        f'exec c++ {option} "$@" 2>> {folder}/reports\n',
    )


@pytest.mark.ci
def test_main_files_of_the_library_compile_without_warnings(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without code generation, which takes most of the time: few warnings depend on it."""
    for path in NATIVE.iterdir():
        if path.suffix == ".h" or path.stem in MAIN_FILES:
            shutil.copy(path, sources)
    compiler = write_recording_compiler(tmp_path, "-fsyntax-only", 'exec touch "$last"')
    build.build_library(str(compiler), BUILD_TIMEOUT_S)
    assert "warning" not in (tmp_path / "reports").read_text()


@pytest.mark.slow
def test_library_of_the_package_compiles_without_warnings(tmp_path: Path) -> None:
    compiler = write_recording_compiler(tmp_path, "", f'exec c++ "$@" 2>> {tmp_path}/reports')
    (tmp_path / "library.so").write_bytes(build.build_library(str(compiler), BUILD_TIMEOUT_S))
    assert "warning" not in (tmp_path / "reports").read_text()
    build._open(tmp_path / "library.so")
