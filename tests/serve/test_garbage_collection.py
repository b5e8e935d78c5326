"""Garbage collection in a process that serves many streams."""

from __future__ import annotations

import gc

import pytest

from vivace.serve.garbage_collection import collect_less_often


def test_collector_freezes_objects_and_collects_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(gc, "set_threshold", lambda *numbers: calls.append(numbers))
    collect_less_often()
    assert calls == ["freeze", (10_000, *gc.get_threshold()[1:])]
