"""Compare the first calls of fresh processes: same speech, same tensors, no error.

    python benchmarks/first_calls.py 0.6B-CustomVoice --backend cuda_graph --streams 1000 \
        --runs 25 --digest-loaded 8 --json build/gpu/first-calls.json

The argument is a released model's name (random weights of its shape) or a checkpoint folder. Run 0
is a cold start with empty folders for compiled kernels. All later runs use the folders of run 0.
Every run is a new process that loads the model, speaks one text with one seed, and digests all
constant tensors: weights of the model and the codec, and tables and packed weights of the backend.
Each process is compared with what most processes have made. The line of a run has these parts:

- `load 3.1 s`: seconds from `TTS.load` to its return.
- `codes 1a2b samples 3c4d`: hashes of the speech. `differs`: most processes made other speech.
- `loaded: NAMES`: tensors that were wrong before the first call, so loading is wrong. Only the
  cold start and the last `--digest-loaded` runs digest at this time, because it changes the timing.
- `spoken: NAMES`: tensors that were wrong after the first call. If they were right before, the
  first call has overwritten them. If no tensor is wrong, kernels or their inputs are.
- `new backend: equal`: a second backend on the same model in the same process made the expected
  speech, so the weights of the model are right. Only processes with different speech build it.
- `error: TEXT`: the exception, or how the process ended without one.
- `log: TEXT`: the last line on stderr, such as a warning that a kernel is not used.

`not compared` lists tensors that have no common value. `kernel log` has the driver's new lines (Xid
errors), if the log is readable. `--core-dumps` asks CUDA for a core dump when a kernel fails; the
files lie beside the JSON file. `--seconds` limits the time in which runs start.

The JSON has every run. A failed run also has the end of its log and its memory segments (address,
bytes, stream). The command exits with code 1 if a process fails, or if speech or tensors differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from report import write_report
from start import as_checkpoint, bytecode_environment, write_bytecode

if TYPE_CHECKING:
    from vivace.tts import TTS

TEXT = "Hello there."
NUM_FRAMES = 8
MAX_NAMES = 6  # of tensors in a line
MAX_LOG, MAX_LINE = 4000, 300  # characters
END_S = 20.0  # for the last process, after `--seconds`
CONSTANTS = ("_layers", "_codec", "_prefill")  # of a backend
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a process does."""

    folder: str
    device: str
    backend: str
    max_streams: int
    digests_loaded: bool
    speech: str | None  # of most processes so far


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCall:
    """What a process has reported. A process that fails leaves out the later parts."""

    run: int
    load_s: float | None = None
    speech: str | None = None
    rebuilt: str | None = None  # the speech of a second backend
    error: str | None = None
    log: str = ""  # the end of stderr
    digests: dict[str, dict[str, int]] = field(default_factory=dict)  # by stage and tensor
    segments: list[list[int]] = field(default_factory=list)  # [address, bytes, stream]


@dataclass(frozen=True, slots=True)
class Expected:
    """What more than half of the processes have made."""

    speech: str | None
    digests: dict[tuple[str, str], int | None]  # by stage and tensor

    @classmethod
    def of(cls, calls: Sequence[FirstCall]) -> Expected:
        found: dict[tuple[str, str], list[int]] = {}
        for call in calls:
            for stage, digests in call.digests.items():
                for name, value in digests.items():
                    found.setdefault((stage, name), []).append(value)
        speech = most_common(call.speech for call in calls if call.speech is not None)
        return cls(speech, {key: most_common(values) for key, values in found.items()})

    def changed(self, call: FirstCall) -> dict[str, list[str]]:
        """The tensors of a process with another digest, by stage."""
        wrong = {
            stage: [n for n, v in digests.items() if self.digests.get((stage, n)) not in (v, None)]
            for stage, digests in call.digests.items()
        }
        return {stage: names for stage, names in wrong.items() if names}

    def is_met(self, call: FirstCall) -> bool:
        is_equal = call.speech is not None and call.speech == self.speech
        return is_equal and call.error is None and not self.changed(call)

    def failed(self, calls: Iterable[FirstCall]) -> list[FirstCall]:
        return [call for call in calls if not self.is_met(call)]

    @property
    def varying(self) -> list[tuple[str, str]]:
        """Stages and names of the tensors without a common digest."""
        return [key for key, value in self.digests.items() if value is None]


