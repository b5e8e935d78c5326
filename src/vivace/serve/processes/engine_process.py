"""The engine's process: loads the models, runs their turns and serves the workers.

Workers send prompts and get frames (`vivace.remote`). Everything that must hold for all workers
together is here too: crash recovery, quarantine, locks and voices cloned from recordings.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from vivace.errors import EngineLostError, TTSError
from vivace.remote.engine_figures import EngineFigures
from vivace.remote.host import HostedConnection, LoadedCheckpoint, enroll_recording
from vivace.remote.wire import Fields, Kind
from vivace.serve.garbage_collection import collect_less_often
from vivace.serve.models import crashes
from vivace.serve.models.registry import ModelRegistry
from vivace.serve.observability.logs import log_to_stderr, show_events
from vivace.serve.observability.metrics import Metrics, TurnMetrics
from vivace.serve.processes.control import (
    FAILED,
    GAVE_UP,
    NEEDS_RESTART,
    Assignment,
    ControlChannel,
    Values,
)
from vivace.serve.processes.engine_clients import Client, ReceivedCalls, VoiceCache, voice_key
from vivace.serve.processes.shared_counts import SharedCounts
from vivace.serve.processes.shared_metrics import ServerMetrics

log = logging.getLogger(__name__)

SHORTEST_PUBLISH_S, LONGEST_PUBLISH_S = 0.02, 0.2  # between two publications of the load
PUBLISH_SHARE = 0.02  # of the interpreter's time at most
METRICS_S = 0.5  # between two publications of gauges


class EngineProcess:
    """Serves all workers over one registry of models. Event loop thread, unless said otherwise."""

    def __init__(self, assignment: Assignment, control: ControlChannel) -> None:
        self._assignment, self._control = assignment, control
        settings = assignment.settings
        num_models = len(settings.served_models)
        self._counts = SharedCounts(assignment.counts_file, num_models, assignment.num_workers)
        shared = ServerMetrics(assignment.metrics_folder, self._counts, assignment.supervisor)
        self._metrics = Metrics(shared)
        self.registry = ModelRegistry(settings, self._metrics)
        self.registry.on_turn = self._report_turn
        self._recovery = self.registry.recovery
        self._recovery.on_lost = self._stop_after_loss
        if assignment.crash_state:
            crashes.load_state(
                assignment.crash_state, self._recovery.crashes, self._recovery.quarantine
            )
        self._clients: dict[int, Client] = {}  # by worker
        self._received = ReceivedCalls()
        self._locks = {"suspect": asyncio.Lock(), "enrolment": asyncio.Lock()}
        self._clones = VoiceCache()
        self._is_over = asyncio.Event()
        self._loss: TTSError | None = None
        self._loop = asyncio.get_running_loop()
        self._sent_state: dict[str, Any] = {}
        self._sent_crashes = assignment.crash_state
        self._calls: dict[str, Callable[[Client, Fields], None]] = {
            "load": self._load,
            "lock": self._lock,
            "unlock": self._unlock,
            "enroll": self._enroll,
            "begin": lambda client, call: client.begin(call, self._recovery.quarantine),
            "end": lambda client, call: client.end(call, self._recovery.quarantine),
            "use": lambda client, call: client.use(call, self.registry),
            "suspect": self._suspect,
            "strike": lambda _, call: self._strike(call.values["digests"]),
            "clear": lambda _, call: self._recovery.quarantine.clear(call.values["digest"]),
        }

    async def run(self) -> int:
        """Serve until the supervisor stops this process. Returns the exit code."""
        self._control.watch(self._receive_command)
        listener = socket.socket(fileno=self._assignment.listener_file)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        tasks = [asyncio.create_task(self._publish()), asyncio.create_task(self._publish_gauges())]
        starting = asyncio.create_task(self._start())
        over = asyncio.create_task(self._is_over.wait())
        await asyncio.wait({starting, over}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if not over.done():
                await starting
                await over
        finally:
            for task in (starting, over, *tasks):
                task.cancel()
            await asyncio.gather(starting, over, *tasks, return_exceptions=True)
            await self.registry.close()
        return self._exit_code()

    def _receive_command(self, command: Values) -> None:
        """The only command is to stop. Called by the thread of the control channel."""
        self._loop.call_soon_threadsafe(self._is_over.set)

    def _exit_code(self) -> int:
        if self._loss is None:
            return 0
        self._send_crash_state()
        if isinstance(self._loss, EngineLostError) and self._loss.needs_process:
            return NEEDS_RESTART
        self._control.send(failed=str(self._loss), error=type(self._loss).__name__)
        return GAVE_UP

    async def _start(self) -> None:
        await self.registry.start()
        if self._assignment.is_after_crash:
            for name in self.registry.names:
                self._metrics.crashes.labels(name).inc()
                self._metrics.rebuilds.labels(name).inc()
        self._broadcast()
        collect_less_often()
        show_events()
        voices = {name: self.registry.voices(name) for name in self.registry.names}
        self._control.send(ready=[name for name, one in voices.items() if one and one.can_speak])

    def _stop_after_loss(self, loss: TTSError) -> None:
        self._loss = loss
        self._is_over.set()

    # -- connections ---------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        """Runs in a thread."""
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Serve one worker. Runs in a thread of its own."""
        hosted = HostedConnection(connection, self._find, self._receive_calls)
        hosted.serve()
        with suppress(RuntimeError):  # this process ends
            self._loop.call_soon_threadsafe(self._leave, hosted)

    def _find(self, model: str) -> LoadedCheckpoint | None:
        """Called by the threads of connections."""
        found = [one for one in self.registry.loaded() if one.name == model]
        return found[0].tts.loaded if found else None

    def _report_turn(self, model: str, turn: TurnMetrics) -> None:
        """Called by the engine's thread after every turn."""
        for client in tuple(self._clients.values()):
            client.connection.notify_turn()
        self._metrics.count_turn(model, turn)

    def _receive_calls(self, connection: HostedConnection, calls: list[Fields]) -> None:
        """Called by the thread of the connection."""
        names = self.registry.names
        is_examined = any(self.registry.entry(name).is_suspect for name in names)
        # While a model is examined, the quarantine must know every request in flight.
        if self._received.add(connection, calls) or is_examined:
            with suppress(RuntimeError):  # this process ends
                self._loop.call_soon_threadsafe(self._handle_received)

    def _handle_received(self) -> None:
        for connection, call in self._received.take():
            self._handle(connection, call)

    def _handle(self, connection: HostedConnection, call: Fields) -> None:
        if call.values["method"] == "hello":
            worker = call.values["worker"]
            if worker in self._clients:  # the end of its last connection is not yet noticed
                self._leave(self._clients[worker].connection)
            self._clients[worker] = Client(worker, connection)
            if self._sent_state:
                connection.send(Kind.STATE, self._sent_state)
            return
        client = next((one for one in self._clients.values() if one.connection is connection), None)
        if client is None:  # the worker has disconnected
            return
        try:
            self._calls[call.values["method"]](client, call)
        except Exception as error:
            connection.fail(call, error)

    def _leave(self, connection: HostedConnection) -> None:
        for worker, client in list(self._clients.items()):
            if client.connection is connection:
                del self._clients[worker]
                client.leave(self._recovery.quarantine, self.registry)

    # -- calls ---------------------------------------------------------------------------------

    def _answer(self, client: Client, call: Fields, work: Any) -> asyncio.Task[None]:
        async def answer() -> None:
            try:
                client.connection.reply(call, await work or {})
            except Exception as error:
                client.connection.fail(call, error)

        task = asyncio.get_running_loop().create_task(answer())
        client.keep(task)
        return task

    def _load(self, client: Client, call: Fields) -> None:
        async def load() -> None:
            await self.registry.get(call.values["model"])
            self._broadcast()

        self._answer(client, call, load())

    def _lock(self, client: Client, call: Fields) -> None:
        lock, key = self._locks[call.values["name"]], call.values["key"]

        async def acquire() -> None:
            await lock.acquire()
            client.held[key] = lock

        client.waiting[key] = self._answer(client, call, acquire())

    def _unlock(self, client: Client, call: Fields) -> None:
        client.unlock(call.values["key"])

    def _enroll(self, client: Client, call: Fields) -> None:
        async def enrol() -> None:
            loaded = client.connection.find_loaded(call)
            make = partial(enroll_recording, loaded, call)
            voice = await self._clones.get(voice_key(call), make)
            content = np.frombuffer(voice.to_bytes(), np.uint8)
            client.connection.reply(call, {}, [content])

        async def answer() -> None:
            try:
                await enrol()
            except Exception as error:
                client.connection.fail(call, error)

        client.keep(asyncio.get_running_loop().create_task(answer()))

    def _suspect(self, client: Client, call: Fields) -> None:
        name, digest = call.values["model"], call.values["digest"]
        for model in self.registry.loaded():
            if model.name == name:
                self._recovery.suspect(model, digest)

    def _strike(self, digests: list[str]) -> None:
        if rejected := self._recovery.quarantine.strike(digests):
            log.error("%d requests were in flight at two crashes: now rejected", len(rejected))

    # -- publications --------------------------------------------------------------------------

    async def _publish(self) -> None:
        """Publish the load and, when it changes, the state of the models."""
        while True:
            began = time.perf_counter()
            try:
                self._handle_received()
                self._publish_loads()
                self._broadcast()
                self._send_crash_state()
            except Exception:  # the workers would refuse requests forever
                log.exception("the load could not be published")
            spent_s = time.perf_counter() - began
            await asyncio.sleep(
                min(LONGEST_PUBLISH_S, max(SHORTEST_PUBLISH_S, spent_s / PUBLISH_SHARE))
            )

    def _publish_loads(self) -> None:
        for model in self.registry.loaded():
            index = self.registry.names.index(model.name)
            received = [
                client.connection.num_submitted.get(model.name, 0) if client else 0
                for client in map(self._clients.get, range(self._assignment.num_workers))
            ]
            figures = EngineFigures.measure(model.tts.engine)
            self._counts.publish_load(index, figures, received)

    async def _publish_gauges(self) -> None:
        while True:
            self._metrics.publish()
            await asyncio.sleep(METRICS_S)

    def _broadcast(self) -> None:
        """Send the state of the models to all workers, if it has changed."""
        state = self._state()
        if state != self._sent_state:
            self._sent_state = state
            self._publish_loads()  # first: a worker would take a model without a load for full
            for client in self._clients.values():
                client.connection.send(Kind.STATE, state)

    def _state(self) -> dict[str, Any]:
        return {
            "models": {name: self._model_state(name) for name in self.registry.names},
            "strikes": dict(self._recovery.quarantine.strikes),
            "created": self.registry.created,
        }

    def _model_state(self, name: str) -> dict[str, Any]:
        entry = self.registry.entry(name)
        model = entry.model
        engine = None if model is None else model.engine
        return {
            "cards": [dataclasses.asdict(card) for card in entry.cards],
            "folder": None if model is None else str(model.tts.checkpoint.folder),
            "adapters": {one: str(path) for one, path in entry.spec.adapter_paths.items()},
            "is_loaded": model is not None,
            "is_broken": entry.is_broken,
            "is_hung": entry.is_hung,
            "is_full": entry.is_full,
            "engine": {
                "is_broken": engine is None or engine.is_broken,
                "follows_text": engine is not None and engine.follows_text,
                "num_together": 1 if engine is None else engine.num_together,
            },
        }

    def _send_crash_state(self) -> None:
        state = crashes.dump_state(self._recovery.crashes, self._recovery.quarantine)
        if state != self._sent_crashes:
            self._sent_crashes = state
            self._control.send(crash_state=state)


def run_engine(assignment: Assignment, control: ControlChannel) -> int:
    settings = assignment.settings
    log_to_stderr(settings.log_format)
    show_events(is_quiet=settings.log_format == "text" and not settings.verbose)

    async def run() -> int:
        return await EngineProcess(assignment, control).run()

    loop = asyncio.new_event_loop()  # not asyncio.run, which waits for a model that is being loaded
    try:
        return loop.run_until_complete(run())
    except TTSError as error:
        control.send(failed=str(error), error=type(error).__name__)
        return FAILED
    finally:
        loop.close()
