"""Tests of the faster import of torch: the results are equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.cli_harness import run_python
from vivace.audio.files import read_audio

CODE = """
import sys
from vivace.cli.light import DEFERRED, import_torch
import_torch()
import gc, torch
light = len(sys.modules)
print(gc.isenabled(), type(sys.modules[DEFERRED]).__name__)
torch.empty(2, device="meta") + 1
name = "register_meta"
assert callable(getattr(torch._meta_registrations, name))
print(type(sys.modules[DEFERRED]).__name__, len(sys.modules) > light)
"""
SPEAK = """
import sys
sys.modules["sounddevice"] = None
from vivace.cli.main import main
main(["Hi.", "--seed=7", "-o", sys.argv[1], "-q"])
print(type(sys.modules["torch._meta_registrations"]).__name__)
"""


def run(code: str, *arguments: str) -> list[str]:
    return run_python(code, *arguments).stdout.split()


def test_deferred_module_is_imported_at_first_use() -> None:
    assert run(CODE) == ["True", "_DeferredModule", "module", "True"]


@pytest.mark.ci
def test_speech_is_equal_with_deferred_module(tmp_path: Path) -> None:
    assert run(SPEAK, str(tmp_path / "light.wav")) == ["_DeferredModule"]
    assert run(f"import torch{SPEAK}", str(tmp_path / "full.wav")) == ["module"]
    light, full = (read_audio(tmp_path / name).samples for name in ("light.wav", "full.wav"))
    assert np.allclose(light, full, rtol=0, atol=1e-4)  # two processes may round differently
