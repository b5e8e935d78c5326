"""Tests of the imports of commands, and of the faster import of torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.support import fork_server
from tests.support.cli_harness import run_python
from vivace.audio.files import read_audio
from vivace.backends.cpu.build import find_refusal
from vivace.cli import light
from vivace.cli.light import DEFERRED, light_imports
from vivace.cli.main import main

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
SPEAK_AND_TRAIN = """
import sys
sys.modules["sounddevice"] = None
from vivace.cli import light
from vivace.cli.light import DEFERRED, light_imports
from vivace.cli.main import main
main(["Hi.", "--seed=7", "-o", sys.argv[1], "-q", "--backend=eager"])
print(type(sys.modules[DEFERRED]).__name__)
import torch
from torch.utils.checkpoint import checkpoint
weight = torch.nn.Parameter(torch.ones(2))
checkpoint(torch.sin, weight, use_reentrant=False).sum().backward()
torch.optim.AdamW([weight]).step()
print(bool((weight < 1).all()))
"""
HEAVY = """
import os, sys
sys.modules["sounddevice"] = None
os.environ["PATH"] = sys.argv[2]  # the C++ library is found by its compiler
from vivace.cli.main import main
code = main(["Hi.", "-o", sys.argv[1], "-q", *{arguments}])
heavy = ("torch", "pydantic", "starlette", "soundfile", "soxr", "huggingface_hub")
print(code, [name for name in heavy if name in sys.modules])
"""
LIGHT = """
import sys
from vivace.cli.main import main
try:
    code = main({arguments})
except SystemExit as end:
    code = end.code
print(code or 0, [name for name in ("torch", "numpy", "tokenizers") if name in sys.modules])
"""


def run(code: str, *arguments: str) -> list[str]:
    return run_python(code, *arguments).stdout.split()


def run_forked(code: str, *arguments: str) -> list[str]:
    """Run code in a process that the fork server has imported torch for, with `import_torch`."""
    done = fork_server.run(code, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_deferred_module_is_imported_at_first_use() -> None:
    assert run_forked(CODE) == ["True", "_DeferredModule", "module", "True"]


def test_speech_is_equal_and_training_works_with_deferred_module(tmp_path: Path) -> None:
    found = run_forked(SPEAK_AND_TRAIN, str(tmp_path / "light.wav"))
    assert found == ["_DeferredModule", "True"]
    main(["Hi.", "--seed=7", "-o", str(tmp_path / "full.wav"), "-q", "--backend=eager"])
    assert type(sys.modules[DEFERRED]) is ModuleType
    light, full = (read_audio(tmp_path / name).samples for name in ("light.wav", "full.wav"))
    assert np.allclose(light, full, rtol=0, atol=1e-4)  # two processes may round differently


@pytest.mark.skipif(find_refusal() is not None, reason="there is no C++ library")
def test_say_imports_no_heavy_package(tmp_path: Path) -> None:
    light, full, path = str(tmp_path / "light.wav"), str(tmp_path / "full.wav"), os.environ["PATH"]
    assert run(HEAVY.format(arguments=[]), light, path) == ["0", "[]"]
    [code, *found] = run(HEAVY.format(arguments=["--backend=eager"]), full, path)
    assert code == "0"
    assert "'torch'" in " ".join(found)  # the list is not always empty
    assert Path(light).stat().st_size > 1_000


@pytest.mark.parametrize("command", ["--help", "--version", "say --help"])
def test_command_without_speech_imports_no_numpy(command: str) -> None:
    arguments = command.split()
    [*_, last] = run_python(LIGHT.format(arguments=arguments)).stdout.splitlines()
    assert last == "0 []"


@pytest.mark.parametrize("has_gpu", [True, False])
def test_torch_is_imported_as_a_whole_beside_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, has_gpu: bool
) -> None:
    monkeypatch.setattr(light, "GPU_DEVICES", (tmp_path if has_gpu else tmp_path / "missing",))
    monkeypatch.delitem(sys.modules, "torch")
    with light_imports():
        is_light = any(isinstance(finder, light._Finder) for finder in sys.meta_path)
    assert is_light != has_gpu
