"""Hatch build hook: a wheel for one platform with the compiled C++ library of the `cpu` backend.

    VIVACE_NATIVE=1 python -m build --wheel

Without VIVACE_NATIVE the wheel is pure Python, and the library is compiled at first use.
`cibuildwheel` sets the variable (pyproject.toml).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "src" / "vivace" / "backends" / "cpu" / "build.py"
TIMEOUT_S = 600.0


class NativeWheelHook(BuildHookInterface):  # type: ignore[misc]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get("VIVACE_NATIVE") != "1":
            return
        build = load_build()
        compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
        build.PREBUILT.write_bytes(build.build_library(compiler, TIMEOUT_S))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"
        build_data["artifacts"].append(f"/{build.PREBUILT.relative_to(ROOT).as_posix()}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if os.environ.get("VIVACE_NATIVE") == "1":
            load_build().PREBUILT.unlink()


def platform_tag() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def load_build() -> Any:
    """The module by its path: its package imports torch, which is not installed here."""
    sys.path.insert(0, str(ROOT / "src"))
    spec = importlib.util.spec_from_file_location("vivace_native_build", BUILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
