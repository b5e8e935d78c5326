"""The host's side of an engine: serves the clients of one connection.

A thread receives the client's messages. Another one sends what the engine has published: after
every turn, all new frames of the client's utterances in one message. The engine's thread only
notifies the sender, so a client that does not read delays no other client.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

from vivace.audio.files import Recording
from vivace.engine.checkpoints.attention import UtteranceWords
from vivace.engine.checkpoints.loaded import (
    LoadedCheckpoint as LoadedCheckpoint,  # for vivace.serve
)
from vivace.engine.engine import Engine
from vivace.engine.turn_report import TurnReport
from vivace.engine.utterances.follower import TextFollower
from vivace.engine.utterances.utterance import Utterance
from vivace.errors import ClosedError
from vivace.remote.errors import dump_error
from vivace.remote.utterances import (
    PublishedUtterance,
    dump_found,
    load_frames,
    load_prompt,
    load_sampling,
)
from vivace.remote.wire import (
    LENGTH,
    REQUEST,
    Array,
    Buffer,
    Fields,
    Kind,
    Message,
    pack,
    pack_fields,
    read_messages,
    send_all,
    unpack_fields,
)
from vivace.voices.voice import Voice

log = logging.getLogger(__name__)

NUM_FRAME_ARRAYS = 2  # of `TimedFrames`, before the arrays of a prompt

FindModel = Callable[[str], LoadedCheckpoint | None]
"""Returns the loaded checkpoint of a model; None while it is not loaded."""


class HostedConnection:
    """Serves one client. `serve` blocks until the client disconnects."""

    def __init__(
        self,
        connection: socket.socket,
        find: FindModel,
        on_calls: Callable[[HostedConnection, list[Fields]], None],  # not the engine's own methods
    ) -> None:
        self._connection, self._find, self._on_calls = connection, find, on_calls
        self._calls: list[Fields] = []  # of the messages that are being received
        self._spoken: dict[int, tuple[Engine, PublishedUtterance]] = {}
        self._words: dict[int, UtteranceWords] = {}
        self._messages: deque[list[Buffer]] = deque()  # replies and states to send
        self._wakeups: SimpleQueue[bool] = SimpleQueue()  # False: the connection has ended
        self._is_notified = self._had_turn = False
        self._due: deque[int] = deque()  # numbers of utterances woken outside of turns
        self.num_submitted: dict[str, int] = {}  # new requests so far, by model

    # -- from any thread -----------------------------------------------------------------------

    def notify_turn(self) -> None:
        """Send the frames of a turn. The engine's thread calls this after every turn."""
        self._had_turn = True
        self._wake_sender()

    def _wake_sender(self) -> None:
        if not self._is_notified:
            self._is_notified = True
            self._wakeups.put(True)

    def send(self, kind: Kind, values: dict[str, Any], arrays: Sequence[Array] = ()) -> None:
        self._messages.append(pack_fields(kind, values, arrays))
        self._wake_sender()

    def reply(self, call: Fields, values: dict[str, Any], arrays: Sequence[Array] = ()) -> None:
        if "call" in call.values:  # otherwise it is a note
            self.send(Kind.REPLY, {"call": call.values["call"], **values}, arrays)

    def fail(self, call: Fields, error: BaseException) -> None:
        self.reply(call, {"error": dump_error(error)})

    def close(self) -> None:
        with suppress(OSError):  # the client has closed the connection
            self._connection.shutdown(socket.SHUT_RDWR)

    # -- the receiving thread ------------------------------------------------------------------

    def serve(self) -> None:
        sender = threading.Thread(target=self._send_updates, name="vivace-sender", daemon=True)
        sender.start()
        try:
            for messages in read_messages(self._connection):
                for message in messages:
                    self._receive(message)
                if self._calls:
                    calls, self._calls = self._calls, []
                    self._on_calls(self, calls)
        except Exception:
            log.exception("a connection of the engine's process failed")
        finally:
            for engine, published in list(self._spoken.values()):
                engine.cancel(published.utterance)
            self._spoken.clear()
            self._wakeups.put(False)
            self.close()
            sender.join()
            self._connection.close()

    def _receive(self, message: Message) -> None:
        kind, content = message
        if kind is Kind.REQUEST:
            number, num_read, num_wanted = REQUEST.unpack(content)
            if number in self._spoken:
                engine, published = self._spoken[number]
                engine.request(published.utterance, num_read, num_wanted)
        elif kind is Kind.CANCEL:
            (number,) = LENGTH.unpack(content)
            if (spoken := self._spoken.pop(number, None)) is not None:
                spoken[0].cancel(spoken[1].utterance)
        elif kind is Kind.SUBMIT:
            self._submit(unpack_fields(content))
        elif kind is Kind.EXTEND:
            values = unpack_fields(content).values
            if values["number"] in self._spoken:
                engine, published = self._spoken[values["number"]]
                engine.extend(published.utterance, values["text_ids"], values["is_last"])
        else:
            self._call(unpack_fields(content))

    def _submit(self, fields: Fields) -> None:
        values, model = fields.values, fields.values["model"]
        loaded = self._find(model)
        published = PublishedUtterance(values["number"], self._load_utterance(fields, loaded))
        # With the number instead of the object, a released utterance is freed at once.
        published.utterance.wake = partial(self._wake, published.number)
        if values["reports_turns"]:
            published.utterance.on_turn = partial(self._note_turn, published.number)
        if not values["is_continued"]:
            self.num_submitted[model] = self.num_submitted.get(model, 0) + 1
        try:
            if loaded is None:
                raise ClosedError(f"model {model!r} is being loaded again")
            engine = loaded.engine
            self._spoken[published.number] = engine, published
            engine.submit(published.utterance)
        except Exception as error:
            published.utterance.fail(error)
            self._messages.append(pack(Kind.UPDATES, *published.take_update()))
            self._spoken.pop(published.number, None)
            self._wake_sender()

    def _wake(self, number: int) -> None:
        """Called by the engine's thread when the reader should check the utterance."""
        self._due.append(number)
        self._wake_sender()

    def _note_turn(self, number: int, turn: TurnReport) -> None:
        """Called by the engine's thread after a turn of the utterance."""
        if (spoken := self._spoken.get(number)) is not None:
            spoken[1].turns.append(turn)

    def _load_utterance(self, fields: Fields, loaded: LoadedCheckpoint | None) -> Utterance:
        values, follower, marker = fields.values, None, None
        prompt = load_prompt(values["prompt"], fields.arrays)
        is_complete, num_ids = values["is_text_complete"], values["num_text_ids"]
        if values["checks_words"] and loaded is not None and loaded.client.follows_text:
            marker = loaded.marker
            track = (*prompt.text_ids, *prompt.trailing_ids)
            ids = track[prompt.own_row : prompt.own_row + num_ids]
            follower = TextFollower(marker.mark(ids), is_complete=is_complete)
        return Utterance(
            prompt=prompt,
            sampling=load_sampling(values["sampling"]),
            wake=self._wake_sender,
            num_text_ids=num_ids,
            is_text_complete=is_complete,
            is_guarded=values["is_guarded"],
            has_budget=values["has_budget"],
            is_continued=values["is_continued"],
            follower=follower,
            mark_ids=None if marker is None else marker.mark,
        )

    def _call(self, call: Fields) -> None:
        method = {
            "time_words": self._time_words,
            "end_words": self._end_words,
            "offer": self._offer,
        }.get(call.values["method"])
        try:
            if method is None:
                self._calls.append(call)
            else:
                method(call)
        except Exception as error:
            self.fail(call, error)

    def find_loaded(self, call: Fields) -> LoadedCheckpoint:
        loaded = self._find(call.values["model"])
        if loaded is None:
            raise ClosedError(f"model {call.values['model']!r} is being loaded again")
        return loaded

    def _time_words(self, call: Fields) -> None:
        values, loaded = call.values, self.find_loaded(call)
        if "prompt" in values:
            prompt = load_prompt(values["prompt"], call.arrays[NUM_FRAME_ARRAYS:])
            self._words[values["number"]] = UtteranceWords(loaded.attention.selector, prompt)
        frames = load_frames(values["frames"], call.arrays[:NUM_FRAME_ARRAYS])
        words = self._words[values["number"]]
        loaded.engine.post(
            lambda: self.reply(call, {"found": dump_found(words.read(frames))}), self._wake_sender
        )

    def _end_words(self, call: Fields) -> None:
        self._words.pop(call.values["number"], None)

    def _offer(self, call: Fields) -> None:
        *arrays, codes = call.arrays
        prompt = load_prompt(call.values["prompt"], arrays)
        self.find_loaded(call).attention.finder.offer(prompt, call.values["num_ids"], codes)

    # -- the sending thread --------------------------------------------------------------------

    def _send_updates(self) -> None:
        while self._wakeups.get():
            self._is_notified = False  # first: a later notification wakes this thread again
            buffers = list[Buffer]()
            while self._messages:
                buffers += self._messages.popleft()
            try:
                send_all(self._connection, buffers + self._take_updates())
            except OSError:  # the receiving thread notices the end too
                self.close()
                return

    def _take_updates(self) -> list[Buffer]:
        """One message with the news of all utterances that may have some."""
        updates, had_turn = list[Buffer](), self._had_turn
        self._had_turn = False
        due = [self._due.popleft() for _ in range(len(self._due))]
        for number in list(self._spoken) if had_turn else due:
            if (spoken := self._spoken.get(number)) is not None:
                updates += spoken[1].take_update()
                if spoken[1].is_over:
                    self._spoken.pop(number, None)
        return pack(Kind.UPDATES, *updates) if updates else []


def enroll_recording(loaded: LoadedCheckpoint, call: Fields) -> Voice:
    """Create the voice of a recording that the client has decoded."""
    recording = Recording(samples=call.arrays[0], **call.values["recording"])
    return loaded.enroll(recording, call.values["options"])
