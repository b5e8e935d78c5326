"""`install()` redirects `import faster_qwen3_tts` to `vivace.compat` in this process."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from vivace.compat.faster import FasterQwen3TTS
from vivace.errors import IntegrationError

NAME = "faster_qwen3_tts"
VERSION = "0.5.4"  # the release of faster-qwen3-tts that the classes follow


def install() -> None:
    """Redirect `import faster_qwen3_tts`, even if that package is installed.

    Call it before anything imports the package. A second call has no effect.
    """
    found = sys.modules.get(NAME)
    if found is not None and getattr(found, "FasterQwen3TTS", None) is not FasterQwen3TTS:
        raise IntegrationError(
            f"{NAME} is imported already, from {getattr(found, '__file__', None)}; call "
            "vivace.compat.install() before that import"
        )
    for name in (NAME, f"{NAME}.model"):
        module = ModuleType(name, "FasterQwen3TTS of vivace.compat, put here by its install().")
        module.__spec__ = ModuleSpec(name, loader=None, is_package=name == NAME)
        module.__dict__.update(__path__=[], __version__=VERSION, __all__=["FasterQwen3TTS"])
        module.__dict__["FasterQwen3TTS"] = FasterQwen3TTS
        sys.modules[name] = module
    sys.modules[NAME].__dict__["model"] = sys.modules[f"{NAME}.model"]


def uninstall() -> None:
    """Undo `install()`. Modules that were already imported stay imported."""
    found = sys.modules.get(NAME)
    if found is not None and getattr(found, "FasterQwen3TTS", None) is FasterQwen3TTS:
        sys.modules.pop(f"{NAME}.model", None)
        del sys.modules[NAME]
