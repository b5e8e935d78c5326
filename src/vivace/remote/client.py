"""The client's side of an engine in another process.

`EngineLink` is one connection; its thread receives messages and does for utterances what the
engine's thread does in one process. `RemoteEngine` is the engine of one model. It outlives a link:
after the engine's process was restarted, the next link serves it.
"""

from __future__ import annotations

import itertools
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vivace.engine.limits import EngineLoad
from vivace.engine.utterances.client import EngineClient
from vivace.engine.utterances.timings import AttentionPass, Found, TimedFrames
from vivace.engine.utterances.utterance import Utterance
from vivace.errors import ClosedError, EngineError
from vivace.prompt import Prompt
from vivace.remote.errors import load_error
from vivace.remote.utterances import (
    apply_updates,
    dump_frames,
    dump_prompt,
    dump_submission,
    load_found,
)
from vivace.remote.wire import (
    LENGTH,
    REQUEST,
    Array,
    Fields,
    Kind,
    Message,
    Outbox,
    pack,
    pack_fields,
    read_messages,
    unpack_fields,
)

log = logging.getLogger(__name__)

LOST = "the engine's process ended while it spoke; send the request again"
RESTARTING = "the engine's process is being restarted; send the request again"


class PublishedLoad(Protocol):
    """The load of one model's engine, as its process publishes it."""

    def count_submitted(self) -> None:
        """Count a new request that the published load does not contain yet."""

    def read_load(self, num_expected: int) -> EngineLoad: ...

    @property
    def busy_since(self) -> float | None: ...


