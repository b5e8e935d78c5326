"""Tiny checkpoints in the released layout, made once per session, and what is loaded from them."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import itertools
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, settings

import warm
from vivace import TTS
from vivace.audio.sandbox import SANDBOX
from vivace.backends.eager import EagerBackend
from vivace.checkpoint import Checkpoint
from vivace.model.codec import Codec
from vivace.model.talker import Qwen3TTS
from vivace.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    import httpx
    from serving import Running  # of tests/serve, and only there

    from real_vocabulary import Ranks

TESTS = Path(__file__).parent
ROOT = TESTS.parent
LEFT_OUT = ("ci", "slow")  # marks of tests that run only where `-m` names them
# Files of more than ten seconds, the longest first: a worker that begins one last ends last.
LONGEST_FIRST = (
    "backends/test_cuda_graph.py",
    "backends/test_official_parity.py",
    "serve/test_page_features.py",
    "test_docs.py",
    "compat/test_faster_class.py",
    "compat/test_official_class.py",
    "cli/test_streams.py",
    "audio/test_sandbox.py",
    "test_dialogue.py",
    "embedded/test_embedded_speech.py",
    "reliability/test_server_faults.py",
    "cli/test_cli.py",
    "cli/test_front.py",
    "cli/test_bench.py",
)
# Tiny models gain nothing from more threads, and lose on a busy machine.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for processes that tests start
# A test must not fail because the machine is busy, or because today's examples are new ones:
# `pytest --hypothesis-profile search` looks for those.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.register_profile("search", deadline=None)
settings.load_profile("repeatable")
HOMES = itertools.count()  # one for each test
TINY_NAMES = (
    "custom_voice",
    "custom_voice_projected",
    "voice_design",
    "base",
    "base_projected",
)


@dataclass(frozen=True)
class Tiny:
    """One tiny checkpoint, loaded in float32 on the CPU."""

    checkpoint: Checkpoint
    tokenizer: TextTokenizer
    model: Qwen3TTS
    codec: Codec

    def backend(self, pass_rows: int | None = None) -> EagerBackend:
        return EagerBackend(self.model, self.codec, pass_rows=pass_rows)


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def restore_interrupts() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    restore_interrupts()
    # pytest-xdist would start the files with the most tests first; LONGEST_FIRST are the longest.
    config.option.loadscopereorder = False


def pytest_unconfigure() -> None:
    warm.end()


def find_children(parent: int | str = "self") -> set[int]:
    """Processes that it started and has not waited for; none where /proc does not tell."""
    children: set[int] = set()
    for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            children.update(map(int, tasks.read_text().split()))
    return children


@pytest.fixture(autouse=True)
def end_children() -> Iterator[None]:
    """A test that fails leaves no process behind."""
    before = find_children()
    yield
    kill_children(before | {child.process.pid for child in SANDBOX._idle} | warm.pids())


def kill_children(kept: Container[int]) -> None:
    """With their process groups, where they lead one."""
    for pid in find_children().union(*map(find_children, warm.pids())):
        if pid in kept:
            continue
        with contextlib.suppress(OSError):
            (os.killpg if os.getpgid(pid) == pid else os.kill)(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the marks of LEFT_OUT that `-m` does not name, and begin with the longest files."""
    named = re.findall(r"\w+", str(config.getoption("markexpr")))
    left_out = [mark for mark in LEFT_OUT if mark not in named]
    deselected = [item for item in items if any(map(item.get_closest_marker, left_out))]
    config.hook.pytest_deselected(items=deselected)
    kept = set(items).difference(deselected)
    order = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items[:] = sorted(
        (item for item in items if item in kept),
        key=lambda item: order.get(item.path.relative_to(TESTS).as_posix(), len(order)),
    )


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Voices and caches of a test never touch those of the person who runs it.

    The folder is made when it is used: a tmp_path for each of thousands of tests takes long.
    """
    home = tmp_path_factory.getbasetemp() / "homes" / str(next(HOMES))
    monkeypatch.setenv("VIVACE_HOME", str(home))


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A log handler that a command adds ends with its test, as the stream it writes to does."""
    logger = logging.getLogger("vivace")
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test is heard, and none depends on whether this machine has a loudspeaker."""
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    monkeypatch.setattr("vivace.audio.play.PROGRAMS", ())
    monkeypatch.delenv("VIVACE_MODEL", raising=False)


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of pytest-xdist share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """A folder that `make` fills, called by the first worker that needs the folder."""
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_suffix(".unfinished")
            unfinished.mkdir(exist_ok=True)
            make(unfinished)
            unfinished.rename(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_folder(session_folder: Path) -> Path:
    """Holds one folder per name of TINY_NAMES."""
    return make_once(session_folder / "tiny", make_tiny_checkpoints)


def make_tiny_checkpoints(folder: Path) -> None:
    script = load_script(ROOT / "scripts" / "make_tiny_checkpoints.py")
    for name in TINY_NAMES:
        script.make_checkpoint(folder / name)


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Callable[[str], Tiny]:
    """A tiny checkpoint by name, each loaded once."""

    @cache
    def load(name: str) -> Tiny:
        checkpoint = Checkpoint.open(tiny_folder / name)
        cpu = torch.device("cpu")
        return Tiny(
            checkpoint=checkpoint,
            tokenizer=TextTokenizer.from_folder(checkpoint.folder),
            model=checkpoint.load_model(cpu, torch.float32),
            codec=checkpoint.load_codec(cpu),
        )

    return load


@pytest.fixture(scope="session")
def embedded() -> Iterator[TTS]:
    """The voice inside the package."""
    with TTS.load(device="cpu") as tts:
        yield tts


# A second conftest.py in tests/serve would hide this one from the modules that import it.
@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The embedded voice on a free port of loopback, without a key; one for each module."""
    from serving import running

    from vivace.serve.settings import ServeSettings

    voices = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, voices=voices, drain_timeout_s=5.0)) as server:
        yield server


@pytest.fixture(scope="module")  # making one costs as much as a request: it reads certificates
def client(server: Running) -> Iterator[httpx.Client]:
    import httpx

    with httpx.Client(base_url=server.url, timeout=60.0) as client:
        yield client


@pytest.fixture(scope="session")
def real_ranks() -> Ranks:
    from real_vocabulary import read_ranks

    return read_ranks()


@pytest.fixture(scope="session")
def real_folder(session_folder: Path, real_ranks: Ranks) -> Path:
    """A folder with the tokenizer files of the released checkpoints."""
    from real_vocabulary import write_tokenizer

    return make_once(
        session_folder / "released", lambda folder: write_tokenizer(folder, real_ranks)
    )
