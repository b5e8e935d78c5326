"""Loads the weights of a checkpoint once for all tests of a process.

Building and filling the modules takes most of `TTS.load`, 0.2 s of CPU time, and hundreds of tests
load a voice. Speech does not change the weights, and every `TTS` still gets a backend, an engine
and a tokenizer of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any
from unittest.mock import patch

import torch

from vivace.checkpoint import Checkpoint

MAX_KEPT = 8  # for each part; the least recently used is dropped


def load_once(load: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of `Checkpoint` so that it loads the same files once."""
    loaded: OrderedDict[object, Any] = OrderedDict()
    lock = Lock()

    def look_up(checkpoint: Checkpoint, device: torch.device, *settings: object) -> Any:
        if device.type != "cpu":
            return load(checkpoint, device, *settings)
        key = (stamps(checkpoint.folder), settings)
        with lock:
            if key not in loaded:
                loaded[key] = load(checkpoint, device, *settings)
            loaded.move_to_end(key)
            part = loaded[key]
            while len(loaded) > MAX_KEPT:
                loaded.popitem(last=False)
        return part

    return look_up


def stamps(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of change of every file: a changed checkpoint is loaded again."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return tuple((str(path), (s := path.stat()).st_size, s.st_mtime_ns) for path in files)


LOAD_MODEL, LOAD_CODEC = Checkpoint.load_model, Checkpoint.load_codec
load_model, load_codec = load_once(LOAD_MODEL), load_once(LOAD_CODEC)


@contextmanager
def weights_shared() -> Iterator[None]:
    with (
        patch.object(Checkpoint, "load_model", load_model),
        patch.object(Checkpoint, "load_codec", load_codec),
    ):
        yield
