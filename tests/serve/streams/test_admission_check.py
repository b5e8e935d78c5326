"""The early refusal of requests, by the loads of all models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest

from vivace.serve.errors import RefusedError
from vivace.serve.models.configured import Models
from vivace.serve.observability.metrics import Metrics
from vivace.serve.streams.admission import Admission


@dataclass(frozen=True)
class FixedLoad:
    num_waiting = 1
    is_full = True
    wait_s: float = 9.0

    def refuses(self, max_wait_s: float) -> bool:
        return self.wait_s > max_wait_s


def admission_of(*waits_s: float, names: Sequence[str]) -> Admission:
    """The admission of loaded models with these waits. `names` are those of all models."""
    loaded = [
        SimpleNamespace(name=str(wait_s), engine=SimpleNamespace(capacity=capacity_of(wait_s)))
        for wait_s in waits_s
    ]
    models = SimpleNamespace(loaded=lambda: loaded, names=names)
    return Admission(cast(Models, models), Metrics(), max_wait_s=5.0)


def capacity_of(wait_s: float) -> Callable[[int], FixedLoad]:
    return lambda num_expected: FixedLoad(wait_s)


def test_request_is_refused_early_only_if_every_model_would_refuse_it() -> None:
    admission_of(9.0, 1.0, names="ab").check()
    admission_of(9.0, names="ab").check()  # the other model is not loaded, so it has no queue
    admission_of(names="ab").check()
    with pytest.raises(RefusedError) as refused:
        admission_of(9.0, 7.0, names="ab").check()
    assert refused.value.retry_s == 7.0
