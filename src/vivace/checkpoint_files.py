"""The files of a checkpoint: reads text files, checks the length of weights, frees mapped pages.

Also finds weights in installed packages and checks their digests.

Pipes, devices and huge text files raise CheckpointError.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import os
import re
import stat
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vivace.errors import CheckpointError

MAX_BYTES = 16 << 20  # the largest released file, vocab.json, has 2.8 MB
MAX_MAPPED_BYTES = 128 << 20  # of weights that are read once; then their pages are released
WEIGHTS = "model.safetensors"
SPEAKER_ENCODER = "speaker_encoder."  # prefix of the speaker encoder's tensors
WHOLE_TENSOR = "weight."  # prefix of the whole tensors of an adapter
UNREADABLE = (  # errors of code that reads the header of a damaged file
    *(OSError, ValueError, LookupError, TypeError, AttributeError),
    *(RecursionError, struct.error),
)
MADV_DONTNEED = 4  # of Linux
MAPPING = re.compile(  # a private mapping of a file in /proc/self/smaps, without written pages
    r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) \S{3}p \S+ \S+ \S+ +(?P<name>/[^\n]*)\n"
    r"(?:[A-Z][^\n]*\n)*?Anonymous: +0 kB\n(?:[A-Z][^\n]*\n)*?Swap: +0 kB$",
    re.MULTILINE,
)
MAX_DIGITS = 100  # of an integer; smaller invalid integers are reported with their field


def read_text(path: Path) -> str:
    try:
        return _read_bytes(path).decode("utf-8").replace("\r\n", "\n")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def read_json(path: Path, *, checks_digits: bool = True) -> dict[str, Any]:
    """The JSON object in a file.

    Without `checks_digits`, integers may be as long as Python permits, and a file of many integers
    is read in half the time.
    """
    text = read_text(path)
    try:
        value = json.loads(text, parse_int=_parse_int if checks_digits else None)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} should hold a JSON object, not a {type(value).__name__}")
    return value


def has_whole_tensors(path: Path) -> bool:
    """Whether an adapter replaces whole tensors. False for a file that cannot be read."""
    try:
        return any(name.startswith(WHOLE_TENSOR) for name in read_header(path)[0])
    except UNREADABLE:
        return False


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The entries of a safetensors file by tensor, and the offset of the first number.

    Raises one of `UNREADABLE` for other files.
    """
    with path.open("rb") as file:
        [length] = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(min(length, MAX_BYTES)))
    header.pop("__metadata__", None)
    return header, 8 + length


def truncated_tensor(path: Path) -> str | None:
    """The first tensor that a truncated safetensors file does not contain completely, or None."""
    try:
        header, start = read_header(path)
        num_bytes = path.stat().st_size - start
        ends = {name: int(entry["data_offsets"][1]) for name, entry in header.items()}
    except UNREADABLE:
        return None
    beyond = [name for name, end in ends.items() if end > num_bytes]
    return min(beyond, key=ends.__getitem__, default=None)


def checked(path: Path, digest: str) -> Path:
    """Return the path if the file has this SHA-256; otherwise raise CheckpointError."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != digest:
        raise CheckpointError(f"{path} has SHA-256 {found}; {digest} was expected")
    return path


def package_file(package: str, name: str) -> Path:
    """The path of a file in an installed package. The package is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed")
    return Path(spec.origin).parent / name


def release_pages(paths: Iterable[Path]) -> None:
    """Free the resident pages of memory-mapped files. The next access reads them again.

    Loading checks every tensor, including those that speech does not use. A mapping with pages
    that were written to is left as it is. Linux only.
    """
    madvise = None
    for start, end in _clean_mappings({os.path.realpath(path) for path in paths}):
        madvise = madvise or ctypes.CDLL(None).madvise
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_DONTNEED)


def trim_heap() -> None:
    """Return the freed memory of the heap to the system. Needs the C library of GNU.

    Weights are converted and packed through temporary copies, which are freed at other times than
    their neighbours.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _clean_mappings(names: set[str]) -> Iterator[tuple[int, int]]:
    """Address ranges of the private mappings of files that hold no written page."""
    maps = _read_process("maps")
    if not any(name in maps for name in names):
        return  # smaps takes 20 times as long to read
    for found in MAPPING.finditer(_read_process("smaps")):
        if found["name"] in names:
            yield int(found["start"], 16), int(found["end"], 16)


def _read_process(name: str) -> str:
    """A file of /proc/self; empty on other systems than Linux."""
    try:
        return Path("/proc/self", name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _read_bytes(path: Path) -> bytes:
    # Without O_NONBLOCK, opening a pipe without a writer would block forever.
    descriptor = os.open(path, os.O_RDONLY | _flag("O_NONBLOCK") | _flag("O_BINARY"))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
    return content


def _flag(name: str) -> int:
    """A flag of os.open, or 0 if the system does not have it."""
    return int(getattr(os, name, 0))


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"the number {digits[:MAX_DIGITS]}… has {len(digits):,} digits")
    return int(digits)
