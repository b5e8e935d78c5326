"""Runs the browser page's modules in Node.js."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.project import ROOT, load_script

SOURCES = ROOT / "docs" / "try"
NODE = shutil.which("node")
LIMIT_S = 120  # on a busy machine


@cache
def load_text_script() -> ModuleType:
    return load_script(ROOT / "scripts" / "make_text_module.py")


def load_translator(module: str) -> ModuleType:
    """A module of scripts/javascript."""
    load_text_script()
    return import_module(f"javascript.{module}")


def run_modules(folder: Path, script: str, data: object) -> Any:
    """Run a module script with `data` and the page's modules; return the value of `result`.

    The modules are copied to `folder`, because Node.js needs a package.json beside them.
    """
    if NODE is None:
        pytest.skip("Node.js is not installed")
    for module in SOURCES.glob("*.js"):
        shutil.copy(module, folder)
    load_text_script().write_module(folder)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "data.json").write_text(json.dumps(data))
    begin = "import fs from 'node:fs';\nconst data = JSON.parse(fs.readFileSync('data.json'));\n"
    end = "\nfs.writeFileSync('result.json', JSON.stringify(result));\n"
    (folder / "main.js").write_text(begin + script + end)
    done = subprocess.run(
        [NODE, "main.js"], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "result.json").read_text())
