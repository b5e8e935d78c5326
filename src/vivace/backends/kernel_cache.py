"""Files about compiled kernels in the user's cache folder: machine code, passed comparisons.

The cache is optional. Without a writable folder everything is made again. A damaged file counts as
missing: every file begins with a checksum of its content.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from vivace._version import __version__
from vivace.disk import user_cache, write_whole

NUM_CHECK_BYTES = 32  # SHA-256
SOURCES = ("*.py", "*.cu", "*.cuh")
PASSED = b"passed\n"
DRIVER = Path("/proc/driver/nvidia/version")


def cache_key(parts: Sequence[str]) -> str:
    """Name of the entry that depends on all of these texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def read_entry(name: str) -> bytes | None:
    """The content of an entry; None if there is none or if it is damaged."""
    try:
        stored = (_folder() / name).read_bytes()
    except OSError:
        return None
    check, content = stored[:NUM_CHECK_BYTES], stored[NUM_CHECK_BYTES:]
    return content if hashlib.sha256(content).digest() == check else None


def write_entry(name: str, content: bytes) -> None:
    """Store an entry. Errors are ignored: the next start makes the content again."""
    path = _folder() / name
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, hashlib.sha256(content).digest() + content, replace=True)


class Comparison:
    """Records that kernels gave the reference's numbers with this build, GPU and driver.

    `parts` name the kernels and all dimensions that they are compiled for. On other devices than
    NVIDIA GPUs nothing is recorded.
    """

    def __init__(self, parts: Sequence[str], device: torch.device) -> None:
        self._name: str | None = None
        if device.type == "cuda":
            build = (__version__, _source_hash(), torch.__version__, _triton_version())
            self._name = f"{cache_key([*build, *_describe_gpu(device), *parts])}.passed"

    @property
    def has_passed(self) -> bool:
        return self._name is not None and read_entry(self._name) == PASSED

    def note_passed(self) -> None:
        if self._name is not None:
            write_entry(self._name, PASSED)


def _folder() -> Path:
    return user_cache() / "kernels"


@cache
def _source_hash() -> str:
    """Hash of all sources of the backends."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted(path for pattern in SOURCES for path in folder.rglob(pattern)):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _triton_version() -> str:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return "none"


def _describe_gpu(device: torch.device) -> tuple[str, ...]:
    properties = torch.cuda.get_device_properties(device)
    numbers = (properties.major, properties.minor, properties.multi_processor_count)
    return properties.name, str(numbers), str(torch.version.cuda), _driver_version()


def _driver_version() -> str:
    try:
        return DRIVER.read_text()
    except OSError:  # another system, or a container without the file
        return "unknown"
