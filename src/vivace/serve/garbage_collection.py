"""Garbage collection in a process that serves many streams."""

from __future__ import annotations

import gc

NUM_NEW_OBJECTS = 10_000  # that cause a garbage collection; Python's default is 700


def collect_less_often() -> None:
    """Keep all objects that exist now out of later garbage collections, and collect less often.

    A collection that scans all modules stalls streams for 0.1 s. With Python's default, a burst of
    requests causes dozens of collections, which scan its streams again and again. The settings are
    the process's.
    """
    gc.collect()
    gc.freeze()
    _, *older = gc.get_threshold()
    gc.set_threshold(NUM_NEW_OBJECTS, *older)
