"""Small models run on one thread; PyTorch's own number is never left changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from vivace import TTS
from vivace.device import SMALL_MODEL_BYTES, pick_threads, use_threads
from vivace.errors import RequestError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_small_model_on_a_cpu_gets_one_thread_and_others_are_left_alone() -> None:
    assert pick_threads(None, CPU, SMALL_MODEL_BYTES - 1) == 1
    assert pick_threads(None, CPU, SMALL_MODEL_BYTES) is None
    assert pick_threads(None, CUDA, 1) is None
    assert pick_threads(3, CPU, 1) == 3


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True])
def test_threads_that_cannot_be_are_refused(threads: object) -> None:
    with pytest.raises(RequestError, match="threads must be 1 or more"):
        TTS.load(threads=threads, device="cpu")  # type: ignore[arg-type]


def test_the_number_comes_back_also_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), use_threads(1):
        1 // (torch.get_num_threads() - 1)
    assert torch.get_num_threads() == 2
    with use_threads(None):
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("asked", "used"), [(None, 1), (2, 2)])
def test_work_runs_with_its_threads_and_nothing_else_does(
    asked: int | None, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TTS.load(device="cpu", threads=asked) as tts:
        assert torch.get_num_threads() == 2
        backend = tts.engine.backend
        seen = []
        step = backend.step
        monkeypatch.setattr(
            backend, "step", lambda *a: (seen.append(torch.get_num_threads()), step(*a))[1]
        )
        for _ in tts.stream("One.", seed=1, max_frames=3):
            assert torch.get_num_threads() == 2
    assert set(seen) == {used}
