"""Reports of the engine's turns to hooks, for metrics and traces."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TurnReport:
    waits_s: tuple[float, ...]  # for a slot, of the utterances that were admitted
    num_stepped: int
    num_frames: int  # of each stepped utterance
    began: float  # of time.perf_counter
    seconds: float

    @property
    def num_admitted(self) -> int:
        return len(self.waits_s)


TurnHook = Callable[[TurnReport], None]


def call_hooks(hooks: Iterable[TurnHook], report: TurnReport) -> None:
    for hook in hooks:
        try:
            hook(report)
        except Exception:
            log.warning("the hook for turns failed", exc_info=True)
