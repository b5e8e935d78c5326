"""Speaks whole texts: a second time after a runaway, and several texts concurrently."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from vivace.audio.clip import Audio, AudioChunk
from vivace.engine.streams.stream import Stream, Wake
from vivace.engine.utterances.steps import Wait
from vivace.errors import BatchError, RequestError, RunawayError, TTSError

log = logging.getLogger(__name__)

OpenStream = Callable[[], Stream]
OpenAwake = Callable[[Wake], Stream]
"""Opens a stream that is read in steps; the argument wakes the reader."""
T = TypeVar("T")
Steps = Generator[bool, None, T]
"""Work that never blocks. Yields False to wait for `wake` and True after progress; returns T."""
BatchReport = Callable[[int, int], None]
"""Called with the number of finished texts and the number of all texts."""
PINNED = {"seed", "max_frames"}  # options that exclude a second attempt


def attempts(open_stream: OpenStream, given: Collection[str]) -> Iterator[Stream]:
    """Streams that the caller reads to their end: a second one if the first was a runaway.

    There is no second attempt for a text of several utterances, nor with options of `PINNED`.
    Raises RunawayError after two runaways.
    """
    for _ in range(2):
        stream = open_stream()
        yield stream
        if not stream.is_runaway or stream.num_utterances > 1 or PINNED & set(given):
            return
        log.warning("speech did not end by itself or was silent (%s)", stream.finish_reason)
    raise RunawayError(
        "speech did not end by itself or was silent, twice; change the text a little, "
        "or give a seed to get the speech as it is"
    )


def speak_parts(
    open_stream: OpenStream, given: Collection[str], report: Callable[[Stream, AudioChunk], None]
) -> Iterator[NDArray[np.float32]]:
    """The samples of a text, utterance by utterance. `report` gets every chunk.

    A KeyboardInterrupt is raised after the samples made so far.
    """
    for stream in attempts(open_stream, given):
        held, num_given = [np.zeros(0, np.float32)], 1  # the first utterance may be repeated
        with stream:
            try:
                for chunk in stream:
                    report(stream, chunk)
                    if stream.num_utterances > num_given:
                        yield np.concatenate(held)
                        held, num_given = [], stream.num_utterances
                    held.append(chunk.samples)
            except KeyboardInterrupt:
                yield np.concatenate(held)
                raise
    yield stream.without_stall(np.concatenate(held))


def check_item(text: object) -> str:
    if isinstance(text, str):
        return text
    kind = type(text).__name__
    raise RequestError(f"the texts of a batch must be strings, not {kind}")


def speak_batch(
    openers: Sequence[OpenAwake],
    given: Collection[str],
    num_together: int,
    report: BatchReport | None = None,
    name: Callable[[int], str] = "text {} of the batch".format,
) -> list[Audio]:
    """One audio for each text, in order. Raises BatchError at the end if some failed."""
    return run_steps(lambda wake: read_batch(openers, given, num_together, wake, report, name))


def run_steps(open_steps: Callable[[Wake], Steps[T]]) -> T:
    """Read steps to their end, in this thread."""
    wakeups: SimpleQueue[None] = SimpleQueue()
    steps = open_steps(lambda: wakeups.put(None))
    with closing(steps):
        while not isinstance(step := take_step(steps), Result):
            if not step:
                wakeups.get()
        return step.value


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """The return value of steps."""

    value: T


def take_step(steps: Steps[T]) -> bool | Result[T]:
    """The next step or the result. A StopIteration cannot leave a future."""
    try:
        return next(steps)
    except StopIteration as end:
        return Result(end.value)


def read_batch(
    openers: Sequence[OpenAwake],
    given: Collection[str],
    num_together: int,
    wake: Wake,
    report: BatchReport | None = None,
    name: Callable[[int], str] = "text {} of the batch".format,
) -> Steps[list[Audio]]:
    """`speak_batch` in steps.

    Checks all texts before the first is spoken. Reads `num_together` streams at a time, each until
    it waits for frames.
    """
    open_streams = [partial(opener, wake) for opener in openers]
    for index, open_stream in enumerate(open_streams):
        try:
            open_stream().close()
        except TTSError as error:
            error.args = (f"{name(index)}: {error}",)
            raise
    outcomes: dict[int, Audio | Exception] = {}
    waiting = [(number, read_text(one, given)) for number, one in enumerate(open_streams)]
    reading: list[tuple[int, Steps[Audio]]] = []
    try:
        while waiting or reading:
            num_free = max(1, num_together) - len(reading)
            reading, waiting = reading + waiting[:num_free], waiting[num_free:]
            num_before = len(outcomes)
            for number, steps in reading:
                if (outcome := _advance(steps)) is not None:
                    outcomes[number] = outcome
                    if report is not None:
                        report(len(outcomes), len(openers))
            reading = [one for one in reading if one[0] not in outcomes]
            yield len(outcomes) > num_before
    finally:
        for _, steps in reading:
            steps.close()
    return _in_order(outcomes)


def _in_order(outcomes: Mapping[int, Audio | Exception]) -> list[Audio]:
    audios = [outcomes[number] for number in range(len(outcomes))]
    if errors := {n: one for n, one in enumerate(audios) if isinstance(one, Exception)}:
        raise BatchError([None if n in errors else one for n, one in enumerate(audios)], errors)
    return [one for one in audios if isinstance(one, Audio)]


def read_text(
    open_stream: OpenStream,
    given: Collection[str],
    report: Callable[[Stream], None] | None = None,
) -> Steps[Audio]:
    """The whole audio of a text, with a second attempt after a runaway."""
    audio = None
    for stream in attempts(open_stream, given):
        with stream:
            for step in stream.collect_steps():
                if isinstance(step, Wait):
                    yield False
                elif isinstance(step, Audio):
                    audio = step
                elif report is not None:
                    report(stream)
    assert audio is not None
    return audio


def _advance(steps: Steps[Audio]) -> Audio | Exception | None:
    """The audio or the error; None while the text waits for frames."""
    try:
        step = take_step(steps)
    except Exception as error:
        return error
    return step.value if isinstance(step, Result) else None
