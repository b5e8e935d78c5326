"""Stores Triton's hash of its own files between processes.

The hash is part of the name of every cached kernel. Triton reads 400 MB for it in pieces of 1 MB,
and releases the interpreter's lock for each piece. Beside threads that import modules and load
weights this takes more than a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from vivace.backends.kernel_cache import cache_key, read_entry, write_entry

HASHED = ("runtime/cache.py", "compiler/**/*.py", "backends/**/*.py", "language/**/*.py", "_C/*")


def store_triton_key() -> None:
    """Let Triton use the stored hash, or compute and store it.

    The hash is computed again if the path, the size or the time of a hashed file has changed.
    """
    from triton.runtime import cache

    name = f"{cache_key(list(_describe_files(cache)))}.triton"
    stored = read_entry(name)
    if stored is None:
        write_entry(name, cache.triton_key().encode())
        return
    key = stored.decode()
    cache.triton_key = lambda: key


def _describe_files(cache: ModuleType) -> Iterator[str]:
    """Path, size and time of every file that is part of the hash."""
    assert cache.__file__ is not None
    folder = Path(cache.__file__).resolve().parents[1]
    for path in sorted(path for pattern in HASHED for path in folder.glob(pattern)):
        about = path.stat()
        yield f"{path} {about.st_size} {about.st_mtime_ns}"
