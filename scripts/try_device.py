"""Try every device and backend of this machine and print a report to send back.

    python scripts/try_device.py
    python scripts/try_device.py --device mps --model Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice

Each combination speaks one sentence with the embedded voice, and with `--model` if it is given. It
runs in a process of its own: a crash or a hang is reported, and the others still run. The report
contains versions, times and errors. It contains no host name, user name or path.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TEXT = "The quick brown fox jumps over the lazy dog."
SEED = 7
TIMEOUT_S = 600.0
DETAIL_CHARS = 300  # of an error
MARK = "REPORT "  # begins the line with the result of a process


@dataclass(frozen=True, slots=True)
class Trial:
    """One combination to try."""

    device: str
    backend: str
    weights: str = "full"
    model: str | None = None  # None: the embedded voice

    def describe(self) -> dict[str, str]:
        """The combination, without the path of a local model."""
        model = self.model or "embedded voice"
        is_local = Path(model).expanduser().exists()
        return {**asdict(self), "model": "local folder" if is_local else model}


def main() -> None:
    arguments = parse_arguments()
    if arguments.trial:
        print(MARK + json.dumps(run_trial(Trial(**json.loads(arguments.trial)))), flush=True)
        return
    report: dict[str, Any] = {"machine": describe_machine(), "trials": []}
    print(f"machine: {json.dumps(report['machine'])}", flush=True)
    for trial in find_trials(arguments.device, arguments.model):
        result = start_trial(trial, arguments.timeout)
        report["trials"].append({**trial.describe(), **result})
        print(json.dumps(report["trials"][-1]), flush=True)
    print("\nPlease send these lines to the maintainers, also if everything worked.")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", help="only this one: cpu, cuda or mps")
    parser.add_argument("--model", help="also try this hub id or checkpoint folder")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds per trial")
    parser.add_argument("--json", type=Path, help="write the report as JSON")
    parser.add_argument("--trial", help=argparse.SUPPRESS)
    return parser.parse_args()


def describe_machine() -> dict[str, Any]:
    import torch

    from vivace._version import __version__

    facts: dict[str, Any] = {
        "vivace": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "mps": torch.backends.mps.is_available(),
    }
    if torch.cuda.is_available():
        facts["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts


def find_trials(device: str | None, model: str | None) -> list[Trial]:
    """All backends that claim to run on the devices of this machine."""
    import torch

    from vivace.backends import survey

    devices = ["cpu"]
    if torch.cuda.is_available():
        devices.append("cuda")
    if torch.backends.mps.is_available():
        devices.append("mps")
    trials = []
    for name in devices if device is None else [device]:
        backends = [each.name for each, refusal in survey(torch.device(name)) if refusal is None]
        kinds = ("full", "int8", "int4") if name == "cpu" else ("full",)
        for source in (None, model) if model else (None,):
            trials += [Trial(name, each, kind, source) for each in backends for kind in kinds]
    return trials


def start_trial(trial: Trial, timeout_s: float) -> dict[str, Any]:
    """Run one trial in a new process."""
    command = [sys.executable, str(Path(__file__)), "--trial", json.dumps(asdict(trial))]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no result after {timeout_s:g} s"}
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            result: dict[str, Any] = json.loads(line.removeprefix(MARK))
            return result
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return {"error": f"the process ended with code {done.returncode}: {hide_paths(last)}"}


def run_trial(trial: Trial) -> dict[str, Any]:
    try:
        return speak(trial)
    except Exception as error:  # the report states it
        return {"error": hide_paths(f"{type(error).__name__}: {error}")}


def speak(trial: Trial) -> dict[str, Any]:
    """Speak twice: the first time compiles and warms up, the second is measured."""
    from vivace import TTS

    began = time.perf_counter()
    options: dict[str, Any] = {"backend": trial.backend, "weights": trial.weights}
    with TTS.load(trial.model, device=trial.device, **options) as tts:
        loaded = time.perf_counter()
        voice = tts.speakers[0] if tts.speakers else None
        first, second = (tts.speak(TEXT, voice=voice, seed=SEED) for _ in range(2))
        usage = second.usage
        return {
            "load_s": round(loaded - began, 2),
            "dtype": str(tts.dtype).removeprefix("torch."),
            "facts": tts.engine.backend.facts(),
            "first_audio_ms": round(usage.first_audio_ms or 0, 1),
            "times_real_time": round(usage.times_real_time, 2),
            "audio_s": round(usage.audio_s, 2),
            "finish_reason": second.finish_reason,
            "is_repeatable": bool(first.codes.shape == second.codes.shape)
            and bool((first.codes == second.codes).all()),
            "rms": round(float((second.samples**2).mean() ** 0.5), 4),
            "codes_sum": int(second.codes.sum()),
        }


def hide_paths(text: str) -> str:
    """An error without paths, which may contain user names."""
    text = " ".join(text.split())
    return re.sub(r"(?:[A-Za-z]:)?[\\/][^\s'\":,;]+", "…", text)[:DETAIL_CHARS]


if __name__ == "__main__":
    main()
