"""Checks that `vivace read` resumes after SIGKILL with the same audiobook and constant memory.

    python benchmarks/book.py sentences.txt --chars 100000 --out build/book \\
        --json benchmarks/results/book-mini.json

Two `vivace read` processes read the same book at the same time. One of them is killed a few random
seconds after each share of the book in `--kill-at`, and started again with the same command. Needs
Linux (`/proc` shows the memory of another process) and the extra `av`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from long_text import read_sentences
from report import write_report

Row = dict[str, Any]
SENTENCES_PER_PARAGRAPH, PARAGRAPHS_PER_CHAPTER = 5, 45
POINTS = {"start": 0.0, "quarter": 0.25, "half": 0.5, "three_quarters": 0.75, "end": 1.0}
POLL_S = 0.5
MAX_DELAY_S = 10.0  # shorter than the time for a piece, so that a kill interrupts a piece
SEED = 7  # for the times of the kills


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sentences", type=Path, help="one sentence per line")
    parser.add_argument("--chars", type=int, default=100_000)
    parser.add_argument("--kill-at", type=float, nargs="+", default=[0.35, 0.7], metavar="SHARE")
    parser.add_argument("--out", type=Path, required=True, help="an empty folder")
    parser.add_argument("--json", type=Path, help="where to write the report")
    arguments = parser.parse_args()
    from vivace.cli.bench.machine import machine

    begun_on = machine()  # before the runs: records the commit that they use
    text = write_text(read_sentences(arguments.sentences, arguments.chars))
    report = {"benchmark": "book", "machine": begun_on}
    report |= compare(text, arguments.out, arguments.kill_at)
    print(json.dumps(report, indent=1))
    write_report(arguments.json, report)
    if not report["is_equal"]:
        sys.exit("the two books differ")


def write_text(sentences: Sequence[str]) -> str:
    """Write the sentences as paragraphs and chapters."""
    blocks: list[str] = []
    for number, start in enumerate(range(0, len(sentences), SENTENCES_PER_PARAGRAPH)):
        if number % PARAGRAPHS_PER_CHAPTER == 0:
            blocks.append(f"Chapter {number // PARAGRAPHS_PER_CHAPTER + 1}")
        blocks.append(" ".join(sentences[start : start + SENTENCES_PER_PARAGRAPH]))
    return "\n\n".join(blocks) + "\n"


def compare(text: str, folder: Path, kill_at: Sequence[float]) -> Row:
    from vivace.books.open import open_book
    from vivace.books.segments import split_book

    folder.mkdir(parents=True)  # must not exist: an old folder has pieces of another run
    path = folder / "book.txt"
    path.write_text(text)
    book = open_book(path)
    num_pieces = len(split_book(book))
    readings = [
        Reading(path, folder / "whole.m4b", num_pieces),
        Reading(path, folder / "killed.m4b", num_pieces, plan_kills(kill_at)),
    ]
    try:
        while not all(list(map(Reading.poll, readings))):
            time.sleep(POLL_S)
    finally:
        for each in readings:
            each.process.kill()
    whole, killed = (each.report() for each in readings)
    is_equal = whole["sha256"] == killed["sha256"] and whole["num_samples"] > 0
    return {
        "characters": book.num_chars,
        "chapters": len(book.chapters),
        "pieces": num_pieces,
        "is_equal": is_equal,
        "whole": whole,
        "killed": killed,
    }


def plan_kills(shares: Sequence[float]) -> list[tuple[float, float]]:
    """For each kill: the share of the book that must be finished first, and a delay in seconds."""
    chance = random.Random(SEED)
    return [(share, chance.uniform(0, MAX_DELAY_S)) for share in shares]


@dataclass
class Reading:
    """A `vivace read` process and its measurements."""

    book: Path
    output: Path
    num_pieces: int
    kills: list[tuple[float, float]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)  # one for each finished piece
    killed: list[Row] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)  # files left by a kill, and their mtime
    due: float | None = None  # time of the next kill

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "vivace", "read", str(self.book), "-o", str(self.output)]
        command += ["--device", "cpu", "--keep-parts", "--json"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def made(self) -> dict[str, int]:
        parts = Path(f"{self.output}.parts")
        return {path.name: path.stat().st_mtime_ns for path in parts.glob("*.pcm")}

    def poll(self) -> bool:
        """Record new pieces, kill the process if a kill is due, and return True at the end."""
        if self.process.poll() is not None:
            return True
        made = self.made()
        if (memory := memory_mib(self.process.pid)) is None:
            return False  # the process has just exited
        row = {"pieces": len(made), "at_s": self._now(), **memory}
        if made and (not self.rows or self.rows[-1]["pieces"] != len(made)):
            self.rows.append(row)
            print(f"{self.output.name}: {row}", file=sys.stderr, flush=True)
        self._kill_if_due(row, made)
        return False

    def _kill_if_due(self, row: Row, made: dict[str, int]) -> None:
        if not self.kills:
            return
        share, delay_s = self.kills[0]
        if self.due is None:
            if row["pieces"] < share * self.num_pieces:
                return
            self.due = time.monotonic() + delay_s
        if time.monotonic() < self.due:
            return
        self.process.send_signal(signal.SIGKILL)
        with self.process:  # closes the pipe too
            self.killed.append({**row, "status": self.process.wait()})
        self.kept |= self.made() or made
        self.kills, self.due = self.kills[1:], None
        self.process = self._start()

    def _now(self) -> float:
        return round(time.monotonic() - self.began, 1)

    def report(self) -> Row:
        output, _ = self.process.communicate()
        if self.process.returncode:
            sys.exit(f"vivace read ended with {self.process.returncode}")
        made = self.made()
        content, samples, num_samples = self.output.read_bytes(), *decode(self.output)
        return {
            "seconds": self.rows[-1]["at_s"],  # until the last piece
            "audio_s": round(json.loads(output)["audio_s"], 1),
            "rss_mib": {name: self._rss(share) for name, share in POINTS.items()},
            "most_rss_mib": max(row["most_rss_mib"] for row in [*self.rows, *self.killed]),
            "kills": self.killed,
            "pieces_made_twice": sum(made[name] != when for name, when in self.kept.items()),
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "num_samples": num_samples,
            "sha256_of_samples": samples,
        }

    def _rss(self, share: float) -> float:
        rows = (row for row in self.rows if row["pieces"] >= share * self.num_pieces)
        return float(next(rows)["rss_mib"])


def memory_mib(pid: int) -> Row | None:
    """Current and peak memory of a process; None after it has exited."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = dict(line.split(":", 1) for line in lines)
    if "VmRSS" not in fields:
        return None
    now, most = (round(int(fields[name].split()[0]) / 1024, 1) for name in ("VmRSS", "VmHWM"))
    return {"rss_mib": now, "most_rss_mib": most}


def decode(path: Path) -> tuple[str, int]:
    import av

    digest, count = hashlib.sha256(), 0
    with av.open(str(path)) as file:
        for frame in file.decode(audio=0):
            digest.update(frame.to_ndarray().tobytes())
            count += frame.samples
    return digest.hexdigest(), count


if __name__ == "__main__":
    main()
