"""Tracks engine crashes, and the requests that may have caused them.

A request that was in flight at two crashes is rejected. Requests are identified by a digest of
their text and options; the text itself is not stored. Requests that were in flight at one crash run
one at a time until they complete, so that only the cause is in flight at the next crash.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from vivace.serve.errors import RefusedError

MAX_CRASHES, WINDOW_S = 5, 600.0  # the server exits after MAX_CRASHES within WINDOW_S
PAUSES_S = (0.0, 1.0, 2.0, 4.0)  # before a model is loaded again, by the number of recent crashes
MAX_STRIKES = 2
STRIKE_LIFETIME_S = 3_600.0
MAX_TRACKED = 1_024  # requests with strikes
SUSPECT_WAIT_TIMEOUT_S = 10.0  # how long a suspected request waits for another suspected one

Clock = Callable[[], float]


class SuspectLock(Protocol):
    """Held by the one request with a strike that runs."""

    async def acquire(self) -> Any: ...

    def release(self) -> None: ...


class CrashLog:
    """Timestamps of recent engine crashes. Survives a restart of the server process."""

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock
        self.times: deque[float] = deque(maxlen=MAX_CRASHES)

    def add(self) -> None:
        self.times.append(self._clock())

    @property
    def num_recent(self) -> int:
        return sum(self._clock() - WINDOW_S < at for at in self.times)

    @property
    def is_limit_reached(self) -> bool:
        return self.num_recent >= MAX_CRASHES

    @property
    def pause_s(self) -> float:
        """How long to wait before the model is loaded again."""
        return PAUSES_S[min(max(0, self.num_recent - 1), len(PAUSES_S) - 1)]


class Quarantine:
    """Rejects requests that were in flight during repeated engine crashes."""

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock
        self.strikes: dict[str, list[float]] = {}  # crash times by digest, oldest request first
        self._running: Counter[tuple[str, str]] = Counter()  # model, digest
        self._suspect_lock: SuspectLock = asyncio.Lock()

    def check(self, digest: str | None) -> None:
        """Raise RefusedError for a request with `MAX_STRIKES` strikes."""
        if digest is not None and len(self._recent(digest)) >= MAX_STRIKES:
            raise RefusedError(
                f"the model failed {MAX_STRIKES} times while it spoke this request, which is "
                f"rejected for {STRIKE_LIFETIME_S / 60:g} minutes; change the text or its options",
                code="quarantined",
                param="input",
            )

    @asynccontextmanager
    async def running(self, model: str, digest: str | None) -> AsyncIterator[None]:
        """Track a request while it runs. A request with a strike waits for others with strikes."""
        if digest is None:
            yield
            return
        has_lock = bool(self._recent(digest)) and await self._acquire_suspect_lock()
        self.begin(model, digest)
        try:
            self.check(digest)  # the same request may have crashed the engine during the wait
            yield
        finally:
            self.end(model, digest)
            if has_lock:
                self._suspect_lock.release()

    def begin(self, model: str, digest: str) -> None:
        """Count a request that runs."""
        self._running[model, digest] += 1

    def end(self, model: str, digest: str) -> None:
        """Count a request that runs no longer."""
        self._running -= Counter([(model, digest)])

    async def _acquire_suspect_lock(self) -> bool:
        try:
            await asyncio.wait_for(self._suspect_lock.acquire(), SUSPECT_WAIT_TIMEOUT_S)
        except asyncio.TimeoutError:
            return False
        return True

    def in_flight(self, model: str) -> set[str]:
        """Return the digests of the model's running requests."""
        return {digest for name, digest in self._running if name == model}

    def strike(self, digests: Collection[str]) -> list[str]:
        """Add a strike to each request; return the requests that are rejected from now on."""
        for digest in digests:
            self.strikes[digest] = [*self._recent(digest), self._clock()]
        while len(self.strikes) > MAX_TRACKED:
            del self.strikes[next(iter(self.strikes))]
        return [one for one in digests if len(self.strikes.get(one, ())) >= MAX_STRIKES]

    def clear(self, digest: str | None) -> None:
        """Remove all strikes of a request that completed."""
        if digest is not None:
            self.strikes.pop(digest, None)

    @property
    def num_rejected(self) -> int:
        return sum(len(self._recent(one)) >= MAX_STRIKES for one in list(self.strikes))

    def _recent(self, digest: str) -> list[float]:
        times = self.strikes.get(digest, [])
        return [at for at in times if self._clock() - STRIKE_LIFETIME_S < at]


def digest_of(model: str, text: object, options: Mapping[str, Any]) -> str | None:
    """Return the digest of a request, or None for live text. Voices count by their names."""
    if not isinstance(text, str):
        return None
    values = {name: getattr(value, "name", value) for name, value in sorted(options.items())}
    content = json.dumps([model, text, values], sort_keys=True, default=str)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def dump_state(crashes: CrashLog, quarantine: Quarantine) -> str:
    """Serialize both for the process that replaces this one."""
    return json.dumps({"crashes": list(crashes.times), "strikes": quarantine.strikes})


def load_state(text: str, crashes: CrashLog, quarantine: Quarantine) -> None:
    """Restore the state that the previous process serialized."""
    state = json.loads(text)
    crashes.times.extend(state["crashes"])
    quarantine.strikes |= state["strikes"]
