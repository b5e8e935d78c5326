"""The default number of workers: by cores, device and platform."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vivace.errors import RequestError
from vivace.serve.processes import worker_count
from vivace.serve.processes.worker_count import count_workers
from vivace.serve.settings import ModelSpec, ServeSettings

LARGE = (ModelSpec("large", "Qwen/Qwen3-TTS-12Hz-0.6B-Base"),)


@pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux")
@pytest.mark.parametrize(
    ("num_cores", "settings", "has_gpu", "expected"),
    [
        (16, {"models": LARGE}, True, 4),
        (128, {"models": LARGE}, True, worker_count.MAX_WORKERS),
        (4 * worker_count.MAX_WORKERS - 1, {"models": LARGE}, True, worker_count.MAX_WORKERS - 1),
        (8, {"models": LARGE}, True, 2),
        (7, {"models": LARGE}, True, 1),
        (16, {"models": LARGE}, False, 1),
        (16, {"models": LARGE, "device": "cpu"}, True, 1),
        (16, {"models": LARGE, "device": "cuda:0"}, False, 4),
        (16, {}, True, 1),  # the embedded voice runs on the CPU
        (2, {"workers": 3}, False, 3),
    ],
)
def test_default_depends_on_cores_and_device(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    num_cores: int,
    settings: dict[str, object],
    has_gpu: bool,
    expected: int,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(num_cores)))
    gpu = tmp_path if has_gpu else tmp_path / "nothing"
    monkeypatch.setattr(worker_count, "GPU_FILES", (gpu,))
    assert count_workers(ServeSettings(**settings)) == expected  # type: ignore[arg-type]


def test_several_workers_need_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RequestError, match="workers cannot be 2"):
        count_workers(ServeSettings(workers=2))
    assert count_workers(ServeSettings(workers=1)) == 1
    assert count_workers(ServeSettings(models=LARGE, device="cuda")) == 1
