"""Imports torch faster, for commands that run a small model on a CPU.

The registration of shape functions for torch's compilers is deferred until its first use, which
saves a quarter of the import time. `torch.Generator` does not work before, so torch is imported as
a whole on a machine with a GPU.
"""

from __future__ import annotations

import gc
import os.path
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

DEFERRED = "torch._meta_registrations"
# torch's compilers are imported by optimizers and by activation checkpointing. They expect the
# modules that the deferred one imports; without them, their own imports are circular and fail.
NEEDS_DEFERRED = "torch._dynamo"
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of NVIDIA, AMD and WSL


def import_torch() -> None:
    """Import torch, unless it is already imported."""
    if "torch" not in sys.modules:
        with light_imports():
            import torch  # noqa: F401


@contextmanager
def light_imports() -> Iterator[None]:
    """Import torch as above if it is imported inside the context, without garbage collection."""
    finder = _Finder()
    if "torch" not in sys.modules and not any(map(os.path.exists, GPU_DEVICES)):
        sys.meta_path.insert(0, finder)
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
        finder.remove()


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != DEFERRED:
            return None
        self.remove()  # the placeholder imports the real module
        return ModuleSpec(name, self)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _DeferredModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        sys.meta_path.insert(0, _CompilerFinder())


class _CompilerFinder(MetaPathFinder):
    """Imports the deferred module before torch's compilers."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == NEEDS_DEFERRED:
            sys.meta_path.remove(self)
            placeholder = sys.modules[DEFERRED]
            if isinstance(placeholder, _DeferredModule):
                placeholder.load()
        return None


class _DeferredModule(ModuleType):
    """A placeholder that imports the real module at the first attribute access."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.load(), name)

    def load(self) -> ModuleType:
        """Replace the placeholder by the real module."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return import_module(self.__name__)
