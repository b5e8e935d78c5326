"""Reads a book with a scripted voice in forked children that are killed during the work.

    python -m tests.support.killed_reader BOOK FOLDER

Prints the missing and spoken texts of every child as JSON. The process has one thread when it
forks, so a child behaves like a new process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import vivace.books.segments
import vivace.disk
from tests.support import scripted_tts
from tests.support.scripted_tts import Plan, ScriptedSpeech
from vivace.books.book import Book
from vivace.books.open import open_book
from vivace.books.output import choose_output
from vivace.books.reader import BookReader, WorkFolder, work_path
from vivace.books.segments import Segment, split_book
from vivace.options import SpeakOptions
from vivace.serve.settings import ModelSpec
from vivace.tts import TTS


class SelfKillingBackend(ScriptedSpeech):
    """Kills the process after `kill_after` texts."""

    kill_after: int = 10**9

    def admit(self, prompt: object, sampling: object) -> int:
        if self.num_admitted >= self.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().admit(prompt, sampling)  # type: ignore[arg-type]


def read(tts: TTS, book: Book, output: Path, kill_after: int | None) -> None:
    """Read a book. `kill_after` texts kills the process; 0 kills it during the first write."""
    backend = tts.engine.backend
    assert isinstance(backend, SelfKillingBackend)
    segments = split_book(book)
    work = WorkFolder.open(work_path(output), tts.sample_rate, {"seed": 1}, segments)
    facts = {"missing": missing(work, segments)}
    if kill_after:
        backend.kill_after = kill_after
    elif kill_after == 0:
        vivace.disk.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore
    for _ in BookReader(tts, work, SpeakOptions(seed=1)).read(segments):
        pass
    facts["spoken"] = backend.num_admitted
    chosen = choose_output(output, book, format=None, loudness=-18.0, force=False, bit_rate=None)
    chosen.write(book, segments, work)
    work.remove()
    print_facts(facts)


def print_facts(facts: dict[str, int]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def missing(work: WorkFolder, segments: list[Segment]) -> int:
    """Number of texts that are not spoken yet."""
    return sum(len(segment.passages) for segment in segments if not work.has(segment))


def main() -> None:
    book, folder = Path(sys.argv[1]), Path(sys.argv[2])
    scripted_tts.NUM_CODEBOOKS = 6  # as the embedded voice has
    vivace.books.segments.MAX_SEGMENT_CHARS = 160
    for name, kill_after in (("whole", None), ("killed", 17), ("killed", 0), ("killed", None)):
        child = os.fork()
        if not child:
            try:
                tts = SelfKillingBackend(default=Plan(3), max_streams=4).load(ModelSpec("x", None))
                read(tts, open_book(book), folder / f"{name}.m4b", kill_after)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        print_facts({"status": status, "hidden": len(list(folder.rglob(".vivace-*")))})


if __name__ == "__main__":
    main()
