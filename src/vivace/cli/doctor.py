"""`vivace doctor`: shows packages, devices and backends, and how to fix the problems it finds."""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata

import torch

from vivace._version import __version__
from vivace.backends import survey
from vivace.backends.cpu import binding
from vivace.cli.findings import Machine, find_problems
from vivace.cli.request import load_model
from vivace.cli.streams import print_json, print_table
from vivace.device.choice import pick_device, pick_dtype
from vivace.device.threads import count_processors, default_threads
from vivace.model.torch_kernels import describe_kernels
from vivace.voices.library import VoiceLibrary

PACKAGES = (
    *("torch", "numpy", "safetensors", "tokenizers", "huggingface-hub", "soundfile", "soxr"),
    *("triton", "av", "sounddevice"),
)


def doctor(arguments: argparse.Namespace) -> None:
    machine = Machine.inspect()
    facts = list(_facts(machine))
    if arguments.model is not None:
        facts += _model_facts(arguments)
    problems = find_problems(machine)
    if arguments.json:
        print_json({**dict(facts), "problems": [asdict(one) for one in problems]}, indent=2)
        return
    print_table(facts, width=20)
    print_table([("problems", len(problems) or "none")], width=20)
    for one in problems:
        print_table([("  problem", one.problem), ("  fix", one.fix)], width=20)


def _facts(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "vivace", __version__
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    for package in PACKAGES:
        yield package, _version(package)
    yield "cpu", f"{count_processors()} usable processors, {default_threads()} threads used"
    yield "cuda", _cuda()
    yield "mps", "available" if torch.backends.mps.is_available() else "not available"
    device = pick_device()
    dtype = str(pick_dtype("auto", device)).removeprefix("torch.")
    codec = "half precision" if dtype == "bfloat16" and device.type == "cuda" else "float32"
    yield "auto picks", f"device {device}, talker in {dtype}, codec in {codec}"
    has_default = False
    for entry, refusal in survey(device):
        state = f"unavailable: {refusal}" if refusal else "available"
        if refusal is None and entry.max_streams is not None:
            state = f"available; auto selects it for up to {entry.max_streams} streams"
        elif refusal is None and not has_default:
            state, has_default = "available, selected by auto", True
        yield f"backend {entry.name}", f"{state} ({entry.summary})"
    yield "int8 and int4", _integer_kernels()
    yield "sound", f"plays through {machine.player}" if machine.player else machine.sound_error
    yield "model", os.environ.get("VIVACE_MODEL") or "the embedded voice (default)"
    yield "proof", "`vivace verify MODEL` compares a model with golden values"
    yield "voices", str(VoiceLibrary().folder)


def _model_facts(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    began = time.perf_counter()
    with load_model(arguments, max_streams=None) as tts:
        loaded = time.perf_counter()
        tts.warmup()
        ready = time.perf_counter()
        yield "loaded", f"{tts!r} in {loaded - began:.2f} s, warm-up {ready - loaded:.2f} s"
        yield from tts.engine.backend.facts().items()


def _integer_kernels() -> str:
    """The kernels for integer weights on the CPU, and the reason if they are not the fastest."""
    refusals = {entry.name: refusal for entry, refusal in survey(torch.device("cpu"))}
    refusal = refusals.get("cpu", "this version has none")
    if refusal is None:
        return f"C++ kernels of the backend cpu ({binding.instructions()})"
    return f"PyTorch ({describe_kernels()}); no C++ kernels: {refusal}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cuda() -> str:
    if not torch.cuda.is_available():
        return f"not available (torch built for CUDA {torch.version.cuda or 'none'})"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{', '.join(names)}; CUDA {torch.version.cuda}"
