"""Compiles CUDA source with the NVRTC library of PyTorch's wheels.

Compiled code is cached on disk by a hash of source, compiler version and options.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from pathlib import Path

from vivace.backends.kernel_cache import cache_key, read_entry, write_entry
from vivace.errors import BackendUnavailableError


def check_installed() -> None:
    """Raise `BackendUnavailableError` if NVRTC is not installed."""
    _load()


def compile_source(source: str, architecture: str, options: Sequence[str]) -> bytes:
    """Machine code (a cubin) for an architecture such as `sm_90`."""
    compiler = _load()
    flags = [f"--gpu-architecture={architecture}", "--std=c++17", *options]
    name = f"{cache_key([source, _version(compiler), *flags])}.cubin"
    code = read_entry(name)
    if code is None:
        code = _compile(compiler, source, flags)
        write_entry(name, code)
    return code


def _compile(compiler: ctypes.CDLL, source: str, flags: Sequence[str]) -> bytes:
    program = c_void_p()
    _check(
        compiler,
        compiler.nvrtcCreateProgram(byref(program), source.encode(), b"kernel.cu", 0, None, None),
    )
    try:
        array = (c_char_p * len(flags))(*(flag.encode() for flag in flags))
        if compiler.nvrtcCompileProgram(program, len(flags), array):
            raise BackendUnavailableError(f"the kernel does not compile: {_log(compiler, program)}")
        size = c_size_t()
        _check(compiler, compiler.nvrtcGetCUBINSize(program, byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _check(compiler, compiler.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        compiler.nvrtcDestroyProgram(byref(program))


def _log(compiler: ctypes.CDLL, program: c_void_p) -> str:
    size = c_size_t()
    compiler.nvrtcGetProgramLogSize(program, byref(size))
    log = ctypes.create_string_buffer(size.value)
    compiler.nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace").strip()


@cache
def _load() -> ctypes.CDLL:
    for name in _candidates():
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise BackendUnavailableError(
        "the NVRTC library is not installed; PyTorch's CUDA wheels have it"
    )


def _candidates() -> Iterator[str]:
    """Library names: the loader's search path first, then PyTorch's wheels, newest first."""
    for major in (13, 12):
        yield f"libnvrtc.so.{major}"
    for package in ("nvidia", "torch"):
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            found = Path(folder).glob("**/libnvrtc.so.*")
            yield from sorted(map(str, found), reverse=True)


def _version(compiler: ctypes.CDLL) -> str:
    major, minor = c_int(), c_int()
    _check(compiler, compiler.nvrtcVersion(byref(major), byref(minor)))
    return f"{major.value}.{minor.value}"


def _check(compiler: ctypes.CDLL, result: int) -> None:
    if result:
        compiler.nvrtcGetErrorString.restype = c_char_p
        raise BackendUnavailableError(f"NVRTC: {compiler.nvrtcGetErrorString(result).decode()}")
