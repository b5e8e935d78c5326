"""Finds what is missing or misconfigured on this machine, each with a command that fixes it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from ctypes.util import find_library
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from vivace.audio.play import find_output
from vivace.backends.cpu.build import find_refusal
from vivace.backends.cpu.compiler import has_compiler as has_cpp_compiler
from vivace.errors import AudioError, install_command
from vivace.hub import MODELS, cache_folder, cached_share

DRIVER_FILE = Path("/proc/driver/nvidia/version")
PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA_VENDOR, DISPLAY_CLASS = "0x10de", "0x03"
MIN_DRIVERS = {11: 450, 12: 525, 13: 580}  # lowest driver of each CUDA version
TORCH_INDEX = "--index-url https://download.pytorch.org/whl/cu130"
INSTALLERS = {  # by program
    "apt-get": "sudo apt-get install",
    "dnf": "sudo dnf install",
    "pacman": "sudo pacman -S",
    "zypper": "sudo zypper install",
    "brew": "brew install",
}
PORTAUDIO = {"apt-get": "libportaudio2", "zypper": "libportaudio2"}  # others: portaudio
CPP_COMPILERS = {"apt-get": "g++", "dnf": "gcc-c++", "zypper": "gcc-c++"}  # others: gcc
EXTRAS = {  # extra: (module, what does not work without it)
    "server": ("fastapi", "`vivace serve` does not start"),
    "av": ("av", "AAC and M4B files cannot be written"),
    "books": ("lxml", "EPUB and HTML books cannot be read"),
}
MODULES = ("triton", "sounddevice", *(module for module, _ in EXTRAS.values()))
MOVE_CACHE = "export HF_HOME=/folder/on/another/disk"
MOVE_KERNELS = "export XDG_CACHE_HOME=/folder/on/another/disk, or export CXX=another compiler"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, and the command or instruction that fixes it."""

    problem: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The facts that the checks use."""

    system: str  # as `sys.platform`
    processor: str
    driver: str | None  # version of the NVIDIA driver
    has_nvidia_gpu: bool  # on the PCI bus
    torch_cuda: str | None  # CUDA version that torch is built for
    is_cuda_available: bool
    installer: str | None  # a program of INSTALLERS
    has_compiler: bool
    has_cpp_compiler: bool
    kernel_refusal: str | None  # why the C++ kernels of the CPU cannot be used
    modules: frozenset[str]  # installed ones of MODULES
    has_portaudio: bool  # the wheels of other systems than Linux contain it
    player: str | None  # sound output that works
    sound_error: str
    cache: Path  # of downloads
    num_free_bytes: int
    is_cache_writable: bool
    missing_model: str | None  # released model of VIVACE_MODEL that is not downloaded

    @classmethod
    def inspect(cls) -> Machine:
        player, sound_error = _find_player()
        cache = cache_folder()
        folder = next(path for path in (cache, *cache.parents) if path.exists())
        return cls(
            system=sys.platform,
            processor=platform.machine(),
            driver=nvidia_driver(),
            has_nvidia_gpu=has_nvidia_gpu(),
            torch_cuda=torch.version.cuda,
            is_cuda_available=torch.cuda.is_available(),
            installer=next(filter(shutil.which, INSTALLERS), None),
            has_compiler=any(map(shutil.which, (os.environ.get("CC") or "cc", "gcc"))),
            has_cpp_compiler=has_cpp_compiler(),
            kernel_refusal=find_refusal(),
            modules=frozenset(name for name in MODULES if find_spec(name) is not None),
            has_portaudio=sys.platform != "linux" or find_library("portaudio") is not None,
            player=player,
            sound_error=sound_error,
            cache=cache,
            num_free_bytes=shutil.disk_usage(folder).free,
            is_cache_writable=os.access(folder, os.W_OK),
            missing_model=_missing_model(),
        )

    def install(self, packages: str) -> str:
        """The command that installs packages of the system."""
        if self.installer is None:
            return f"install {packages} with the package manager of this system"
        return f"{INSTALLERS[self.installer]} {packages}"

    @property
    def install_portaudio(self) -> str:
        return self.install(PORTAUDIO.get(self.installer or "", "portaudio"))


def find_problems(machine: Machine) -> list[Finding]:
    return [finding for check in CHECKS for finding in check(machine)]


def _find_player() -> tuple[str | None, str]:
    try:
        return find_output().name, ""
    except AudioError as error:
        return None, str(error)


def _missing_model() -> str | None:
    named = [model for model in MODELS if model.name == os.environ.get("VIVACE_MODEL")]
    return next((model.name for model in named if cached_share(model) < 1), None)


def nvidia_driver() -> str | None:
    """The version of the loaded NVIDIA driver, or None."""
    try:
        text = DRIVER_FILE.read_text("utf-8")
    except OSError:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            text = subprocess.run(
                command, capture_output=True, text=True, timeout=20, check=True
            ).stdout
        except (OSError, subprocess.SubprocessError):
            return None
    version = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", text)
    return version[0] if version else None


def has_nvidia_gpu() -> bool:
    """Whether the PCI bus has an NVIDIA GPU. False on systems that do not list their devices."""
    for device in PCI_DEVICES.glob("*"):
        try:
            vendor, kind = ((device / name).read_text("ascii") for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor.strip() == NVIDIA_VENDOR and kind.startswith(DISPLAY_CLASS):
            return True
    return False


# -- checks ------------------------------------------------------------------------------------


def check_gpu(machine: Machine) -> Iterator[Finding]:
    if machine.is_cuda_available:
        return
    if machine.driver is None:
        if machine.has_nvidia_gpu:
            fix = "install the driver from https://www.nvidia.com/drivers"
            if Path("/.dockerenv").exists():
                fix = "docker run --gpus all …"
            yield Finding("an NVIDIA GPU is present, but its driver is not", fix)
    elif machine.torch_cuda is None:
        is_default = (machine.system, machine.processor) == ("linux", "x86_64")
        index = "" if is_default else f" {TORCH_INDEX}"
        yield Finding(
            f"torch {torch.__version__} is built without CUDA, but an NVIDIA GPU is present",
            f"pip install --force-reinstall torch{index}",
        )
    else:
        yield _driver_problem(machine.driver, machine.torch_cuda)


def _driver_problem(driver: str, cuda: str) -> Finding:
    needed = MIN_DRIVERS.get(int(cuda.partition(".")[0]), 0)
    if int(driver.partition(".")[0]) < needed:
        return Finding(
            f"the NVIDIA driver {driver} is older than {needed}, which CUDA {cuda} of torch needs",
            "install a newer driver from https://www.nvidia.com/drivers",
        )
    return Finding(f"torch finds no GPU with the NVIDIA driver {driver}", "nvidia-smi")


def check_kernels(machine: Machine) -> Iterator[Finding]:
    """The fast backends compile kernels with Triton and a C compiler."""
    if not machine.is_cuda_available or machine.torch_cuda is None:
        return
    if "triton" not in machine.modules:
        package = "triton-windows" if machine.system == "win32" else "triton"
        yield Finding("Triton is missing: the GPU backends do not run", f"pip install {package}")
    if not machine.has_compiler and machine.system != "win32":
        yield Finding(
            "no C compiler: Triton cannot build the GPU kernels",
            machine.install("gcc libc6-dev" if machine.installer == "apt-get" else "gcc"),
        )


def check_cpu_kernels(machine: Machine) -> Iterator[Finding]:
    """The backend `cpu` compiles its library with a C++ compiler."""
    if machine.kernel_refusal is None or machine.system == "win32":
        return
    if machine.has_cpp_compiler:
        fix = MOVE_KERNELS
    else:
        fix = machine.install(CPP_COMPILERS.get(machine.installer or "", "gcc"))
    reason = machine.kernel_refusal.partition("\n")[0]
    yield Finding(f"no C++ kernels, speech on the CPU is slower: {reason}", fix)


def check_extras(machine: Machine) -> Iterator[Finding]:
    for extra, (module, consequence) in EXTRAS.items():
        if module not in machine.modules:
            yield Finding(f"{module} is missing: {consequence}", install_command(extra))


def check_sound(machine: Machine) -> Iterator[Finding]:
    if machine.player is not None:
        return
    if "sounddevice" not in machine.modules:
        fix = install_command("play")
        if not machine.has_portaudio:
            fix += f" && {machine.install_portaudio}"
        yield Finding("sounddevice is missing: speech cannot be played", fix)
    elif not machine.has_portaudio:
        yield Finding("PortAudio is missing: speech cannot be played", machine.install_portaudio)
    else:
        yield Finding(
            f"no sound device: {machine.sound_error.partition(';')[0]}",
            "connect a sound device, or write a file with -o FILE",
        )


def check_cache(machine: Machine) -> Iterator[Finding]:
    num_needed = max(model.num_bytes for model in MODELS)
    if not machine.is_cache_writable:
        yield Finding(f"downloads cannot be written to {machine.cache}", MOVE_CACHE)
    elif machine.num_free_bytes < num_needed:
        yield Finding(
            f"{machine.num_free_bytes / 1e9:.1f} GB are free in {machine.cache}; the largest model "
            f"needs {num_needed / 1e9:.1f} GB",
            MOVE_CACHE,
        )
    if machine.missing_model is not None:
        yield Finding(
            f"VIVACE_MODEL is {machine.missing_model}, which is not downloaded yet",
            f"vivace download {machine.missing_model}",
        )


CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    check_gpu,
    check_kernels,
    check_cpu_kernels,
    check_extras,
    check_sound,
    check_cache,
)
