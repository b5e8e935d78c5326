"""Fixtures of all tests: tiny checkpoints, the embedded voice, a server, isolation."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import itertools
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.support import fork_server
from tests.support import shared_weights as shared
from tests.support.certificates import share_certificates
from tests.support.network import extend_client_timeouts
from tests.support.processes import find_children, kill_children, restore_interrupts
from tests.support.project import ROOT, load_script
from tests.support.quantized import write_quantized
from tests.support.tiny import TINY_NAMES, Tiny, drop_codebooks, join_checkpoints, load_tiny
from vivace import TTS
from vivace.backends.cpu import build
from vivace.checkpoint import Checkpoint

if TYPE_CHECKING:
    import httpx

    from tests.support.real_vocabulary import Ranks
    from tests.support.serving import Running

TESTS = Path(__file__).parent
LEFT_OUT = ("ci", "slow")  # marks of tests that run only if `-m` names them
# The files that take longest, longest first: a worker that starts one of them last ends last.
LONGEST_FIRST = (
    "benchmarks/test_commands.py",
    "browser/test_page.py",
    "finetune/test_run.py",
    "serve/processes/test_workers.py",
    "conformance/test_verify.py",
    "serve/page/test_accessibility.py",
    "text/test_live_tokenizer.py",
    "serve/page/test_browser.py",
    "hub/test_download.py",
    "serve/page/test_first_visit.py",
    "browser/test_gpu.py",
    "audio/test_sandbox.py",
    "serve/page/test_features.py",
    "export/test_graphs.py",
    "backends/test_cuda_graph.py",
    "text/test_normalize.py",
    "serve/http/test_timeouts.py",
    "backends/test_emulated_cuda.py",
    "backends/test_emulated_products.py",
    "serve/page/test_live.py",
    "serve/page/test_errors.py",
    "serve/sockets/test_session.py",
    "test_adapter_set.py",
    "backends/test_mixed_adapters.py",
    "recipes/test_many.py",
    "serve/wyoming/test_session.py",
    "backends/test_official_parity.py",
    "serve/test_server.py",
    "reliability/test_server_faults.py",
    "recipes/test_encoder.py",
    "cli/test_light.py",
)
# Tiny models gain nothing from more threads and slow down on a busy machine.
torch.set_num_threads(1)
build.TIMEOUT_S = 300.0  # a busy machine compiles slowly
os.environ["OMP_NUM_THREADS"] = "1"  # for processes that tests start
extend_client_timeouts()
share_certificates()
os.environ["HF_HUB_OFFLINE"] = "1"  # tests use no network; set before huggingface_hub is imported
# A test must not fail because the machine is busy or because an example is new.
# `pytest --hypothesis-profile search` searches for new examples.
settings.register_profile(
    "repeatable",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.register_profile("search", max_examples=200, deadline=None)
settings.load_profile("repeatable")
FREEZE, UNFREEZE = gc.freeze, gc.unfreeze
HOMES = itertools.count()  # the number of each test's home folder


def pytest_configure(config: pytest.Config) -> None:
    restore_interrupts()
    # pytest-xdist would start the files with the most tests first, not the longest ones.
    config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect tests without garbage collections, and leave their objects out of later ones.

    With all modules and tests, a garbage collection takes 0.4 s. There would be 25 during the
    collection of tests, and one at the end of every server.
    """
    gc.disable()
    try:
        import_test_modules(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def import_test_modules(config: pytest.Config) -> None:
    """Import the test modules in another order than the other workers do.

    pytest rewrites the assertions of a module that it has no bytecode for, which takes as long as
    the imports. Each worker then rewrites a part of the modules and reads the rest from disk.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    paths = sorted(TESTS.rglob("test_*.py"))
    first = len(paths) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in paths[first:] + paths[:first]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection reports it
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def pytest_unconfigure() -> None:
    fork_server.end()


@pytest.fixture(autouse=True)
def end_children() -> Iterator[None]:
    """Kill the processes that a failed test left behind."""
    before = find_children()
    yield
    kill_children(before | fork_server.pids())


@pytest.hookimpl(tryfirst=True)  # before pytest evaluates `-m`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the marks of LEFT_OUT that `-m` does not name, and run the longest files first."""
    mark_further_cases(items)
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


def mark_further_cases(items: Sequence[pytest.Item]) -> None:
    """Add `ci` to the cases of a test beyond the number in its mark `default_cases`."""
    num_seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("default_cases")
        if mark and not any(map(item.get_closest_marker, LEFT_OUT)):
            test = item.nodeid.partition("[")[0]
            num_seen[test] += 1
            if num_seen[test] > mark.args[0]:
                item.add_marker("ci")


@pytest.fixture(autouse=True, scope="session")
def shared_weights() -> Iterator[None]:
    """Load the weights of a checkpoint once per process."""
    with shared.weights_shared():
        yield


@pytest.fixture(autouse=True, scope="session")
def frozen_modules() -> Iterator[None]:
    """Keep all modules out of garbage collections, also when a test unloads a model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "freeze", lambda: None)
        patch.setattr(gc, "unfreeze", lambda: None)
        patch.setattr(gc, "set_threshold", lambda *_: None)
        yield


@pytest.fixture
def real_freeze(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`gc.freeze` and `gc.unfreeze` as outside of tests."""
    monkeypatch.setattr(gc, "freeze", FREEZE)
    monkeypatch.setattr(gc, "unfreeze", UNFREEZE)
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def unshared_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the weights again for a test that measures or changes them."""
    monkeypatch.setattr(Checkpoint, "load_model", shared.LOAD_MODEL)
    monkeypatch.setattr(Checkpoint, "load_codec", shared.LOAD_CODEC)


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own folder for voices and caches.

    The folder is created on first use: a tmp_path for each of thousands of tests takes long.
    """
    home = tmp_path_factory.getbasetemp() / "homes" / str(next(HOMES))
    monkeypatch.setenv("VIVACE_HOME", str(home))


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Remove log handlers that a command added, together with the stream they write to."""
    logger = logging.getLogger("vivace")
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable audio output, so that no test depends on an audio device."""
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    monkeypatch.setattr("vivace.audio.play.PROGRAMS", ())
    monkeypatch.delenv("VIVACE_MODEL", raising=False)


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder shared by all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def make_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """A folder that `make` fills in the first worker that needs it."""
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
    """The tiny checkpoints: one folder for each of TINY_NAMES."""
    return make_once(session_folder / "tiny", make_tiny_checkpoints)


def make_tiny_checkpoints(folder: Path) -> None:
    script = load_script(ROOT / "scripts" / "make_tiny_checkpoints.py")
    for name in TINY_NAMES:
        script.make_checkpoint(folder / name)


@pytest.fixture(scope="session")
def cloning_presets(tiny_folder: Path, session_folder: Path) -> Path:
    """A tiny checkpoint with presets and a speaker encoder, as the embedded voice may have."""
    return make_once(
        session_folder / "cloning_presets", lambda folder: join_checkpoints(tiny_folder, folder)
    )


@pytest.fixture(scope="session")
def few_folder(tiny_folder: Path, session_folder: Path) -> Callable[[str], Path]:
    """The folder of a tiny checkpoint with 4 of its 16 codebooks, by name."""

    def find(name: str) -> Path:
        return make_once(
            session_folder / f"few_{name}", partial(drop_codebooks, tiny_folder / name)
        )

    return find


@pytest.fixture(scope="session")
def few_codebooks(few_folder: Callable[[str], Path]) -> Tiny:
    """The checkpoint custom_voice_projected with 4 codebooks, for tests without official values."""
    return load_tiny(few_folder("custom_voice_projected"))


@pytest.fixture(scope="session")
def few_int4(few_folder: Callable[[str], Path], session_folder: Path) -> Path:
    """The checkpoint custom_voice with 4 codebooks and int4 weights; tests change copies of it."""
    source = few_folder("custom_voice")
    return make_once(
        session_folder / "few_int4", lambda folder: write_quantized(source, folder, "int4")
    )


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Callable[[str], Tiny]:
    """A tiny checkpoint by name, each loaded once."""

    return cache(lambda name: load_tiny(tiny_folder / name))


@pytest.fixture(scope="session")
def embedded() -> Iterator[TTS]:
    """The embedded voice."""
    with TTS.load(device="cpu") as tts:
        yield tts


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with the embedded voice on a free port, without a key; one for each module."""
    from tests.support.serving import running
    from vivace.serve.settings import ServeSettings

    voices = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, voices=voices, drain_timeout_s=5.0)) as server:
        yield server


@pytest.fixture(scope="module")  # creating a client reads certificates, as slow as a request
def client(server: Running) -> Iterator[httpx.Client]:
    import httpx

    with httpx.Client(base_url=server.url, timeout=60.0) as client:
        yield client


@pytest.fixture(scope="session")
def real_ranks() -> Ranks:
    from tests.support.real_vocabulary import read_ranks

    return read_ranks()


@pytest.fixture(scope="session")
def real_folder(session_folder: Path, real_ranks: Ranks) -> Path:
    """A folder with the tokenizer files of the released checkpoints."""
    from tests.support.real_vocabulary import write_tokenizer

    return make_once(
        session_folder / "released", lambda folder: write_tokenizer(folder, real_ranks)
    )
