"""Imports torch faster, for commands that run a small model on a CPU.

The registration of shape functions for torch's compilers is deferred until its first use, which
saves a quarter of the import time.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

DEFERRED = "torch._meta_registrations"


def import_torch() -> None:
    """Import torch, unless it is already imported."""
    if "torch" in sys.modules:
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    gc.disable()
    try:
        import torch  # noqa: F401

        gc.freeze()
    finally:
        gc.enable()
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == DEFERRED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _DeferredModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _DeferredModule(ModuleType):
    """A placeholder that imports the real module at the first attribute access."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)
