"""`pick_threads` and `use_threads`: small models use one thread; the number is restored."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event, Thread

import pytest
import torch

from tests.support.slots import plain_backend
from vivace import TTS
from vivace.backends.base import Frames
from vivace.device.choice import SMALL_MODEL_BYTES
from vivace.device.threads import count_processors, default_threads, pick_threads, use_threads
from vivace.errors import RequestError
from vivace.model.precision import full_precision
from vivace.serve.settings import ServeSettings


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_pick_threads_is_one_for_a_small_model_on_a_cpu() -> None:
    assert pick_threads(None, "cpu", SMALL_MODEL_BYTES - 1) == 1
    assert pick_threads(None, "cpu", SMALL_MODEL_BYTES) is None
    assert pick_threads(None, "cuda", 1) is None
    assert pick_threads(1, "cpu", 1) == 1


def test_threads_are_limited_to_the_processors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vivace.device.threads.count_processors", lambda: 3)
    assert pick_threads(3, "cpu", 1) == 3
    assert not caplog.messages
    assert pick_threads(64, "cpu", 1) == 3
    assert caplog.messages == ["threads is 64; this process may use 3 processor(s)"]
    monkeypatch.setattr("vivace.device.threads.count_processors", lambda: 1)
    assert default_threads() == 1


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "1 100000\n"}, 1),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "junk"}, None),
        ({"cpu.max": ""}, None),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "0\n"}, None),
        ({}, None),
    ],
)
def test_processors_are_limited_by_the_quota_of_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], wanted: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(9)), raising=False)
    assert count_processors(tmp_path) == (wanted or 9)


def test_default_threads_are_those_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    assert default_threads() == 1
    torch.set_num_threads(2)
    assert default_threads() == 2
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr("vivace.device.threads.count_processors", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert default_threads() == 7
    for invalid in ("0", "many", ""):
        monkeypatch.setenv("OMP_NUM_THREADS", invalid)
        assert 1 <= default_threads() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("threads", "words"),
    [
        (0, "from 1 to 1024, not 0"),
        (-1, "from 1 to 1024, not -1"),
        (1_025, "from 1 to 1024, not 1025"),  # OpenMP ends the process if it gets no thread
        (10**8, "from 1 to 1024"),
        (1.5, "a whole number"),
        ("2", "a whole number"),
        (True, "a whole number"),
    ],
)
def test_invalid_number_of_threads_is_rejected(threads: object, words: str) -> None:
    with pytest.raises(RequestError, match=f"threads must be {words}"):
        TTS.load(threads=threads, device="cpu")  # type: ignore[arg-type]


def test_server_has_the_same_bounds_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivace.device.threads.count_processors", lambda: 2_000)
    for threads in (1, 1_024):
        assert ServeSettings(threads=threads).threads == pick_threads(threads, "cpu", 1)
    for threads in (0, 1_025):
        with pytest.raises(ValueError, match="threads"):
            ServeSettings(threads=threads)


def test_use_threads_restores_the_number_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), use_threads(1):
        1 // (torch.get_num_threads() - 1)
    assert torch.get_num_threads() == 2
    with use_threads(None):
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("asked", "used"), [(None, 1), (2, 2)])
def test_use_threads_affects_only_the_engine(
    asked: int | None, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TTS.load(device="cpu", threads=asked) as tts:
        assert torch.get_num_threads() == 2
        backend = plain_backend(tts)
        step, seen = backend.step, list[int]()

        def watched(slots: Sequence[int], num_frames: int) -> Frames:
            seen.append(torch.get_num_threads())
            return step(slots, num_frames)

        monkeypatch.setattr(backend, "step", watched)
        for _ in tts.stream("One.", seed=1, max_frames=3):
            assert torch.get_num_threads() == 2
    assert set(seen) == {used}


def in_thread(step: Callable[[], object]) -> None:
    thread = Thread(target=step)
    thread.start()
    thread.join()


@pytest.mark.parametrize("numbers", [(1, 1), (1, 3), (3, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("first_out", [0, 1])
def test_concurrent_use_threads_restores_the_number(
    numbers: tuple[int, int], first_out: int
) -> None:
    seen: dict[str, int] = {}
    goes = [(Event(), Event(), Event()) for _ in numbers]  # enter, is inside, leave

    def work(index: int) -> None:
        enter, is_inside, leave = goes[index]
        enter.wait()
        with use_threads(numbers[index]):
            seen[f"{index} inside"] = torch.get_num_threads()
            is_inside.set()
            leave.wait()
            seen[f"{index} still inside"] = torch.get_num_threads()
        seen[f"{index} after"] = torch.get_num_threads()

    workers = [Thread(target=work, args=(index,)) for index in range(2)]
    for worker, (enter, is_inside, _) in zip(workers, goes, strict=True):
        worker.start()
        enter.set()
        is_inside.wait()
    for index in (first_out, 1 - first_out):
        goes[index][2].set()
        workers[index].join()
    in_thread(lambda: seen.update({"a new thread": torch.get_num_threads()}))
    for index, number in enumerate(numbers):
        assert seen[f"{index} inside"] == seen[f"{index} still inside"] == number
        assert seen[f"{index} after"] == 2
    assert seen["a new thread"] == torch.get_num_threads() == 2


def test_float32_precision_is_kept_until_the_last_thread_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    before = torch.backends.cudnn.allow_tf32
    first, second = full_precision(), full_precision()
    with first:
        second.__enter__()
        assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    second.__exit__(None, None, None)
    assert torch.backends.cudnn.allow_tf32 == before


def test_float32_precision_is_restored_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    before = torch.backends.cudnn.allow_tf32
    with pytest.raises(ZeroDivisionError), full_precision():
        1 // int(torch.backends.cudnn.allow_tf32)
    assert torch.backends.cudnn.allow_tf32 == before
