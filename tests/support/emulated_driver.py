"""The functions of cuda/driver.py for emulated kernels, and checks of their results."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_uint64

from torch import Tensor

from tests.support.cuda_emulator import EmulatedKernels, KernelError
from vivace.backends.cuda.driver import TensorMap

Launch = Callable[..., None]  # of one kernel: grid, threads, request, seed, removed


class EmulatedModule:
    """The kernels of one source file, and its only global array."""

    def __init__(self, kernels: EmulatedKernels, numbers: Sequence[int] = ()) -> None:
        self._kernels, self._numbers = kernels, numbers

    def function(self, name: str) -> Launch:
        return lambda *args: self._kernels.launch(name, *args)

    def numbers(self, name: str) -> list[int]:
        return list(self._numbers)


class EmulatedDriver:
    """Launches emulated kernels. `load` returns the module of compiled code."""

    def __init__(self, load: Callable[[bytes], EmulatedModule]) -> None:
        self.Module = load
        self.seed = self.removed = 0

    def allow_shared(self, function: Launch, num_bytes: int) -> None:
        pass

    def map_tiles(self, tensor: Tensor, *tile: int) -> TensorMap:
        """Address, rank, and size, strides in bytes and tile of three dimensions."""
        size, strides = (
            list(reversed(tensor.shape)),
            [2 * each for each in reversed(tensor.stride())],
        )
        missing = 3 - len(tile)
        words = [tensor.data_ptr(), len(tile), *size, *[1] * missing]
        words += [*strides, *[0] * missing, *reversed(tile), *[1] * missing]
        return TensorMap((c_uint64 * 16)(*words))

    def launch(
        self,
        function: Launch,
        grid: tuple[int, int, int],
        num_threads: int,
        shared: int,
        request: ctypes.Structure,
        *,
        is_dependent: bool = False,
    ) -> None:
        function(grid, num_threads, request, self.seed, self.removed)


def distance(found: Tensor, expected: Tensor) -> float:
    """Relative distance; infinite if a number is missing."""
    error = float((found.float() - expected).norm() / expected.norm())
    return error if error == error else float("inf")


def is_detected(expected: str, driver: EmulatedDriver, error: Callable[[], float]) -> bool:
    """Whether one of 20 schedules shows the fault: a KernelError, or "wrong" results.

    The schedules have even seeds.
    """
    for seed in range(20):  # a lucky schedule hides a race
        driver.seed = 2 * seed
        try:
            if error() > 0.005 and expected == "wrong":
                return True
        except KernelError as failure:
            if expected == str(failure):
                return True
    return False
