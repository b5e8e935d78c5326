"""Imports torch faster, for commands that run a small model on a CPU.

The registration of shape functions for torch's compilers is deferred until its first use, which
saves a quarter of the import time.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
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


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, _DeferringLoader(path)) if name == DEFERRED else None


class _DeferringLoader(Loader):
    def __init__(self, path: Sequence[str] | None) -> None:
        self._path = path

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _DeferredModule(spec.name, self._path)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _DeferredModule(ModuleType):
    """A placeholder that imports the real module at the first attribute access."""

    def __init__(self, name: str, path: Sequence[str] | None) -> None:
        super().__init__(name)
        self.__dict__["_path"] = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        spec = PathFinder.find_spec(self.__name__, self._path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[self.__name__] = module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)