class EngineLink:
    """One connection to the engine's process. Any thread may send."""

    def __init__(
        self,
        connection: socket.socket,
        on_state: Callable[[dict[str, Any]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._connection, self._on_state, self._on_lost = connection, on_state, on_lost
        self._outbox = Outbox(connection)
        self._numbers = itertools.count(1)
        self._calls: dict[int, Future[Fields]] = {}
        self.utterances: dict[int, Utterance] = {}
        self.is_open = True
        self._thread = threading.Thread(target=self._work, name="vivace-link", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):  # the peer has closed the connection
            self._connection.shutdown(socket.SHUT_RDWR)

    # -- sending -------------------------------------------------------------------------------

    def next_number(self) -> int:
        """Identifies an utterance, a call or a pass on this link."""
        return next(self._numbers)

    def add(self, utterance: Utterance) -> int:
        number = self.next_number()
        self.utterances[number] = utterance
        return number

    def send(self, kind: Kind, *parts: bytes) -> None:
        self._outbox.send(pack(kind, *parts))

    def send_fields(self, kind: Kind, values: dict[str, Any], arrays: Sequence[Array] = ()) -> None:
        self._outbox.send(pack_fields(kind, values, arrays))

    def put_fields(self, kind: Kind, values: dict[str, Any], arrays: Sequence[Array] = ()) -> None:
        """Send with the next message, so that both arrive together."""
        self._outbox.put(pack_fields(kind, values, arrays))

    def note(self, method: str, **values: Any) -> None:
        """Call a method of the host that returns nothing."""
        self.send_fields(Kind.NOTE, {"method": method, **values})

    def call(
        self, method: str, values: dict[str, Any], arrays: Sequence[Array] = ()
    ) -> Future[Fields]:
        """Call a method of the host. The future has its result or its error."""
        number, future = self.next_number(), Future[Fields]()
        future.set_running_or_notify_cancel()  # a caller that is cancelled does not wait
        self._calls[number] = future
        self.send_fields(Kind.CALL, {"call": number, "method": method, **values}, arrays)
        if not self.is_open and self._calls.pop(number, None) is not None:
            future.set_exception(ClosedError(LOST))
        return future

    # -- the link's thread ---------------------------------------------------------------------

    def _work(self) -> None:
        try:
            for messages in read_messages(self._connection):
                for message in messages:
                    self._receive(message)
        except Exception:
            log.exception("the connection to the engine's process failed")
        finally:
            self._end()

    def _receive(self, message: Message) -> None:
        if message.kind is Kind.UPDATES:
            apply_updates(message.content, self.utterances)
        elif message.kind is Kind.STATE:
            self._on_state(unpack_fields(message.content).values)
        elif message.kind is Kind.REPLY:
            reply = unpack_fields(message.content)
            future = self._calls.pop(reply.values["call"], None)
            if future is not None and "error" in reply.values:
                future.set_exception(load_error(reply.values["error"]))
            elif future is not None:
                future.set_result(reply)

    def _end(self) -> None:
        self.is_open = False
        self._outbox.close()
        self._connection.close()
        while self._calls:
            self._calls.popitem()[1].set_exception(EngineError(LOST))
        while self.utterances:
            one = self.utterances.popitem()[1]
            one.fail(EngineError(LOST))
            one.wake()
        self._on_lost()


class RemoteEngine(EngineClient):
    """The engine of one model in another process."""

    def __init__(self, model: str, load: PublishedLoad) -> None:
        self.model, self._load = model, load
        self.link: EngineLink | None = None  # None: not connected
        self._numbers: dict[Utterance, tuple[EngineLink, int]] = {}
        self._is_broken = self._follows_text = False
        self._num_together = 1

    def update(self, *, is_broken: bool, follows_text: bool, num_together: int) -> None:
        """Take the state that the engine's process has sent."""
        self._is_broken, self._follows_text = is_broken, follows_text
        self._num_together = num_together

    @property
    def open_link(self) -> EngineLink:
        """Raises ClosedError while the engine's process is restarted."""
        if self.link is None or not self.link.is_open:
            raise ClosedError(RESTARTING)
        return self.link

    def submit(self, utterance: Utterance) -> None:
        link = self.open_link
        number = link.add(utterance)
        self._numbers[utterance] = link, number
        if not utterance.is_continued:
            self._load.count_submitted()
        values, arrays = dump_submission(utterance)
        values |= {"number": number, "model": self.model}
        link.put_fields(Kind.SUBMIT, values, arrays)  # the first request follows at once
        if not link.is_open:
            utterance.fail(EngineError(LOST))

    def request(self, utterance: Utterance, num_read: int, num_wanted: int) -> None:
        utterance.num_read, utterance.num_wanted = num_read, num_wanted
        utterance.wake_if_ready()  # an update may have come since the reader looked
        place = self._numbers.get(utterance)
        if place is not None and not utterance.is_over:
            link, number = place
            link.send(Kind.REQUEST, REQUEST.pack(number, num_read, num_wanted))

    def extend(self, utterance: Utterance, text_ids: Sequence[int], is_last: bool) -> None:
        if (place := self._numbers.get(utterance)) is not None:
            link, number = place
            utterance.num_texts_sent += 1
            values = {"number": number, "text_ids": list(text_ids), "is_last": is_last}
            link.send_fields(Kind.EXTEND, values)

    def cancel(self, utterance: Utterance) -> None:
        if (place := self._numbers.pop(utterance, None)) is None:
            return
        link, number = place
        if link.utterances.pop(number, None) is not None and not utterance.is_over:
            utterance.is_cancelled = True
            link.send(Kind.CANCEL, LENGTH.pack(number))
            utterance.wake()

    def capacity(self, num_expected: int = 0) -> EngineLoad:
        return self._load.read_load(num_expected)

    def check_process(self) -> None:
        """A server's worker does not fork."""

    @property
    def busy_since(self) -> float | None:  # type: ignore[override]
        return self._load.busy_since

    @property
    def is_broken(self) -> bool:
        return self._is_broken

    @property
    def num_together(self) -> int:
        return self._num_together

    @property
    def follows_text(self) -> bool:
        return self._follows_text

    def offer(self, prompt: Prompt, num_ids: int, codes: NDArray[np.int64]) -> None:
        """Offer a spoken utterance to the search for an attention head."""
        if self._follows_text or self.link is None:
            return
        values, arrays = dump_prompt(prompt)
        sent = {"method": "offer", "model": self.model, "prompt": values, "num_ids": num_ids}
        self.link.send_fields(Kind.NOTE, sent, [*arrays, codes])


class RemotePass(AttentionPass):
    """The word timings of an utterance, read in the engine's process."""

    def __init__(self, engine: RemoteEngine, prompt: Prompt) -> None:
        self._prompt: Prompt | None = prompt  # None: the host has it
        self._link, self._model = engine.open_link, engine.model
        self._number = self._link.next_number()

    def read(
        self, frames: TimedFrames, done: Callable[[Found], None], wake: Callable[[], None]
    ) -> None:
        values, arrays = dump_frames(frames)
        sent: dict[str, Any] = {"model": self._model, "number": self._number, "frames": values}
        if self._prompt is not None:
            prompt, more = dump_prompt(self._prompt)
            sent["prompt"], arrays, self._prompt = prompt, [*arrays, *more], None

        def finish(future: Future[Fields]) -> None:
            failed = future.exception() is not None
            done(None if failed else load_found(future.result().values["found"]))
            wake()

        self._link.call("time_words", sent, arrays).add_done_callback(finish)

    def __del__(self) -> None:
        if self._prompt is None and self._link.is_open:
            self._link.note("end_words", number=self._number)
