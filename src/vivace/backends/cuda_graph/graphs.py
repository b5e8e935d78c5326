"""Pool of CUDA graphs by key: the first call captures a graph, later calls replay it.

All graphs of a pool share memory and run one after another on its stream. Where a capture fails,
and on other devices, the same work runs without a graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch

log = logging.getLogger(__name__)

Work = Callable[[], object]
Compile = Callable[[Sequence[Work]], None]


class GraphPool:
    def __init__(
        self,
        device: torch.device,
        *,
        is_capturing: bool = True,
        is_urgent: bool = False,
        stream_of: GraphPool | None = None,  # share that pool's stream
        compile: Compile | None = None,  # compiles the kernels of work in parallel
    ) -> None:
        self._is_cuda = device.type == "cuda"
        self._is_capturing = is_capturing and self._is_cuda
        self._compile = compile if self._is_capturing else None
        self._ready: dict[Hashable, Work] = {}
        self._noted: dict[Hashable, Work] | None = None  # while `noting`
        self._compiled: set[Hashable] = set()  # keys whose kernels are compiled
        self._pool: Any = None  # PyTorch has no public type for the handle
        self.fallbacks: dict[str, str] = {}  # work that runs without a graph, and why
        priority = -1 if is_urgent else 0
        self.stream = torch.cuda.Stream(device, priority=priority) if self._is_cuda else None
        if stream_of is not None:
            self.stream = stream_of.stream

    def __len__(self) -> int:
        """The number of captured graphs."""
        return len(self._ready) - len(self.fallbacks)

    def discard_all(self) -> None:
        """Capture every graph again when it is next needed."""
        self._ready.clear()
        self._pool = None  # a memory pool without graphs cannot be used again

    def on_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream) if self.stream is not None else nullcontext()

    def wait(self) -> None:
        """Wait for all work that is queued, unless the device has failed."""
        if self.stream is not None:
            with suppress(RuntimeError):
                self.stream.synchronize()

    def follow(self, other: GraphPool) -> None:
        """Run work queued later only after all work that is now queued in `other`."""
        if self.stream is None or other.stream is None or self.stream is other.stream:
            return
        self.stream.wait_stream(other.stream)

    def get(self, key: Hashable, work: Work, park: Work) -> Work:
        """A call that runs `work`. `park` sets its inputs to padding for the warm-up run."""
        if key not in self._ready:
            if self._noted is not None:
                self._noted[key] = lambda: self._run_parked(work, park)
                return _do_nothing
            if self._is_capturing:  # load and first run kernels when no queued work is left
                torch.cuda.synchronize()
            if self._compile is not None and key not in self._compiled:
                self._compile([lambda: self._run_parked(work, park)])
            self._ready[key] = self._prepare(str(key), work, park) if self._is_capturing else work
        return self._ready[key]

    @contextmanager
    def noting(self) -> Iterator[list[Work]]:
        """Inside the block `get` captures nothing. The list has all work then, with its inputs
        set to padding. The caller compiles its kernels."""
        noted: list[Work] = []
        self._noted = {}
        try:
            yield noted
            noted.extend(self._noted.values())
            self._compiled.update(self._noted)
        finally:
            self._noted = None

    def _run_parked(self, work: Work, park: Work) -> None:
        with self.on_stream():
            park()
            work()

    def _prepare(self, name: str, work: Work, park: Work) -> Work:
        with self.on_stream():
            # Compiles kernels that are missing and allocates caches: not possible during capture.
            self._run_parked(work, park)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # the graph allocates its own memory
            try:
                log.debug("capturing a CUDA graph for %s", name)
                return self._capture(work)
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                self.fallbacks[name] = reason
                self._pool = None  # a failed capture leaves its memory pool unusable
                log.warning(
                    "CUDA graph capture of %s failed; it runs without a graph: %s", name, reason
                )
                torch.cuda.synchronize()
                return work

    def _capture(self, work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            _end_capture(graph, work)
        except BaseException:
            reset_generator()
            raise
        return graph.replay


def _end_capture(graph: torch.cuda.CUDAGraph, work: Work) -> None:
    """Run the work and end the capture. Raises the error of the work, if it failed."""
    try:
        work()
    except BaseException:
        with suppress(RuntimeError):  # caused by the first error
            graph.capture_end()
        raise
    graph.capture_end()


def reset_generator() -> None:
    """Let PyTorch draw on the GPU again: a failed capture leaves its generator in capture mode.

    Vivace draws with its own counters. Training in the same process uses the generator. The copy
    of the state continues the same sequence.
    """
    generator: Any = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


def _do_nothing() -> None:
    """Stands in for work that is only noted."""
