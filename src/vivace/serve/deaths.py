"""Engines that died: how often, which requests they had, and when it is time to give up.

A request that was there at two deaths is refused, by a digest of what it says and how. Neighbours
must not be blamed with it, so one that was there at a death runs without others of its kind until
it has been spoken once. Nothing that was said is kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from vivace.serve.errors import RefusedError

MAX_DEATHS, WINDOW_S = 5, 600.0  # so many within so long are too many
PAUSES_S = (0.0, 1.0, 2.0, 4.0)  # before an engine is made anew, after the first death and so on
MAX_STRIKES = 2
FORGET_S = 3_600.0  # after which a strike is forgotten
MAX_KEPT = 1_024  # requests with strikes
ALONE_S = 10.0  # how long one waits for another that was there at a death

Clock = Callable[[], float]


class Deaths:
    """Times of the last deaths; they outlive the process as text."""

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=MAX_DEATHS)

    def add(self) -> None:
        self._times.append(self._clock())

    @property
    def num_recent(self) -> int:
        return sum(self._clock() - WINDOW_S < at for at in self._times)

    @property
    def are_too_many(self) -> bool:
        return self.num_recent >= MAX_DEATHS

    @property
    def pause_s(self) -> float:
        """Before the next engine."""
        return PAUSES_S[min(max(0, self.num_recent - 1), len(PAUSES_S) - 1)]

    def dump(self) -> list[float]:
        return list(self._times)

    def load(self, times: Iterable[float]) -> None:
        self._times.extend(float(at) for at in times)


class Quarantine:
    """Requests that were there when an engine died, by their digests."""

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock
        self._strikes: dict[str, list[float]] = {}  # times, oldest request first
        self._running: Counter[tuple[str, str]] = Counter()  # model, digest
        self._alone = asyncio.Lock()

    def check(self, digest: str | None) -> None:
        """A RefusedError for a request that was there at two deaths."""
        if digest is not None and len(self._recent(digest)) >= MAX_STRIKES:
            raise RefusedError(
                f"the model failed {MAX_STRIKES} times while it spoke this request, which is not "
                f"tried again for {FORGET_S / 60:g} minutes; change the text or its options",
                code="quarantined",
                param="input",
            )

    @asynccontextmanager
    async def running(self, model: str, digest: str | None) -> AsyncIterator[None]:
        """While a request may kill; one that is suspected waits for others that are."""
        if digest is None:
            yield
            return
        has_lock = bool(self._recent(digest)) and await self._wait_alone()
        self._running[model, digest] += 1
        try:
            self.check(digest)  # it may have killed again while this one waited
            yield
        finally:
            self._running -= Counter([(model, digest)])
            if has_lock:
                self._alone.release()

    async def _wait_alone(self) -> bool:
        try:
            await asyncio.wait_for(self._alone.acquire(), ALONE_S)
        except asyncio.TimeoutError:
            return False
        return True

    def now_running(self, model: str) -> set[str]:
        return {digest for name, digest in self._running if name == model}

    def strike(self, digests: Collection[str]) -> list[str]:
        """They were there at a death; those that are refused from now on."""
        for digest in digests:
            self._strikes[digest] = [*self._recent(digest), self._clock()]
        while len(self._strikes) > MAX_KEPT:
            del self._strikes[next(iter(self._strikes))]
        return [one for one in digests if len(self._strikes.get(one, ())) >= MAX_STRIKES]

    def absolve(self, digest: str | None) -> None:
        """It was spoken to its end, and nothing died."""
        if digest is not None:
            self._strikes.pop(digest, None)

    @property
    def num_refused(self) -> int:
        return sum(len(self._recent(one)) >= MAX_STRIKES for one in list(self._strikes))

    def _recent(self, digest: str) -> list[float]:
        known = self._strikes.get(digest, [])
        return [at for at in known if self._clock() - FORGET_S < at]

    def dump(self) -> dict[str, list[float]]:
        return dict(self._strikes)

    def load(self, strikes: Mapping[str, Iterable[float]]) -> None:
        self._strikes |= {str(digest): list(map(float, at)) for digest, at in strikes.items()}


def digest_of(model: str, text: object, options: Mapping[str, Any]) -> str | None:
    """Of a request whose text is known; None for text that comes as it is written."""
    if not isinstance(text, str):
        return None
    told = {name: _told(value) for name, value in sorted(options.items())}
    content = json.dumps([model, text, told], sort_keys=True, default=str)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def _told(value: Any) -> Any:
    """A voice by its name: it is the same one for the same request."""
    return getattr(value, "name", value)


def dump(deaths: Deaths, quarantine: Quarantine) -> str:
    """For the process that follows."""
    return json.dumps({"deaths": deaths.dump(), "strikes": quarantine.dump()})


def load(told: str, deaths: Deaths, quarantine: Quarantine) -> None:
    """What the process before this one wrote."""
    known = json.loads(told)
    deaths.load(known["deaths"])
    quarantine.load(known["strikes"])
