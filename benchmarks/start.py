"""Time from the start of a process to its first audio: cold and warm caches.

    python benchmarks/start.py 0.6B-CustomVoice --json benchmarks/results/start.json

The argument is a released model's name or a checkpoint folder. For a released name the script
writes a checkpoint of that shape with random weights and a vocabulary of the released size, before
anything is timed. Every start is a new process. A cold start has empty folders for all compiled
kernels (Vivace, Triton, CUDA). Warm starts use the folders of the cold start. In all starts the
weights are in the page cache, and Python's bytecode is cached: a process that is not timed imports
all modules first, because pip compiles them at installation and some images remove the result.

`phases` are seconds from the start of the process to the end of a phase. `parts` are seconds that
parts of `load` take; they overlap on a GPU. `pick_device` imports PyTorch. `ready` is the end of
`TTS.warmup`, after which a server accepts requests. `--timeline` adds a warm start with the begin
and end of imports and functions in all threads; recording makes it a little slower.

All processes speak the same text with the same seed. The command fails if their codes or samples
differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import wraps
from pathlib import Path
from typing import Any

from timeline import Timeline, print_timeline

TEXT = "Hello there."
IMPORTS = """
import torch
import vivace.tts
from vivace.backends import import_backends
import_backends(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
"""
STARTED_AT = "VIVACE_STARTED_AT"  # time.time() of the parent, for the child


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(start_here(json.loads(sys.argv[2]))))
        sys.stdout.flush()
        os._exit(0)  # the end of the process is not measured
    arguments = parse_arguments()
    results = []
    with tempfile.TemporaryDirectory(prefix="vivace-start-") as name:
        folder = as_checkpoint(arguments.model, Path(name), arguments.device)
        write_bytecode(Path(name))
        for backend in arguments.backends:
            results.append(measure(folder, Path(name) / f"cache-{backend}", backend, arguments))
            print_row(results[-1])
            if arguments.timeline:
                print_timeline(results[-1]["timeline"])
    if arguments.json:
        from vivace.cli.bench.machine import machine

        report = {"benchmark": "start", "machine": machine(), "model": arguments.model}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report | {"results": results}, indent=1) + "\n")
    if not all(result["is_equal"] for result in results):
        sys.exit("the processes made different speech")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a released model's name or a checkpoint folder")
    parser.add_argument("--backends", nargs="+", default=["auto"], help="NAME or NAME:STREAMS")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=3, help="warm starts")
    parser.add_argument("--ready", action="store_true", help="also time the warm-up of a server")
    parser.add_argument("--timeline", action="store_true", help="record one more warm start")
    parser.add_argument("--json", type=Path, help="where to write the results")
    return parser.parse_args()


def as_checkpoint(model: str, folder: Path, device: str) -> Path:
    from released import RELEASED_MODELS

    if model not in RELEASED_MODELS:
        return Path(model)
    from shapes import write_checkpoint

    from vivace.device.choice import pick_device

    write_checkpoint(model, folder / "model", pick_device(device))
    return folder / "model"


def measure(
    folder: Path, cache: Path, backend: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    name, _, streams = backend.partition(":")
    order = {
        "folder": str(folder),
        "device": arguments.device,
        "backend": name,
        "max_streams": int(streams) if streams else None,
        "is_readied": arguments.ready,
    }
    cold = start_process(order, cache)
    warm = [start_process(order, cache) for _ in range(arguments.repeats)]
    timeline = {}
    if arguments.timeline:
        timeline = {"timeline": start_process(order | {"is_timed": True}, cache)["timeline"]}
    return {
        "backend": cold["backend"],
        "max_streams": order["max_streams"],
        "cold": cold,
        "warm": _medians(warm),
        "cold_s": cold["phases"]["first_audio"],
        "warm_s": statistics.median(one["phases"]["first_audio"] for one in warm),
        "is_equal": all(one["speech"] == cold["speech"] for one in warm),
        **timeline,
    }


def bytecode_environment(folder: Path) -> dict[str, str]:
    """The environment of a process that caches bytecode in this folder."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    return environment


def write_bytecode(folder: Path) -> None:
    command = [sys.executable, "-c", IMPORTS]
    subprocess.run(command, env=bytecode_environment(folder), check=True)


def start_process(order: dict[str, Any], cache: Path) -> dict[str, Any]:
    environment = {
        **bytecode_environment(cache.parent),
        "XDG_CACHE_HOME": str(cache),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "CUDA_CACHE_PATH": str(cache / "cuda"),
        STARTED_AT: repr(time.time()),
    }
    command = [sys.executable, __file__, "--child", json.dumps(order)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# -- in the new process ---------------------------------------------------------------------------


def start_here(order: dict[str, Any]) -> dict[str, Any]:
    """Load the model and speak; returns the times."""
    began = float(os.environ[STARTED_AT])
    phases: dict[str, float] = {}
    parts: dict[str, float] = {}

    def end_phase(name: str) -> None:
        phases[name] = round(time.time() - began, 3)

    end_phase("interpreter")
    timeline = Timeline(began)
    if order.get("is_timed"):
        timeline.watch()
    import vivace.tts
    from vivace.checkpoint import Checkpoint
    from vivace.engine.checkpoints import loading

    end_phase("import_vivace")
    for owner, name in (
        (Checkpoint, "load_tokenizer"),
        (Checkpoint, "load_model"),
        (Checkpoint, "load_codec"),
        (loading, "import_backends"),
        (loading, "pick_device"),
        (loading, "build_backend"),
    ):
        _time_calls(owner, name, parts)
    with vivace.tts.TTS.load(
        order["folder"],
        device=order["device"],
        backend=order["backend"],
        max_streams=order["max_streams"],
    ) as tts:
        end_phase("load")
        voice = tts.speakers[0] if tts.speakers else None
        with tts.stream(TEXT, voice=voice, seed=0, max_frames=8, trim_start=False) as stream:
            chunks = [next(stream)]
            end_phase("first_audio")
            chunks += stream
        if order["is_readied"]:
            tts.warmup()
            end_phase("ready")
        speech = hashlib.sha256()
        for chunk in chunks:
            speech.update(chunk.samples.tobytes())
            speech.update(b"" if chunk.codes is None else chunk.codes.tobytes())
        found = {"backend": tts.engine.backend.name, "phases": phases, "parts": parts}
        return found | {"timeline": timeline.spans, "speech": speech.hexdigest()}


def _time_calls(owner: Any, name: str, parts: dict[str, float]) -> None:
    work = getattr(owner, name)

    @wraps(work)
    def timed(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return work(*arguments, **named)
        finally:
            parts[name] = round(parts.get(name, 0.0) + time.perf_counter() - began, 3)

    setattr(owner, name, timed)


# -- results --------------------------------------------------------------------------------------


def _medians(starts: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    return {
        kind: {
            name: round(statistics.median(one[kind][name] for one in starts), 3)
            for name in starts[0][kind]
        }
        for kind in ("phases", "parts")
    }


def print_row(result: dict[str, Any]) -> None:
    print(f"{result['backend']}: cold {result['cold_s']:.2f} s, warm {result['warm_s']:.2f} s")
    for kind in ("cold", "warm"):
        found = result[kind]
        print(f"  {kind}:", *(f"{name} {found['phases'][name]:.2f}" for name in found["phases"]))
        print("    parts:", *(f"{name} {found['parts'][name]:.2f}" for name in found["parts"]))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
