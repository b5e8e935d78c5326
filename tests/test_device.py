"""Choice of device and precision, forks, and garbage collection during a load."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from vivace import TTS
from vivace.device import (
    SWITCH_INTERVAL_S,
    can_fork,
    early_start,
    paused_collector,
    pick_device,
    pick_dtype,
    short_switch_interval,
)
from vivace.errors import BackendUnavailableError, RequestError


def test_cuda_without_a_gpu_is_rejected(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        BackendUnavailableError, match=r"'cuda' was requested.*sees no CUDA GPU.*device=.cpu"
    ):
        TTS.load(tiny_folder / "base", device="cuda")


def test_gpu_beyond_the_last_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(BackendUnavailableError, match=r"'cuda:2' was requested.*are 2 CUDA GPUs"):
        pick_device("cuda:2")


@pytest.mark.parametrize("device", ["gpu", "", "meta", "cuda:x", "cpu cpu", None])
def test_unknown_device_is_rejected(tiny_folder: Path, device: Any) -> None:
    with pytest.raises(RequestError, match=r"no device named .*try auto, cpu, cuda"):
        TTS.load(tiny_folder / "base", device=device)


def test_auto_device_prefers_cuda_then_mps_then_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    picked = []
    for has_cuda, has_mps in ((True, True), (False, True), (False, False)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=has_cuda: found)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda found=has_mps: found)
        picked.append(pick_device("auto").type)
    assert picked == ["cuda", "mps", "cpu"]


def test_auto_device_of_a_small_model_is_the_cpu(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert pick_device("auto", 2 << 30).type == "cuda"
    assert pick_device("auto", 40 << 20).type == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert pick_device("cuda:0", 40 << 20) == torch.device("cuda:0")
    with TTS.load(tiny_folder / "custom_voice") as tts:
        assert (tts.device.type, tts.dtype) == ("cpu", torch.float32)


def test_auto_dtype_is_bfloat16_if_supported_and_warns_once_otherwise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert pick_dtype("auto", torch.device("cuda")) == torch.bfloat16
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an old GPU")
    for _ in range(2):
        assert pick_dtype("auto", torch.device("cuda")) == torch.float32
    assert [line.message for line in caplog.records] == [
        "an old GPU has no bfloat16, so the talker runs in float32: slower, and exact"
    ]
    assert pick_dtype("auto", torch.device("cpu")) == torch.float32


@pytest.mark.parametrize("dtype", ["float16", "half", torch.float16])
def test_float16_is_rejected_with_the_reason(tiny_folder: Path, dtype: Any) -> None:
    with pytest.raises(RequestError, match="float16 is refused: the talker's logits overflow"):
        TTS.load(tiny_folder / "base", dtype=dtype)


@pytest.mark.parametrize("dtype", ["int8", torch.float64, "torch.bfloat32"])
def test_unknown_dtype_raises_with_the_known_ones(tiny_folder: Path, dtype: Any) -> None:
    with pytest.raises(RequestError, match="try one of: auto, float32, bfloat16"):
        TTS.load(tiny_folder / "base", dtype=dtype)


def test_unknown_backend_raises_with_the_known_ones(tiny_folder: Path) -> None:
    with pytest.raises(BackendUnavailableError, match=r"no backend named 'warp'; .*auto.*eager"):
        TTS.load(tiny_folder / "base", device="cpu", backend="warp")


@pytest.mark.parametrize(
    ("machine", "device", "threads", "expected"),
    [
        ("x86_64", "cpu", 1, True),
        ("x86_64", "cpu", 2, False),
        ("x86_64", "cpu", None, False),
        ("x86_64", "cuda", 1, False),
        ("aarch64", "cpu", 1, False),
        ("arm64", "cpu", 1, False),
    ],
)
def test_can_fork_is_true_only_for_one_cpu_thread(
    monkeypatch: pytest.MonkeyPatch, machine: str, device: str, threads: int | None, expected: bool
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert can_fork(device, threads) is expected


def test_garbage_is_collected_again_after_concurrent_loads() -> None:
    assert gc.isenabled()
    first, second = paused_collector(), paused_collector()
    first.__enter__()
    assert not gc.isenabled()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_garbage_is_collected_again_after_a_failed_load() -> None:
    with pytest.raises(MemoryError), paused_collector():
        raise MemoryError
    assert gc.isenabled()


def test_disabled_collector_stays_disabled_after_a_load() -> None:
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.fixture
def switch_interval() -> Iterator[float]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield sys.getswitchinterval()
    sys.setswitchinterval(before)


def test_switch_interval_is_restored_after_concurrent_loads(switch_interval: float) -> None:
    first, second = short_switch_interval(), short_switch_interval()
    first.__enter__()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == switch_interval


def test_switch_interval_is_restored_after_a_failed_load(switch_interval: float) -> None:
    with pytest.raises(MemoryError), short_switch_interval():
        raise MemoryError
    assert sys.getswitchinterval() == switch_interval


def test_shorter_switch_interval_of_the_program_is_kept(switch_interval: float) -> None:
    sys.setswitchinterval(0.0001)
    with short_switch_interval():
        assert sys.getswitchinterval() == pytest.approx(0.0001)
    assert sys.getswitchinterval() == pytest.approx(0.0001)


class StubDriver:
    """Counts the references to the primary context of one GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, library: Path, *, fault: str = "") -> None:
        self.fault, self.num_held, self.calls = fault, 0, list[str]()
        library.mkdir(parents=True)
        (library / "libtorch_cuda.so").touch()
        monkeypatch.setattr(
            "vivace.device.package_file", lambda package, name: library.parent / name
        )
        monkeypatch.setattr("vivace.device.may_have_gpu", lambda: True)
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
