"""The persistent kernels without a GPU: compilation, supported dimensions, fallback."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import vivace.backends as backends
from tests.support.tiny import Tiny
from vivace.backends import AUTO_BACKEND, BackendEntry, Capacity, build_backend
from vivace.backends.cuda import nvrtc
from vivace.backends.megakernel.backend import MegakernelBackend, unfit
from vivace.backends.megakernel.kernel import architecture_of, arguments_type, source
from vivace.backends.megakernel.predictor import Dimensions
from vivace.backends.megakernel.talker import TalkerDimensions
from vivace.errors import BackendUnavailableError

SMALL = Dimensions(
    hidden=1024, inter=3072, heads=16, kv_heads=8, head_dim=128, layers=5, books=16, vocab=2048,
    width=1024, eps=1e-6,
)  # fmt: skip
LARGE = dataclasses.replace(SMALL, width=2048)
SMALL_TALKER = TalkerDimensions(
    hidden=1024, inter=3072, heads=16, kv_heads=8, head_dim=128, layers=28, eps=1e-6
)
LARGE_TALKER = dataclasses.replace(SMALL_TALKER, hidden=2048, inter=6144)
EMBEDDED = Dimensions(
    hidden=256, inter=512, heads=4, kv_heads=2, head_dim=64, layers=3, books=6, vocab=512,
    width=256, eps=1e-6,
)  # fmt: skip
EMBEDDED_TALKER = TalkerDimensions(
    hidden=256, inter=768, heads=4, kv_heads=2, head_dim=64, layers=8, eps=1e-6
)
SMALL_FP8 = dataclasses.replace(SMALL, fp8_mlp=1, fp8_others=1)
LARGE_FP8 = dataclasses.replace(LARGE, fp8_mlp=1, fp8_others=1)
SMALL_TALKER_FP8 = dataclasses.replace(SMALL_TALKER, fp8_mlp=1)
LARGE_TALKER_FP8 = dataclasses.replace(LARGE_TALKER, fp8_mlp=1)
ARCHITECTURES = tuple(f"sm_{number}" for number in (80, 86, 89, "90a", 100, 120))


def compile_kernel(
    architecture: str, size: Dimensions | TalkerDimensions, *more: str, appended: str = ""
) -> bytes:
    name = "talker" if isinstance(size, TalkerDimensions) else "predictor"
    options = [*size.options, f"-DSLOT_BYTES={size.slot_bytes}", *more]
    return nvrtc.compile_source(source(f"{name}.cu") + appended, architecture, options)


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        nvrtc.check_installed()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


SMALL_SIZES = (SMALL, SMALL_TALKER, SMALL_FP8, SMALL_TALKER_FP8)
LARGE_SIZES = (LARGE, LARGE_TALKER, LARGE_FP8, LARGE_TALKER_FP8)
KERNELS = [
    *(("sm_90a", size) for size in (*LARGE_SIZES, EMBEDDED, EMBEDDED_TALKER)),
    *((each, size) for size in SMALL_SIZES for each in ARCHITECTURES),
]
IN_CI = [("sm_80", SMALL), ("sm_90a", LARGE_TALKER_FP8)]  # the oldest architecture, and FP8


@pytest.mark.usefixtures("compiler")
def test_kernels_of_every_size_pass_the_front_end() -> None:
    """Without machine code, which takes 95 % of a compilation."""
    for size in (*LARGE_SIZES, *SMALL_SIZES, EMBEDDED, EMBEDDED_TALKER):
        compile_kernel("sm_90a", size, "--dlink-time-opt")
    with pytest.raises(BackendUnavailableError, match="nonsense"):
        compile_kernel("sm_90a", SMALL, "--dlink-time-opt", appended="nonsense;")


@pytest.mark.default_cases(1)
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("architecture", "size"),
    [
        pytest.param(*each, marks=() if each in IN_CI else pytest.mark.slow)
        for each in sorted(KERNELS, key=lambda each: each not in IN_CI)
    ],
)
def test_kernels_compile_for_every_architecture(
    architecture: str, size: Dimensions | TalkerDimensions
) -> None:
    code = compile_kernel(architecture, size)
    assert code.startswith(b"\x7fELF")
    name = b"talker_kernel" if isinstance(size, TalkerDimensions) else b"predictor_kernel"
    assert name in code


@pytest.mark.usefixtures("compiler")
def test_compiled_code_is_cached_by_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'extern "C" __global__ void kernel() {}'
    made = [nvrtc.compile_source(text, "sm_90", []), nvrtc.compile_source(text, "sm_80", [])]
    assert made[0] != made[1]
    assert len(list(tmp_path.rglob("*.cubin"))) == 2
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: pytest.fail("compiled again"))
    assert nvrtc.compile_source(text, "sm_90", []) == made[0]


@pytest.mark.usefixtures("compiler")
def test_compile_source_works_with_unwritable_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert nvrtc.compile_source('extern "C" __global__ void kernel() {}', "sm_90", [])


@pytest.mark.usefixtures("compiler")
def test_compile_error_names_the_line() -> None:
    with pytest.raises(BackendUnavailableError, match=r"kernel\.cu\(1\)"):
        nvrtc.compile_source("nonsense;", "sm_90", [])


@pytest.mark.usefixtures("compiler")
def test_unsupported_dimensions_are_refused_before_compilation() -> None:
    for change in ({"hidden": 2112}, {"inter": 3000}, {"books": 17}, {"head_dim": 32}):
        odd = dataclasses.replace(SMALL, **change)
        assert odd.refusal is not None
        with pytest.raises(BackendUnavailableError, match="does not compile"):
            compile_kernel("sm_90", odd)
    for change in ({"hidden": 1000}, {"inter": 3000}, {"head_dim": 96}, {"kv_heads": 1}):
        strange = dataclasses.replace(SMALL_TALKER, **change)
        assert strange.refusal is not None
        with pytest.raises(BackendUnavailableError, match="does not compile"):
            compile_kernel("sm_90", strange)
    for size in (SMALL, LARGE, SMALL_TALKER, LARGE_TALKER, EMBEDDED, EMBEDDED_TALKER):
        assert size.refusal is None


def test_kernel_arguments_are_those_of_the_cuda_struct() -> None:
    arguments = arguments_type(source("talker.cu"))
    kinds = {field[0]: field[1] for field in arguments._fields_}
    assert list(kinds)[:3] == ["weights", "x", "hidden"]
    assert list(kinds)[-2:] == ["pages_stride", "score_stride"]
    assert kinds["weights"] is kinds["scores"] is ctypes.c_uint64
    assert kinds["head_stride"] is ctypes.c_int64
    assert kinds["score_stride"] is ctypes.c_uint32
    assert ctypes.sizeof(arguments) == 160
    assert ctypes.sizeof(arguments_type(source("predictor.cu"))) == 128


def test_architecture_of_hopper_is_sm_90a() -> None:
    names = [architecture_of(each) for each in ((8, 0), (8, 6), (9, 0), (10, 0), (12, 0))]
    assert names == ["sm_80", "sm_86", "sm_90a", "sm_100", "sm_120"]


def test_unfit_names_dtype_streams_or_tiles(tiny: Callable[[str], Tiny]) -> None:
    part = tiny("custom_voice")
    assert "bfloat16" in (unfit(part.model, None) or "")
    assert "8 streams, not 9" in (unfit(part.model, 9) or "")
    with pytest.raises(BackendUnavailableError, match="bfloat16"):
        MegakernelBackend(part.model, part.codec)
    rounded = part.checkpoint.load_model(torch.device("cpu"), torch.bfloat16)
    assert "tiles" in (unfit(rounded, None) or "")


class Found:
    """Stub of a backend."""

    def __init__(self, *_: object) -> None:
        pass


def fail_to_build(*_: object) -> Any:
    raise BackendUnavailableError("the kernel does not compile")


def entry(name: str, **changes: Any) -> BackendEntry:
    parts: dict[str, Any] = {"refusal": lambda device: None, "build": Found} | changes
    return BackendEntry(name, "for a test", **parts)


def test_auto_logs_reason_and_tries_next_backend(
    tiny: Callable[[str], Tiny], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    part = tiny("custom_voice")
    entries = (
        entry("elsewhere", refusal=lambda device: "no such device"),
        entry("unfit", unfit=lambda model, room: f"not for {room.max_streams} streams"),
        entry("broken", build=fail_to_build),
        entry("slower", build=fail_to_build, slower=lambda model, room: "another is faster"),
        entry("last"),
    )
    monkeypatch.setattr(backends, "BACKENDS", entries)
    with caplog.at_level(logging.INFO, "vivace.backends"):
        assert isinstance(build_backend(AUTO_BACKEND, part.model, part.codec, Capacity(3)), Found)
    said = {record.getMessage(): record.levelname for record in caplog.records}
    assert said == {
        "backend elsewhere skipped: no such device": "INFO",
        "backend unfit skipped: not for 3 streams": "INFO",
        "backend broken failed, trying the next one: the kernel does not compile": "WARNING",
        "backend slower skipped: another is faster": "INFO",
    }
    with pytest.raises(BackendUnavailableError, match="compile"):
        build_backend("slower", part.model, part.codec, Capacity(3))
    monkeypatch.setattr(backends, "BACKENDS", entries)
    for name, reason in (("unfit", "not for 3"), ("broken", "compile"), ("elsewhere", "device")):
        with pytest.raises(BackendUnavailableError, match=reason):
            build_backend(name, part.model, part.codec, Capacity(3))