def most_common(values: Iterable[T]) -> T | None:
    """The value of more than half."""
    counts = Counter(values)
    value, count = max(counts.items(), key=lambda each: each[1], default=(None, 0))
    return value if 2 * count > counts.total() else None


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        report_first_call(Order(**json.loads(sys.argv[2])))
        sys.stdout.flush()
        os._exit(0)  # after an error on the GPU, the usual end may hang
    arguments = parse_arguments()
    report = make_report(arguments)
    log_before = read_kernel_log()
    with tempfile.TemporaryDirectory(prefix="vivace-first-calls-") as name:
        folder = as_checkpoint(arguments.model, Path(name), arguments.device)
        write_bytecode(Path(name))
        calls: list[FirstCall] = []
        for call in run_all(folder, Path(name), arguments):
            calls.append(call)
            print_call(call, Expected.of(calls))
            write_report(arguments.json, report | results(calls))
    log = None if log_before is None else new_lines(log_before, read_kernel_log() or [])
    print_summary(calls, arguments.runs, log)
    write_report(arguments.json, report | results(calls) | {"kernel_log": log})
    if failed := Expected.of(calls).failed(calls):
        sys.exit(f"{len(failed)} of {len(calls)} processes failed or differ")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a released model's name or a checkpoint folder")
    parser.add_argument("--runs", type=int, default=25, help="warm starts")
    parser.add_argument("--streams", type=int, default=1000, help="slots of the backend")
    parser.add_argument("--backend", default="cuda_graph")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--digest-loaded", type=int, default=0, metavar="N",
        help="the last N runs also digest the tensors before the first call",
    )  # fmt: skip
    parser.add_argument(
        "--core-dumps", type=int, default=0, metavar="N",
        help="the first N warm starts write a core dump if a kernel fails",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=600.0, help="start no process after these")
    parser.add_argument("--json", type=Path, help="where to write the results")
    arguments = parser.parse_args()
    if arguments.core_dumps and arguments.json is None:
        parser.error("--core-dumps needs --json: the core dumps are written beside that file")
    return arguments


def run_all(folder: Path, scratch: Path, arguments: argparse.Namespace) -> Iterator[FirstCall]:
    calls: list[FirstCall] = []
    deadline = time.monotonic() + arguments.seconds
    for run in range(arguments.runs + 1):
        if (left_s := deadline - time.monotonic()) < 0:
            return
        order = Order(
            folder=str(folder),
            device=arguments.device,
            backend=arguments.backend,
            max_streams=arguments.streams,
            digests_loaded=run == 0 or run > arguments.runs - arguments.digest_loaded,
            speech=Expected.of(calls).speech,
        )
        dumps = core_dumps(arguments.json, run) if 0 < run <= arguments.core_dumps else {}
        calls.append(start_process(order, run, scratch, dumps, left_s + END_S))
        yield calls[-1]


def core_dumps(report: Path, run: int) -> dict[str, str]:
    """Environment variables: dump the kernels without memory, and leave the process running."""
    return {
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
        "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP": "1",
        "CUDA_ENABLE_CPU_COREDUMP_ON_EXCEPTION": "0",
        "CUDA_COREDUMP_FILE": str(report.resolve().parent / f"{report.stem}-core-{run}"),
    }


def start_process(
    order: Order, run: int, scratch: Path, variables: dict[str, str], timeout_s: float
) -> FirstCall:
    cache = scratch / "cache"
    environment = {
        **bytecode_environment(scratch),
        "XDG_CACHE_HOME": str(cache),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "CUDA_CACHE_PATH": str(cache / "cuda"),
        **variables,
    }
    command = [sys.executable, __file__, "--child", json.dumps(asdict(order))]
    log = scratch / "log"
    with log.open("wb") as errors:
        try:
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=errors.fileno(),
                text=True, check=False, timeout=timeout_s,
            )  # fmt: skip
            output, end = done.stdout, f"exit code {done.returncode}"
        except subprocess.TimeoutExpired as error:
            found = error.stdout or b""  # bytes, also with `text`
            output, end = found.decode(), f"ended after {timeout_s:.0f} s"
    return read_first_call(run, output, log.read_text("utf-8", "replace"), end)


def read_first_call(run: int, output: str, log: str, end: str) -> FirstCall:
    """The last complete report of a process; without speech, the error is the process's end."""
    reports = [line for line in output.split("\n")[:-1] if line.startswith("{")]
    found: dict[str, Any] = json.loads(reports[-1]) if reports else {}
    if "speech" not in found or end != "exit code 0":
        found.setdefault("error", end)
    return FirstCall(run=run, log=log.strip()[-MAX_LOG:], **found)


def read_kernel_log() -> list[str] | None:
    """Lines of the NVIDIA driver, None if the log is not readable."""
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    if done.returncode:
        return None
    return [line for line in done.stdout.splitlines() if "NVRM" in line or "Xid" in line]


def new_lines(before: Sequence[str], after: Sequence[str]) -> list[str]:
    return [line for line in after if line not in before]


# -- in the new process ---------------------------------------------------------------------------


def report_first_call(order: Order) -> None:
    """Print all that is known after every part, as one line of JSON: the process may crash."""
    found: dict[str, Any] = {}
    try:
        for part in call_first(order):
            digests = {**found.get("digests", {}), **part.get("digests", {})}
            found |= part | {"digests": digests}
            print(json.dumps(found), flush=True)
    except Exception as error:
        message = (str(error).strip().splitlines() or [""])[0][:MAX_LINE]
        print(json.dumps(found | {"error": f"{type(error).__name__}: {message}"}), flush=True)


