"""The work of the engine's thread: turns, released slots, expired requests and failed backends.

Only the engine's thread calls `EngineWorker`. Other threads may read its numbers, and call
`Engine.abandon` when the thread hangs and will not write any more.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from vivace.backends.base import Backend
from vivace.device.choice import is_context_lost
from vivace.device.threads import use_threads
from vivace.engine.limits import EngineLimits
from vivace.engine.turn_report import TurnHook, TurnReport, call_hooks
from vivace.engine.turns.pipeline import Pipeline, describe, engine_error
from vivace.engine.turns.scheduler import Plan, Scheduler
from vivace.engine.turns.wait import WaitEstimator
from vivace.engine.utterances.utterance import Utterance
from vivace.errors import EngineError, QueueFullError
from vivace.model.config import Head

log = logging.getLogger(__name__)

UNREAD_S = 2.0  # a stream that is not read for this long may be garbage
COLLECT_EVERY_S = 10.0
MAX_FAULTS = 3  # failed turns in a row before the backend is rebuilt


class EngineWorker:
    def __init__(
        self,
        backend: Backend,
        limits: EngineLimits,
        threads: int | None,
        rebuild: Callable[[], Backend] | None,
    ) -> None:
        self.backend, self.limits = backend, limits
        self.threads, self.rebuild = threads, rebuild
        num_slots = min(limits.max_streams or backend.max_streams, backend.max_streams)
        self.scheduler: Scheduler[Utterance] = Scheduler(
            limits,
            num_slots,
            shares_work=backend.shares_work,
            max_prompt_rows=backend.max_prompt_rows,
        )
        self.pipeline = Pipeline(backend)
        self.waits = WaitEstimator()
        self.on_turn: TurnHook | None = None  # set by any thread
        self.num_faults = 0  # in a row
        self.num_rebuilds = 0
        self.has_lost_device = False  # until the process ends
        self.failure: EngineError | None = None  # every later request fails with it
        self._collected_at = 0.0
        self._head: Head | None = None  # to watch; None: the head that the config names

    @property
    def utterances(self) -> list[Utterance]:
        return [*self.scheduler.running, *self.scheduler.queue]

    # -- messages ----------------------------------------------------------------------------

    def queue(self, utterances: Iterable[Utterance]) -> None:
        self.scheduler.queue.extend(utterances)
        if self.failure is not None:
            for one in self.scheduler.queue:
                one.fail(engine_error(str(self.failure), self.failure))

    def request(self, utterance: Utterance, num_read: int, num_wanted: int, now: float) -> None:
        self.scheduler.resume(utterance)
        utterance.request(num_read, num_wanted, now)

    def extend(self, utterance: Utterance, text_ids: Sequence[int], is_last: bool) -> None:
        if utterance.is_over:
            return
        if utterance.slot is None:  # the prompt of its next slot will have the text
            utterance.extend(text_ids, is_last)
            return
        self.scheduler.resume(utterance)
        try:
            self.backend.extend(utterance.slot, text_ids, is_last)
            utterance.extend(text_ids, is_last)
        except BaseException as fault:
            self.settle(fault, [utterance])

    def watch(self, head: Head) -> None:
        self._head = head
        self.backend.watch(head)

    # -- turns -------------------------------------------------------------------------------

    def take_turn(self) -> bool:
        """Run one turn. Returns False if there is nothing to do."""
        self.sweep()
        pipeline, began = self.pipeline, time.perf_counter()
        plan: Plan[Utterance] = Plan()
        if pipeline.can_start:
            self.scheduler.step_s = pipeline.step_s
            plan = self.scheduler.plan(is_busy=pipeline.is_busy)
        if not plan.admitted and not plan.stepped and not pipeline.is_busy:
            return False
        try:
            with use_threads(self.threads):
                pipeline.run(
                    plan.admitted, plan.stepped, plan.num_frames, is_followed=plan.is_followed
                )
            self.num_faults = 0
        except BaseException as fault:
            self.settle(fault, pipeline.give_up())
        is_delivered = not pipeline.is_rendering  # otherwise the next turn delivers
        if is_delivered:
            self._wake_readers()
        self._wait_for_memory(*pipeline.take_waiting())
        self.sweep()
        if is_delivered:
            self.scheduler.pause_unread()
        if len(plan.admitted) == 1:
            self.waits.observe_admission(time.perf_counter() - began)
        self._report(plan, began)
        return True

    def _wake_readers(self) -> None:
        """Wake the readers whose requests can be answered.

        `sweep` wakes the readers of ended utterances after it has released their slots.
        """
        for one in [one for one in self.scheduler.active if one.num_wanted]:
            if not one.is_over:
                one.wake_if_ready()

    def _wait_for_memory(self, refused: Sequence[Utterance], starved: Sequence[Utterance]) -> None:
        self.scheduler.wait_for_memory(refused, starved)
        if refused and not self.scheduler.running:  # no release will return memory
            refused[0].fail(EngineError("the backend has lost its memory; load the model again"))

    def _report(self, plan: Plan[Utterance], began: float) -> None:
        given = {self.on_turn, *[one.on_turn for one in plan.stepped]}
        if not (hooks := [hook for hook in given if hook is not None]):
            return
        waits_s = tuple(one.waited_s for one in plan.admitted if one.waited_s)
        seconds = time.perf_counter() - began
        call_hooks(hooks, TurnReport(waits_s, len(plan.stepped), plan.num_frames, began, seconds))

    def sweep(self) -> None:
        """Release the slots of utterances that are over, and wake their readers."""
        scheduler = self.scheduler
        leaving = [one for one in scheduler.active if one.leaves_slot]
        leaving += [one for one in scheduler.queue if one.leaves_slot]
        if not leaving:
            return
        over: list[Utterance] = []
        for one in leaving:
            if one.is_over:
                over.append(one)
            else:  # it retries
                self._release(one)
                one.queue(time.perf_counter())
                scheduler.requeue(one)
        scheduler.remove(*over)
        for one in over:
            if one.slot is not None:
                is_complete = one.finish_reason == "stop"
                held_s = time.perf_counter() - one.since
                self.waits.observe_end(one, held_s, is_complete=is_complete)
            self._release(one)
            one.wake()

    def _release(self, utterance: Utterance) -> None:
        slot, utterance.slot = utterance.slot, None
        if slot is None or self.failure is not None:
            return
        try:
            self.backend.release(slot)
        except Exception:
            log.warning("the backend could not release slot %d", slot, exc_info=True)

    def expire(self, is_idle: bool) -> None:
        """While requests wait for a slot: end unread streams, and requests that waited too long."""
        if not self.scheduler.queue:
            return
        now, limits = time.perf_counter(), self.limits
        unread = [one for one in self.scheduler.running if not one.num_wanted]
        idle_s = max((now - one.read_at for one in unread), default=0.0)
        if is_idle and idle_s > UNREAD_S and now - self._collected_at > COLLECT_EVERY_S:
            self._collected_at = now
            gc.collect()  # a stream that is alive only in a reference cycle holds a slot
        for one in unread:
            if now - one.read_at > limits.max_idle_s:
                reason = (
                    f"this stream was not read, or got no text, for {limits.max_idle_s:.0f} s "
                    "while others waited for its slot; allow more with max_streams"
                )
                self._fail(one, EngineError(reason))
        num_waiting = sum(not one.is_over for one in self.scheduler.queue)
        num_running = sum(not one.is_over for one in self.scheduler.running)
        for one in self.scheduler.queue if is_idle else ():
            if now - one.since > limits.max_wait_s:
                one.fail(QueueFullError(num_waiting, limits.max_wait_s, num_running))

    # -- failures ----------------------------------------------------------------------------

    def settle(self, fault: BaseException, utterances: Sequence[Utterance]) -> None:
        """Fail the utterances whose slots are in an unknown state.

        All utterances fail after a lost device, and when the backend is rebuilt because several
        turns in a row failed.
        """
        self.num_faults += 1
        if is_context_lost():
            self.has_lost_device = True
            reason = f"the backend broke ({describe(fault)}); restart the process"
            self.break_down(fault, reason)
            return
        needs_rebuild = self.rebuild is not None and self.num_faults >= MAX_FAULTS
        reason = (
            f"the backend failed ({describe(fault)}); retry the request, or load the model again"
        )
        for one in self.utterances if needs_rebuild else utterances:
            self._fail(one, engine_error(reason, fault))
        if needs_rebuild:
            self._replace_backend()

    def _replace_backend(self) -> None:
        assert self.rebuild is not None
        log.warning("the backend failed %d times in a row and is rebuilt", self.num_faults)
        self.num_rebuilds += 1
        for one in self.utterances:
            one.slot = None
        try:
            self.backend = self.rebuild()
            if self._head is not None:
                self.backend.watch(self._head)
        except Exception as error:
            self.break_down(error, f"the backend could not be rebuilt ({describe(error)})")
        self.pipeline, self.num_faults = Pipeline(self.backend), 0
        gc.unfreeze()  # a server has frozen the old backend at its start

    def break_down(self, fault: BaseException, reason: str) -> None:
        """Fail all utterances, now and later."""
        self.failure = engine_error(reason, fault)
        self.pipeline = Pipeline(self.backend)
        for one in self.utterances:
            self._fail(one, engine_error(reason, fault))

    def _fail(self, utterance: Utterance, error: EngineError) -> None:
        utterance.fail(error)
        self.scheduler.resume(utterance)  # the next sweep removes it
