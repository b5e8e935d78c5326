"""Kernels are collected without a launch and compiled in threads. Triton is replaced by a stub."""

from __future__ import annotations

import itertools
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vivace.backends.cuda_graph import compile as compile_module
from vivace.backends.cuda_graph.compile import KernelCompiler, is_collecting, use_writable_cache
from vivace.errors import BackendUnavailableError

CPU = torch.device("cpu")


class StubKernel:
    """Has the parts of `triton.runtime.jit.JITFunction` that the compiler uses."""

    def __init__(self, name: str, knobs: Any, fault: Callable[[str], None] = lambda _: None):
        self.__name__ = name
        self.knobs, self.fault = knobs, fault
        self.cache: dict[str, SimpleNamespace] = {}
        self.launches: list[str] = []
        self.compiled: list[str] = []
        self.threads: set[int] = set()

    def __getitem__(self, grid: object) -> Callable[..., object]:
        return lambda *args, **named: self.run(*args, grid=grid, warmup=False, **named)

    def run(self, key: str, *, grid: object, warmup: bool) -> object:
        if key not in self.cache and self._compile(key) is None:
            return None
        if not warmup:
            self.launches.append(key)
        return self.cache[key]

    def preload(self, specialization: str) -> SimpleNamespace | None:
        return self._compile(specialization)

    def _compile(self, key: str) -> SimpleNamespace | None:
        hook = self.knobs.runtime.jit_cache_hook
        info = SimpleNamespace(name=self.__name__, jit_function=self)
        given = {"key": key, "specialization_data": key}
        if hook is not None and hook(key=key, repr="", fn=info, compile=given):
            return None
        self.fault(key)
        self.compiled.append(key)
        self.threads.add(threading.get_ident())
        self.cache[key] = SimpleNamespace(run=object())
        return self.cache[key]


