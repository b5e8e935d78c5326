"""Settings of the interpreter are restored after a load."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from vivace.device.interpreter import SWITCH_INTERVAL_S, paused_collector, short_switch_interval


def test_garbage_is_collected_again_after_concurrent_loads() -> None:
    assert gc.isenabled()
    first, second = paused_collector(), paused_collector()
    first.__enter__()
    assert not gc.isenabled()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_garbage_is_collected_again_after_a_failed_load() -> None:
    with pytest.raises(MemoryError), paused_collector():
        raise MemoryError
    assert gc.isenabled()


def test_disabled_collector_stays_disabled_after_a_load() -> None:
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.fixture
def switch_interval() -> Iterator[float]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield sys.getswitchinterval()
    sys.setswitchinterval(before)


def test_switch_interval_is_restored_after_concurrent_loads(switch_interval: float) -> None:
    first, second = short_switch_interval(), short_switch_interval()
    first.__enter__()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == switch_interval


def test_switch_interval_is_restored_after_a_failed_load(switch_interval: float) -> None:
    with pytest.raises(MemoryError), short_switch_interval():
        raise MemoryError
    assert sys.getswitchinterval() == switch_interval


def test_shorter_switch_interval_of_the_program_is_kept(switch_interval: float) -> None:
    sys.setswitchinterval(0.0001)
    with short_switch_interval():
        assert sys.getswitchinterval() == pytest.approx(0.0001)
    assert sys.getswitchinterval() == pytest.approx(0.0001)
