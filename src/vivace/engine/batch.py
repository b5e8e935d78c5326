"""Several texts made together, each as it would be alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from vivace.audio.clip import Audio
from vivace.engine.attempts import speak_once
from vivace.engine.stream import Stream
from vivace.errors import BatchError, EngineError, RequestError, TTSError

OpenStream = Callable[[], Stream]
BatchReport = Callable[[int, int], None]
"""Hears how many texts are done, and of how many."""


def check_item(text: object) -> str:
    if isinstance(text, str):
        return text
    kind = type(text).__name__
    raise RequestError(f"the texts of a batch must be strings, not {kind}")


def speak_batch(
    open_streams: Sequence[OpenStream],
    given: Collection[str],
    num_together: int,
    report: BatchReport | None = None,
) -> list[Audio]:
    """One audio for each, in order; a BatchError if some failed, when all others are done.

    What cannot be spoken at all is refused before anything runs.
    """
    for index, open_stream in enumerate(open_streams):
        try:
            open_stream().close()
        except TTSError as error:
            error.args = (f"text {index} of the batch: {error}",)
            raise
    outcomes = _Batch(open_streams, given, report).run(num_together)
    errors = {n: one for n, one in enumerate(outcomes) if isinstance(one, Exception)}
    if errors:
        raise BatchError([None if n in errors else one for n, one in enumerate(outcomes)], errors)
    return [one for one in outcomes if isinstance(one, Audio)]


class _Batch:
    """A reader for each text, on threads: streams that are read at the same time share turns."""

    def __init__(
        self,
        open_streams: Sequence[OpenStream],
        given: Collection[str],
        report: BatchReport | None,
    ) -> None:
        self._open_streams, self._given, self._report = open_streams, given, report
        self._streams: dict[int, Stream] = {}  # that are being read
        self._num_done = 0
        self._is_stopped = False

    def run(self, num_together: int) -> list[Audio | Exception]:
        numbers, num_threads = range(len(self._open_streams)), min(num_together, len(self))
        if num_threads <= 1:
            return [self._speak(number) for number in numbers]
        threads = ThreadPoolExecutor(num_threads, thread_name_prefix="vivace-batch")
        try:
            return list(threads.map(self._speak, numbers))
        except BaseException:  # an interrupt: nobody will hear the rest
            self._stop()
            raise
        finally:
            threads.shutdown(wait=True, cancel_futures=True)

    def __len__(self) -> int:
        return len(self._open_streams)

    def _speak(self, number: int) -> Audio | Exception:
        try:
            return speak_once(partial(self._open, number), self._given)
        except Exception as error:
            return error
        finally:
            self._streams.pop(number, None)
            self._num_done += 1
            if self._report is not None:
                self._report(self._num_done, len(self))

    def _open(self, number: int) -> Stream:
        stream = self._streams[number] = self._open_streams[number]()
        if self._is_stopped:
            raise EngineError("the batch was interrupted")
        return stream

    def _stop(self) -> None:
        self._is_stopped = True
        for stream in list(self._streams.values()):
            stream.close()