def call_first(order: Order) -> Iterator[dict[str, Any]]:
    """Fields of `FirstCall`, in the order in which they become known."""
    from tensor_digests import digests

    import vivace.tts

    began = time.perf_counter()
    tts = vivace.tts.TTS.load(
        order.folder, device=order.device, backend=order.backend, max_streams=order.max_streams
    )
    yield {"load_s": round(time.perf_counter() - began, 2)}
    if order.digests_loaded:
        yield {"digests": {"loaded": digests(constants(tts))}}
    yield {"segments": memory_segments()}
    speech = speak(tts)
    yield {"speech": speech}
    yield {"digests": {"spoken": digests(constants(tts))}}
    if order.speech not in (speech, None):
        yield {"rebuilt": speak(with_new_backend(tts, order))}


def memory_segments() -> list[list[int]]:
    import torch

    if not torch.cuda.is_available():
        return []
    torch.cuda.synchronize()
    names = ("address", "total_size", "stream")
    return [[each[name] for name in names] for each in torch.cuda.memory_snapshot()]


def speak(tts: TTS) -> str:
    """Hashes of codes and of samples."""
    voice = tts.speakers[0] if tts.speakers else None
    with tts.stream(TEXT, voice=voice, seed=0, max_frames=NUM_FRAMES, trim_start=False) as stream:
        chunks = list(stream)
    codes = b"".join(each.codes.tobytes() for each in chunks if each.codes is not None)
    samples = b"".join(each.samples.tobytes() for each in chunks)
    hashes = [hashlib.sha256(each).hexdigest()[:12] for each in (codes, samples)]
    return f"codes {hashes[0]} samples {hashes[1]}"


def with_new_backend(tts: TTS, order: Order) -> TTS:
    """The same model with a second backend, of fewer slots: the first one keeps its memory."""
    from vivace.backends import Capacity, build_backend
    from vivace.engine.checkpoints.loaded import LoadedCheckpoint, Runtime
    from vivace.engine.engine import Engine
    from vivace.tts import TTS

    model, codec = tts.loaded.runtime.model, tts.loaded.runtime.codec
    capacity = Capacity(max_streams=max(1, order.max_streams // 8))
    engine = Engine(build_backend(order.backend, model, codec, capacity))
    runtime = Runtime.of(model, codec, engine)
    return TTS(LoadedCheckpoint(tts.checkpoint, tts.tokenizer, runtime))


def constants(tts: TTS) -> dict[str, object]:
    """The owners of tensors that no call writes."""
    runtime, backend = tts.loaded.runtime, tts.engine.backend
    parts = {name: getattr(backend, name, None) for name in CONSTANTS}
    return {"model": runtime.model, "codec": runtime.codec, **parts}


# -- results --------------------------------------------------------------------------------------


def print_call(call: FirstCall, expected: Expected) -> None:
    parts = [f"run {call.run}{' (cold)' if call.run == 0 else ''}"]
    if call.load_s is not None:
        parts.append(f"load {call.load_s:.1f} s")
    if call.speech is not None:
        parts.append(call.speech + ("" if call.speech == expected.speech else " differs"))
    parts += [f"{stage}: {shortened(names)}" for stage, names in expected.changed(call).items()]
    if call.rebuilt is not None:
        parts.append(f"new backend: {'equal' if call.rebuilt == expected.speech else call.rebuilt}")
    if call.error is not None:
        parts.append(f"error: {call.error}")
    if call.log:
        parts.append(f"log: {call.log.splitlines()[-1][:MAX_LINE]}")
    print(" | ".join(parts), flush=True)


def shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def print_summary(
    calls: Sequence[FirstCall], num_runs: int, kernel_log: Sequence[str] | None
) -> None:
    """Also prints every failed run again: the first runs were compared with few others."""
    expected = Expected.of(calls)
    failed = expected.failed(calls)
    print(f"{len(calls)} of {num_runs + 1} processes ran, {len(failed)} failed or differ")
    for call in failed:
        print_call(call, expected)
    if expected.varying:
        print(f"not compared: {shortened([': '.join(each) for each in expected.varying])}")
    lines = ["not readable"] if kernel_log is None else kernel_log or ["no new lines"]
    print("kernel log:", "\n  ".join(lines))


def make_report(arguments: argparse.Namespace) -> dict[str, Any]:
    from vivace.cli.bench.machine import machine

    return {
        "benchmark": "first_calls",
        "machine": machine(),
        "model": arguments.model,
        "backend": arguments.backend,
        "max_streams": arguments.streams,
    }


def results(calls: Sequence[FirstCall]) -> dict[str, Any]:
    expected = Expected.of(calls)
    return {
        "not_compared": expected.varying,
        "results": [describe(call, expected) for call in calls],
    }


def describe(call: FirstCall, expected: Expected) -> dict[str, Any]:
    is_met = expected.is_met(call)
    facts = {name: getattr(call, name) for name in ("run", "load_s", "speech", "rebuilt", "error")}
    facts |= {"is_equal": is_met, "changed": expected.changed(call)}
    facts["num_tensors"] = {stage: len(digests) for stage, digests in call.digests.items()}
    return facts if is_met else facts | {"log": call.log, "segments": call.segments}


if __name__ == "__main__":
    main()
