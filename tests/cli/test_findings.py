"""Tests of the problems that `vivace doctor` finds, and of their fixes."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_harness import Captured
from vivace.cli import findings
from vivace.cli.findings import MODULES, Machine, find_problems
from vivace.cli.main import main

GPU_MACHINE = Machine(
    system="linux",
    processor="x86_64",
    driver="580.159.04",
    has_nvidia_gpu=True,
    torch_cuda="13.0",
    is_cuda_available=True,
    installer="apt-get",
    has_compiler=True,
    has_cpp_compiler=True,
    kernel_refusal=None,
    modules=frozenset(MODULES),
    has_portaudio=True,
    player="sounddevice",
    sound_error="",
    cache=Path("/home/ada/.cache/huggingface/hub"),
    num_free_bytes=500_000_000_000,
    is_cache_writable=True,
    missing_model=None,
)
NO_CUDA = {"is_cuda_available": False, "torch_cuda": None}
NO_KERNELS: dict[str, Any] = {
    "has_cpp_compiler": False,
    "kernel_refusal": "there is no C++ compiler",
}
SILENT: dict[str, Any] = {"player": None, "sound_error": "no sound output works (x: y); run: z"}


def without(*names: str) -> frozenset[str]:
    return frozenset(MODULES) - set(names)


def test_good_machine_has_no_problems() -> None:
    assert find_problems(GPU_MACHINE) == []


@pytest.mark.parametrize(
    ("change", "problem", "fix"),
    [
        (NO_CUDA, "built without CUDA", "pip install --force-reinstall torch"),
        (
            NO_CUDA | {"system": "win32", "processor": "AMD64"},
            "built without CUDA",
            "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130",
        ),
        (
            {"is_cuda_available": False, "driver": "535.129.03"},
            "driver 535.129.03 is older than 580, which CUDA 13.0 of torch needs",
            "install a newer driver from https://www.nvidia.com/drivers",
        ),
        ({"is_cuda_available": False}, "torch finds no GPU with the NVIDIA driver", "nvidia-smi"),
        ({"modules": without("triton")}, "Triton is missing", "pip install triton"),
        (
            {"modules": without("triton"), "system": "win32"},
            "Triton is missing",
            "pip install triton-windows",
        ),
        ({"has_compiler": False}, "no C compiler", "sudo apt-get install gcc libc6-dev"),
        (
            {"has_compiler": False, "installer": None},
            "no C compiler",
            "install gcc with the package manager of this system",
        ),
        (NO_KERNELS, "slower: there is no C++ compiler", "sudo apt-get install g++"),
        (NO_KERNELS | {"installer": "dnf"}, "no C++ kernels", "sudo dnf install gcc-c++"),
        (
            {"kernel_refusal": "c++ failed: no header\nin line 3"},
            "slower: c++ failed: no header",
            "export XDG_CACHE_HOME=",
        ),
        ({"modules": without("av")}, "AAC and M4B files", "pip install '.[av]'"),
        ({"modules": without("fastapi")}, "`vivace serve`", "pip install '.[server]'"),
        ({"modules": without("lxml")}, "EPUB and HTML", "pip install '.[books]'"),
        (
            SILENT | {"modules": without("sounddevice"), "has_portaudio": False},
            "sounddevice is missing",
            "pip install '.[play]' && sudo apt-get install libportaudio2",
        ),
        (
            SILENT | {"modules": without("sounddevice"), "system": "darwin"},
            "sounddevice is missing",
            "pip install '.[play]'",
        ),
        (
            SILENT | {"has_portaudio": False, "installer": "dnf"},
            "PortAudio is missing",
            "sudo dnf install portaudio",
        ),
        (SILENT, "no sound device: no sound output works (x: y)", "connect a sound device, or"),
        (
            {"num_free_bytes": 2_000_000_000},
            "2.0 GB are free in /home/ada/.cache/huggingface/hub; the largest model needs 4.5 GB",
            "export HF_HOME=",
        ),
        ({"is_cache_writable": False}, "downloads cannot be written to /home", "export HF_HOME="),
        ({"missing_model": "Qwen/X"}, "not downloaded yet", "vivace download Qwen/X"),
    ],
)
def test_problem_has_fix(change: dict[str, Any], problem: str, fix: str) -> None:
    (found,) = find_problems(dataclasses.replace(GPU_MACHINE, **change))
    assert problem in found.problem
    assert found.fix.startswith(fix)
    assert "\n" not in found.problem + found.fix


def test_gpu_without_driver_is_found() -> None:
    change: dict[str, Any] = NO_CUDA | {"driver": None}
    (found,) = find_problems(dataclasses.replace(GPU_MACHINE, **change))
    assert found.problem == "an NVIDIA GPU is present, but its driver is not"
    no_gpu = dataclasses.replace(GPU_MACHINE, **change, has_nvidia_gpu=False)
    assert find_problems(no_gpu) == []


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.129.03  Release Build",
    ],
)
def test_driver_version_is_read(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(findings, "DRIVER_FILE", tmp_path / "version")
    assert findings.nvidia_driver() == "535.129.03"
    monkeypatch.setattr(findings, "DRIVER_FILE", tmp_path / "nothing")
    monkeypatch.setenv("PATH", "")
    assert findings.nvidia_driver() is None


def test_gpu_on_pci_bus_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "PCI_DEVICES", tmp_path)
    for name, vendor, kind in (("audio", "0x10de", "0x040300"), ("amd", "0x1002", "0x030000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert not findings.has_nvidia_gpu()
    (tmp_path / "amd" / "vendor").write_text("0x10de\n")
    assert findings.has_nvidia_gpu()


def test_doctor_prints_problem_and_fix(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = dataclasses.replace(GPU_MACHINE, has_compiler=False)
    monkeypatch.setattr(Machine, "inspect", lambda: machine)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert re.fullmatch(r"problems +1", lines[0])
    assert re.fullmatch(r"  problem +no C compiler: .*", lines[1])
    assert re.fullmatch(r"  fix +sudo apt-get install gcc libc6-dev", lines[2])
    assert main(["doctor", "--json"]) == 0
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["fix"] == "sudo apt-get install gcc libc6-dev"


def test_doctor_without_problems_prints_none(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "inspect", lambda: GPU_MACHINE)
    assert main(["doctor"]) == 0
    assert re.fullmatch(r"problems +none", capsys.readouterr().out.splitlines()[-1])
