"""A failed capture of a CUDA graph: the work runs without a graph. PyTorch's part is a stub."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from vivace.backends.cuda_graph.graphs import GraphPool


class StubCapture:
    """Behaves like PyTorch's graph and generator: a capture that does not end leaves its mark."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails_at_end: bool) -> None:
        self.fails_at_end = fails_at_end
        self.is_valid, self.is_marked = True, False
        self.num_ends = 0
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: self)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
        monkeypatch.setattr(torch.cuda, "default_generators", [self])
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def capture_begin(self, **options: object) -> None:
        self.is_marked = True

    def capture_end(self) -> None:
        self.num_ends += 1
        if self.fails_at_end or not self.is_valid:
            raise RuntimeError("the capture is invalid")
        self.is_marked = False

    def replay(self) -> None:
        pass

    def clone_state(self) -> str:
        return "copy"

    def graphsafe_set_state(self, state: str) -> None:
        assert state == "copy"
        self.is_marked = False


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, None])
def test_failed_capture_leaves_no_generator_in_capture_mode(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException] | None
) -> None:
    capture = StubCapture(monkeypatch, fails_at_end=error is None)
    pool = GraphPool(torch.device("cpu"))
    monkeypatch.setattr(pool, "_is_capturing", True)

    def work() -> None:
        if capture.is_marked and error is not None:
            capture.is_valid = False
            raise error("not permitted")

    raises = pytest.raises(KeyboardInterrupt) if error is KeyboardInterrupt else nullcontext()
    with raises:
        pool.get("frame", work, lambda: None)
    assert not capture.is_marked
    assert capture.num_ends == 1
    reasons: dict[object, list[str]] = {
        RuntimeError: ["not permitted"],
        None: ["the capture is invalid"],
    }
    assert list(pool.fallbacks.values()) == reasons.get(error, [])


def test_successful_capture_keeps_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = StubCapture(monkeypatch, fails_at_end=False)
    monkeypatch.setattr(capture, "graphsafe_set_state", pytest.fail)
    pool = GraphPool(torch.device("cpu"))
    monkeypatch.setattr(pool, "_is_capturing", True)
    assert pool.get("frame", lambda: None, lambda: None) == capture.replay
    assert not capture.is_marked


def test_work_first_runs_while_the_device_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    StubCapture(monkeypatch, fails_at_end=False)
    events: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))

    def compile(works: object) -> None:
        events.append("compile")

    pool = GraphPool(torch.device("cpu"))
    monkeypatch.setattr(pool, "_is_capturing", True)
    monkeypatch.setattr(pool, "_compile", compile)
    pool.get("codec", lambda: events.append("run"), lambda: None)
    assert events[:3] == ["wait", "compile", "run"]
