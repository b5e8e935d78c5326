"""A TTS whose engine is behind a connection, with both ends in this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vivace import TTS
from vivace.engine.limits import EngineLoad
from vivace.engine.turn_report import TurnReport
from vivace.remote.checkpoint import RemoteCheckpoint
from vivace.remote.client import EngineLink, RemoteEngine
from vivace.remote.host import HostedConnection, enroll_recording
from vivace.remote.wire import Fields

LIMIT_S = 60.0


class LocalLoad:
    """The load of the engine itself."""

    def __init__(self, tts: TTS) -> None:
        self._tts = tts
        self.num_submitted = 0

    def count_submitted(self) -> None:
        self.num_submitted += 1

    def read_load(self, num_expected: int) -> EngineLoad:
        return self._tts.engine.capacity(num_expected)

    @property
    def busy_since(self) -> float | None:
        return self._tts.engine.busy_since


@dataclass
class RemotePair:
    """The local TTS, the remote one over it, and both ends of their connection."""

    local: TTS
    remote: TTS
    link: EngineLink
    host: HostedConnection
    load: LocalLoad
    calls: list[dict[str, Any]] = field(default_factory=list)
    is_lost: threading.Event = field(default_factory=threading.Event)


@contextmanager
def connected(local: TTS, adapters: dict[str, Path] | None = None) -> Iterator[RemotePair]:
    """Serve the engine of `local`, with these adapters, over a socket pair."""
    ours, theirs = socket.socketpair()
    is_lost, calls = threading.Event(), list[dict[str, Any]]()

    def take_calls(connection: HostedConnection, received: list[Fields]) -> None:
        for call in received:
            calls.append(call.values)
            if call.values["method"] == "enroll":
                try:
                    voice = enroll_recording(connection.find_loaded(call), call)
                    connection.reply(call, {}, [voice_bytes(voice)])
                except Exception as error:
                    connection.fail(call, error)

    host = HostedConnection(theirs, lambda name: local.loaded, take_calls)
    serving = threading.Thread(target=host.serve)
    serving.start()
    link = EngineLink(ours, lambda state: None, is_lost.set)
    load = LocalLoad(local)
    engine = RemoteEngine("model", load)
    engine.link = link
    engine.update(
        is_broken=False,
        follows_text=local.engine.follows_text,
        num_together=local.engine.num_together,
    )
    previous = local.engine.on_turn

    def report(turn: TurnReport) -> None:
        host.notify_turn()

    local.engine.on_turn = report
    link.start()
    loaded = RemoteCheckpoint(local.checkpoint.folder, engine, adapters=adapters)
    remote = TTS(loaded, local.lexicon)
    try:
        yield RemotePair(local, remote, link, host, load, calls, is_lost)
    finally:
        local.engine.on_turn = previous
        link.close()
        serving.join(LIMIT_S)
        assert not serving.is_alive()


def voice_bytes(voice: Any) -> Any:
    import numpy as np

    return np.frombuffer(voice.to_bytes(), np.uint8)
