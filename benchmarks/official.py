"""The official package, as something to measure against: qwen-tts 0.1.1 on transformers 4.57.3.

Needs torch, transformers and qwen_tts on the path and nothing else: what qwen_tts imports besides
is replaced by empty modules where it is not installed. The weights are random; only time is real.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Imported when qwen_tts is, called only by its 25 Hz codec and its audio file reader.
UNUSED_PACKAGES = {
    "einops": [],
    "librosa": ["librosa.filters"],
    "onnxruntime": [],
    "soundfile": [],
    "sox": [],
    "torchaudio": ["torchaudio.compliance", "torchaudio.compliance.kaldi"],
}


class AbsentModule(ModuleType):
    """Stands for a package that is not installed; every name in it is a function that raises."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*args: object, **kwargs: object) -> None:
            raise ModuleNotFoundError(f"{self.__name__} is not installed, so no {name}")

        return absent


def import_official() -> ModuleType:
    """Import qwen_tts, with stand-ins for the missing packages that it does not need here."""
    # transformers looks for some of these packages itself, and must look before they appear.
    importlib.import_module("transformers.generation")
    for package, submodules in UNUSED_PACKAGES.items():
        if package not in sys.modules and importlib.util.find_spec(package) is None:
            for name in (package, *submodules):
                add_absent_module(name)
    return importlib.import_module("qwen_tts")


def add_absent_module(name: str) -> None:
    module = AbsentModule(name)
    module.__spec__ = ModuleSpec(name, loader=None, is_package=True)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