@pytest.fixture
def knobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A stub of Triton, installed as `triton`."""
    knobs = types.ModuleType("triton.knobs")
    knobs.runtime = SimpleNamespace(jit_cache_hook=None)  # type: ignore[attr-defined]
    knobs.compilation = SimpleNamespace(always_compile=False)  # type: ignore[attr-defined]
    knobs.cache = SimpleNamespace(dir=str(tmp_path / "triton"))  # type: ignore[attr-defined]
    triton = types.ModuleType("triton")
    triton.knobs = knobs  # type: ignore[attr-defined]
    jit = types.ModuleType("triton.runtime.jit")
    jit.JITFunction = StubKernel  # type: ignore[attr-defined]
    modules = {"triton": triton, "triton.knobs": knobs, "triton.runtime.jit": jit}
    modules["triton.runtime"] = types.ModuleType("triton.runtime")
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return knobs


@pytest.fixture
def kernels(knobs: Any) -> dict[str, StubKernel]:
    return {name: StubKernel(name, knobs) for name in ("product", "attend")}


@pytest.fixture
def compiler(knobs: Any) -> KernelCompiler:
    return KernelCompiler(CPU)


def test_each_missing_variant_is_compiled_once_in_other_threads_and_not_launched(
    compiler: KernelCompiler, kernels: dict[str, StubKernel], knobs: Any
) -> None:
    product, attend = kernels["product"], kernels["attend"]
    product[1]("known")
    launched = list(product.launches)

    def work() -> None:
        assert is_collecting()
        for _ in range(3):
            product[1]("known")
            product[1]("a")
            attend[1]("b")

    compiler.compile([work, lambda: product[1]("c")])
    assert product.launches == launched
    assert attend.launches == []
    assert sorted(product.compiled) == ["a", "c", "known"]
    assert attend.compiled == ["b"]
    assert threading.get_ident() not in attend.threads
    assert not is_collecting()
    assert knobs.runtime.jit_cache_hook is None
    attend[1]("b")
    assert attend.launches == ["b"]
    assert attend.compiled == ["b"]


def test_kernel_that_does_not_compile_is_named(
    compiler: KernelCompiler, kernels: dict[str, StubKernel], knobs: Any
) -> None:
    def fail(key: str) -> None:
        if key == "bad":
            raise RuntimeError("at line 3\nunsupported tile")

    kernels["attend"].fault = fail
    with pytest.raises(BackendUnavailableError, match=r"kernel attend .*: unsupported tile"):
        compiler.compile([lambda: kernels["attend"][1]("bad"), lambda: kernels["product"][1]("a")])
    assert kernels["product"].compiled == ["a"]
    assert not is_collecting()
    assert knobs.runtime.jit_cache_hook is None
    assert knobs.compilation.always_compile is False
    kernels["product"][1]("a")
    assert kernels["product"].launches == ["a"]


def test_error_of_the_work_itself_restores_launches(
    compiler: KernelCompiler, kernels: dict[str, StubKernel]
) -> None:
    def work() -> None:
        raise ValueError("not a kernel")

    with pytest.raises(ValueError, match="not a kernel"):
        compiler.compile([work])
    kernels["product"][1]("a")
    assert kernels["product"].launches == ["a"]


def test_damaged_cache_of_triton_is_not_read_again(
    compiler: KernelCompiler, kernels: dict[str, StubKernel], knobs: Any
) -> None:
    def read_cache(key: str) -> None:
        if not knobs.compilation.always_compile:
            raise ValueError("Expecting value: line 1 column 1 (char 0)")

    kernels["product"].fault = read_cache
    compiler.compile([lambda: kernels["product"][1]("a")])
    assert kernels["product"].compiled == ["a"]
    assert knobs.compilation.always_compile is False


def test_other_threads_launch_while_kernels_are_collected(
    compiler: KernelCompiler, kernels: dict[str, StubKernel]
) -> None:
    product = kernels["product"]

    def work() -> None:
        other = threading.Thread(target=lambda: product[1]("other"))
        other.start()
        other.join()

    compiler.compile([work])
    assert product.launches == ["other"]


def test_hook_of_another_program_still_sees_its_kernels(
    compiler: KernelCompiler, kernels: dict[str, StubKernel], knobs: Any
) -> None:
    seen: list[str] = []

    def hook(*, key: str, **_: object) -> None:
        seen.append(key)

    knobs.runtime.jit_cache_hook = hook
    compiler.compile([lambda: kernels["product"][1]("a")])
    assert seen == ["a"]
    assert knobs.runtime.jit_cache_hook is hook


def test_two_compilers_take_turns(compiler: KernelCompiler, kernels: dict[str, StubKernel]) -> None:
    num_inside, most = 0, 0
    lock, keys = threading.Lock(), itertools.count()

    def work() -> None:
        nonlocal num_inside, most
        with lock:
            num_inside += 1
            most = max(most, num_inside)
        kernels["product"][1](str(next(keys)))
        with lock:
            num_inside -= 1

    threads = [threading.Thread(target=lambda: compiler.compile([work])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert len(kernels["product"].compiled) == 4


@pytest.fixture
def unwritable(tmp_path: Path) -> Path:
    """A path below a file: no user can create it, not even root."""
    (tmp_path / "file").write_bytes(b"")
    return tmp_path / "file" / "cache"


def test_unwritable_cache_of_triton_is_replaced(
    knobs: Any, unwritable: Path, caplog: pytest.LogCaptureFixture
) -> None:
    knobs.cache.dir = str(unwritable)
    use_writable_cache()
    assert Path(knobs.cache.dir).is_dir()
    assert str(unwritable) in caplog.text
    Path(knobs.cache.dir).rmdir()


def test_writable_cache_of_triton_is_kept(knobs: Any, tmp_path: Path) -> None:
    knobs.cache.dir = str(tmp_path / "new" / "cache")
    use_writable_cache()
    assert knobs.cache.dir == str(tmp_path / "new" / "cache")
    assert list(Path(knobs.cache.dir).iterdir()) == []


def test_devices_without_triton_have_no_compiler() -> None:
    assert compile_module.kernel_compiler(CPU) is None
