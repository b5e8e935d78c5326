"""The early start of a GPU and its release."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vivace.device.gpu_start import early_start


class StubDriver:
    """Counts the references to the primary context of one GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, library: Path, *, fault: str = "") -> None:
        self.fault, self.num_held, self.calls = fault, 0, list[str]()
        library.mkdir(parents=True)
        (library / "libtorch_cuda.so").touch()
        monkeypatch.setattr(
            "vivace.device.gpu_start.package_file", lambda package, name: library.parent / name
        )
        monkeypatch.setattr("vivace.device.gpu_start.may_have_gpu", lambda: True)
        self.libraries: list[tuple[str, int]] = []
        monkeypatch.setattr("ctypes.CDLL", self.open_library)
        monkeypatch.delitem(sys.modules, "torch")
        monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")

    def open_library(self, name: str, mode: int = ctypes.DEFAULT_MODE) -> StubDriver:
        self.libraries.append((Path(name).name, mode))
        return self

    def cuInit(self, flags: int) -> int:
        self.calls.append("init")
        return int(self.fault == "init")

    def cuDeviceGet(self, device: object, index: int) -> int:
        self.calls.append(f"get {index}")
        return int(self.fault == "get")

    def cuDevicePrimaryCtxRetain(self, context: object, device: object) -> int:
        self.num_held += 1
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: object) -> int:
        self.num_held -= 1
        self.calls.append("release")
        return 0


@pytest.mark.parametrize(("name", "index"), [("auto", 0), ("cuda", 0), ("cuda:3", 3)])
def test_early_start_is_released_after_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, index: int
) -> None:
    driver = StubDriver(monkeypatch, tmp_path / "lib")
    with pytest.raises(MemoryError), early_start(name, 2**30):
        raise MemoryError
    assert driver.calls == ["init", f"get {index}", "release"]
    assert driver.num_held == 0


def test_early_start_loads_the_libraries_of_pytorch_in_the_order_of_its_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = StubDriver(monkeypatch, tmp_path / "lib")
    with early_start("auto", None) as is_early:
        pass
    assert is_early
    assert [one for one in driver.libraries if one[0] != "libcuda.so.1"] == [
        ("libtorch_global_deps.so", ctypes.RTLD_GLOBAL),
        ("libtorch.so", ctypes.DEFAULT_MODE),
    ]


def test_early_start_after_the_import_of_pytorch_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = StubDriver(monkeypatch, tmp_path / "lib")
    monkeypatch.setitem(sys.modules, "torch", torch)
    with early_start("auto", None) as is_early:
        pass
    assert not is_early
    assert driver.libraries == []


@pytest.mark.parametrize("fault", ["init", "get"])
def test_missing_gpu_has_no_early_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    driver = StubDriver(monkeypatch, tmp_path / "lib", fault=fault)
    with early_start("auto", None):
        pass
    assert driver.calls[-1] in ("init", "get 0")
    assert driver.num_held == 0


@pytest.mark.parametrize(
    ("name", "num_bytes"), [("cpu", 2**30), ("mps", 2**30), ("auto", 1000), ("cuda:x", 2**30)]
)
def test_other_devices_and_small_models_have_no_early_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, num_bytes: int
) -> None:
    driver = StubDriver(monkeypatch, tmp_path / "lib")
    with early_start(name, num_bytes):
        pass
    assert driver.calls == []


def test_pytorch_for_the_cpu_has_no_early_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = StubDriver(monkeypatch, tmp_path / "lib")
    (tmp_path / "lib/libtorch_cuda.so").unlink()
    with early_start("auto", None):
        pass
    assert driver.calls == []


def test_device_of_another_type_starts_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    device: Any = 5
    with early_start(device, None) as is_started:
        assert not is_started
