"""The soak: a server process under mixed traffic, measured while it is idle.

Every `interval_s` the traffic stops. When all conversations have ended, memory, open files,
threads, tasks and children of the server are read. `soak_fit` decides whether they grow.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.reliability.soak_fit import MIN_SAMPLES, Growth, Sample, measure_growth
from tests.reliability.soak_traffic import (
    KINDS,
    LIMIT_S,
    Remote,
    run_conversation,
    run_random_conversation,
)
from tests.support.project import ROOT, load_script

SERVER = "tests.reliability.soak_serve"
START_S = 180.0
NUM_CLIENTS = 8
WARM_ROUNDS = 4  # conversations of every kind before the first sample
SETTLE_S = 20.0  # maximum wait for the server to close connections


@dataclass(frozen=True)
class SoakLimits:
    """The length of a soak: it ends at the first of the two limits."""

    seconds: float = float("inf")
    requests: int = sys.maxsize
    interval_s: float = 60.0
    interval_requests: int = sys.maxsize
    cpu: float | None = None  # processor cores for server and clients together
    seed: int = 0


@dataclass
class Soak:
    """The clients and their observations."""

    served: ServerProcess
    limits: SoakLimits
    kinds: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    num_asked: int = 0
    began: float = field(default_factory=time.monotonic)
    cpu_before_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        self.cpu_before_s = self.cpu_s
        for kind in sorted(set(KINDS) - {"slow_headers"}) * WARM_ROUNDS:
            self._note(
                kind, run_conversation(kind, self.served.remote, random.Random(self.num_asked))
            )
            self.num_asked += 1
        while True:
            self.take_sample()
            if self.is_over or not self.served.is_alive:
                break
            until_s = time.monotonic() + self.limits.interval_s
            until = self.num_asked + self.limits.interval_requests
            works = [
                threading.Thread(target=self._work, args=(n, until, until_s), daemon=True)
                for n in range(NUM_CLIENTS)
            ]
            for work in works:
                work.start()
            for work in works:
                work.join()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def is_over(self) -> bool:
        is_late = self.seconds >= self.limits.seconds or self.num_asked >= self.limits.requests
        return is_late and len(self.samples) >= MIN_SAMPLES

    @property
    def cpu_s(self) -> float:
        return self.served.cpu_s + time.process_time()

    def _work(self, number: int, until: int, until_s: float) -> None:
        chance = random.Random(f"{self.limits.seed}/{len(self.samples)}/{number}")
        while time.monotonic() < until_s and self.served.is_alive:
            if self.limits.cpu is not None and self.is_ahead:
                time.sleep(0.05)
                continue
            with self._lock:
                if self.num_asked >= until:
                    return
                self.num_asked += 1
            self._note(*run_random_conversation(self.served.remote, chance))

    def _note(self, kind: str, fault: str | None) -> None:
        with self._lock:
            self.kinds[kind] += 1
            if fault is not None:
                self.faults.append(f"{round(self.seconds)} s: {fault}")

    @property
    def is_ahead(self) -> bool:
        """Whether server and clients used more processor time than allowed."""
        assert self.limits.cpu is not None
        return self.cpu_s - self.cpu_before_s > self.limits.cpu * self.seconds

    def take_sample(self) -> None:
        """Wait until the server is idle and has closed its connections."""
        deadline, before = time.monotonic() + SETTLE_S, None
        while True:
            time.sleep(1.0)
            sample = self.served.sample(self.seconds, self.num_asked)
            counts = (sample.files, sample.threads, sample.tasks)
            if counts == before or time.monotonic() > deadline:
                break
            before = counts
        self.samples.append(sample)

    def report(self, most_mib: float) -> dict[str, Any]:
        growth: Growth = measure_growth(self.samples)
        return {
            "seconds": round(self.seconds),
            "requests": self.num_asked,
            "kinds": dict(self.kinds),
            "faults": len(self.faults),
            "first_faults": self.faults[:5],
            "cores_used": round((self.cpu_s - self.cpu_before_s) / self.seconds, 2),
            "after_warm_up": growth.rounded(),
            "leaks": growth.leaks(most_mib),
            "samples": [asdict(each) for each in self.samples],
        }


# -- the server ----------------------------------------------------------------------------------


class ServerProcess:
    """A server process that reports its resources."""

    def __init__(self, process: subprocess.Popen[str], log: Path, can_clone: bool) -> None:
        self._process = process
        self._log = log
        ports = self._wait_ready()
        self.remote = Remote(ports["ready"], ports["wyoming"], can_clone)

    def _wait_ready(self) -> dict[str, int]:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.is_alive:
            lines = [line.split(": ", 1) for line in self._log.read_text().splitlines()]
            printed = {words[0]: words[1] for words in lines if len(words) == 2}
            if "ready" in printed:
                return {
                    name: int(printed[name].strip().rstrip("/").rpartition(":")[2])
                    for name in ("ready", "wyoming")
                }
            time.sleep(0.1)
        raise RuntimeError(f"the server did not start: {self._log.read_text()[-2_000:]}")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def _folder(self) -> Path:
        return Path("/proc") / str(self._process.pid)

    @property
    def cpu_s(self) -> float:
        with suppress(OSError):
            fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
            return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # including its children
        return 0.0

    def sample(self, seconds: float, requests: int) -> Sample:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        num_tasks = int(self._process.stdout.readline())
        pages = int((self._folder / "statm").read_text().split()[1])
        children = (self._folder / "task").glob("*/children")
        return Sample(
            seconds=round(seconds, 1),
            requests=requests,
            memory_kib=pages * os.sysconf("SC_PAGE_SIZE") // 1024,
            files=len(os.listdir(self._folder / "fd")),
            threads=len(os.listdir(self._folder / "task")),
            tasks=num_tasks,
            children=sum(len(each.read_text().split()) for each in children),
        )

    def stop(self) -> int:
        self._process.terminate()
        return self._process.wait(LIMIT_S)


def make_cloning_model(folder: Path) -> list[str]:
    """Return the flags of a second model that clones, so that child processes decode recordings."""
    script = load_script(ROOT / "scripts" / "make_tiny_checkpoints.py")
    script.make_checkpoint(folder / "base")
    return ["--model=vivace", f"--model=tiny={folder / 'base'}"]


@contextmanager
def served(*flags: str) -> Iterator[ServerProcess]:
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w") as log:
        models = [] if "--scripted" in flags else make_cloning_model(Path(folder))
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", SERVER, *flags, *models),
                *("--port=0", "--wyoming-port=0", f"--voices={folder}/voices"),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "VIVACE_HOME": folder},
        )
        with process:
            try:
                yield ServerProcess(process, Path(log.name), can_clone=bool(models))
            finally:
                process.kill()


def soak(limits: SoakLimits, *flags: str, most_mib: float) -> dict[str, Any]:
    """Run the soak; return the samples and the growth. `flags` are those of soak_serve.py."""
    with served(*flags) as server:
        work = Soak(server, limits)
        work.run()
        report = work.report(most_mib)
        return {**report, "exit_code": server.stop()}
