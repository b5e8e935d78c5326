"""CUDA driver calls that PyTorch does not offer: cubins, tensor maps, launch attributes."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache

import torch
from torch import Tensor

from vivace.errors import BackendUnavailableError

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
COOPERATIVE_LAUNCH = 95  # CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
DEPENDENT_LAUNCH = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
MAP_ALIGNMENT = 64  # bytes
NUMBER_TYPES = {torch.float16: 6, torch.bfloat16: 9}  # CU_TENSOR_MAP_DATA_TYPE_*
SWIZZLE_128_BYTES, PROMOTE_128_BYTES = 3, 2  # CU_TENSOR_MAP_*


class TensorMap(ctypes.Structure):
    """CUtensorMap: where the copy engine finds the tiles of a tensor."""

    _fields_ = [("words", c_uint64 * 16)]


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("name", c_int), ("padding", c_int), ("value", c_uint * 16)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("num_attributes", c_uint),
    ]


class Module:
    """A loaded cubin."""

    def __init__(self, code: bytes) -> None:
        self._code = code  # keep a reference: the driver reads it lazily
        self._handle = c_void_p()
        _check(_driver().cuModuleLoadData(byref(self._handle), code))

    def function(self, name: str) -> c_void_p:
        function = c_void_p()
        _check(_driver().cuModuleGetFunction(byref(function), self._handle, name.encode()))
        return function

    def numbers(self, name: str) -> list[int]:
        """Read a global array of 32-bit numbers."""
        address, size = c_void_p(), c_size_t()
        _check(
            _driver().cuModuleGetGlobal_v2(byref(address), byref(size), self._handle, name.encode())
        )
        host = (c_uint * (size.value // 4))()
        _check(_driver().cuMemcpyDtoH_v2(host, address, size))
        return list(host)


def supports_cooperative_launch(device: torch.device) -> bool:
    value = c_int()
    index = torch.cuda.current_device() if device.index is None else device.index
    _check(_driver().cuDeviceGetAttribute(byref(value), c_int(COOPERATIVE_LAUNCH), c_int(index)))
    return bool(value.value)


def allow_shared(function: c_void_p, num_bytes: int) -> None:
    _check(_driver().cuFuncSetAttribute(function, c_int(MAX_DYNAMIC_SHARED), c_int(num_bytes)))


def launch_cooperative(
    function: c_void_p, num_blocks: int, num_threads: int, shared: int, request: ctypes.Structure
) -> None:
    """Cooperative launch on the current stream; `request` is passed by value."""
    stream = c_void_p(torch.cuda.current_stream().cuda_stream)
    parameters = (c_void_p * 1)(ctypes.addressof(request))
    _check(
        _driver().cuLaunchCooperativeKernel(
            function,
            *map(c_uint, (num_blocks, 1, 1, num_threads, 1, 1, shared)),
            stream,
            parameters,
        )
    )


def launch(
    function: c_void_p,
    grid: tuple[int, int, int],
    num_threads: int,
    shared: int,
    request: ctypes.Structure,
    *,
    is_dependent: bool = False,
) -> None:
    """Launch on the current stream; `request` is passed by value.

    `is_dependent`: a programmatic dependent launch.
    """
    attributes = (LaunchAttribute * 1)(LaunchAttribute(DEPENDENT_LAUNCH, 0, (1,)))
    stream = torch.cuda.current_stream().cuda_stream
    config = LaunchConfig(grid, (num_threads, 1, 1), shared, stream, attributes, int(is_dependent))
    parameters = (c_void_p * 1)(ctypes.addressof(request))
    _check(_driver().cuLaunchKernelEx(byref(config), function, parameters, None))


def map_tiles(tensor: Tensor, *tile: int) -> TensorMap:
    """Tiles of a tensor in 16-bit numbers, rows of 128 bytes in shared memory swizzled.

    The last dimension is contiguous. Reads beyond the tensor give zeros.
    """
    memory = ctypes.create_string_buffer(ctypes.sizeof(TensorMap) + MAP_ALIGNMENT)
    tiles = TensorMap.from_buffer(memory, -ctypes.addressof(memory) % MAP_ALIGNMENT)
    rank, strides = tensor.dim(), [each * tensor.element_size() for each in tensor.stride()]
    _check(
        _driver().cuTensorMapEncodeTiled(
            byref(tiles), c_int(NUMBER_TYPES[tensor.dtype]), c_uint(rank),
            c_void_p(tensor.data_ptr()),
            (c_uint64 * rank)(*reversed(tensor.shape)),
            (c_uint64 * (rank - 1))(*reversed(strides[:-1])),
            (c_uint * rank)(*reversed(tile)), (c_uint * rank)(*[1] * rank),
            c_int(0), c_int(SWIZZLE_128_BYTES), c_int(PROMOTE_128_BYTES), c_int(0),
        )
    )  # fmt: skip
    return tiles


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BackendUnavailableError(f"the CUDA driver is not installed: {error}") from error


def _check(result: int) -> None:
    if result:
        name = c_char_p()
        _driver().cuGetErrorName(c_int(result), byref(name))
        raise BackendUnavailableError(f"CUDA driver: {(name.value or b'?').decode()}")
