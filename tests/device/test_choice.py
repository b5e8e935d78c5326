"""Choice of device and precision, and of forks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from vivace import TTS
from vivace.device.choice import can_fork, pick_device, pick_dtype
from vivace.errors import BackendUnavailableError, RequestError


def test_cuda_without_a_gpu_is_rejected(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        BackendUnavailableError, match=r"'cuda' was requested.*sees no CUDA GPU.*use device cpu"
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
