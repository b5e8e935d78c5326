"""Gives back the memory of tensors that a backend has copied."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

MADV_PAGEOUT = 21  # Linux 5.4: drops pages that a file holds and keeps all contents


def page_out(module: nn.Module) -> None:
    """Drop the pages of a module's tensors that are mapped from a file. They are read again when
    they are used. Does nothing on other systems."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for tensor in (*module.parameters(), *module.buffers()):
        address, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:  # an error means that the pages stay
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_PAGEOUT)
