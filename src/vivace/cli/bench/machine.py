"""Describes the machine, package versions and commit of a benchmark."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

import torch


def machine() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    for package in ("triton", "transformers", "qwen-tts", "faster-qwen3-tts"):
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["cuda"] = torch.version.cuda
        facts["driver"] = _first_line(
            "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"
        )
    return facts


def _commit() -> str:
    """The commit of the checkout, or VIVACE_COMMIT for a copy without git history."""
    given = os.environ.get("VIVACE_COMMIT")
    return given or _first_line("git", "describe", "--always", "--dirty") or "unknown"


def _cpu() -> str:
    for line in _output("lscpu").splitlines():
        if line.startswith("Model name:"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _first_line(*command: str) -> str:
    return (_output(*command).splitlines() or [""])[0].strip()


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
