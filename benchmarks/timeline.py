"""Records when functions and imports of a starting process run, per thread.

Functions are named before their modules are imported, and wrapped at the end of the import.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Functions by module; a class stands for its construction. Modules without functions are imports.
WATCHED: dict[str, tuple[str, ...]] = {
    "numpy": (),
    "tokenizers": (),
    "torch": (),
    "torch._C": (),
    "torch._meta_registrations": (),
    "torch.cuda": ("_lazy_init", "synchronize"),
    "triton": (),
    "safetensors": (),
    "vivace.tts": ("TTS.load",),
    "vivace.device.choice": ("pick_device",),
    "vivace.device.gpu_start": ("_retain_context", "_load_libraries"),
    "vivace.engine.checkpoints.loading": ("open_checkpoint", "load_with_torch"),
    "vivace.backends": ("import_backends", "build_backend"),
    "vivace.text.tokenizer": ("_read_vocab", "_read_merges", "_build_bpe"),
    "vivace.checkpoint": ("Checkpoint.load_model", "Checkpoint.load_codec"),
    "vivace.checkpoint.tensors": (
        *("open_shards", "build_on_meta", "fill", "read_tensor", "_is_finite"),
    ),
    "vivace.model.upload": ("_PinnedCopier", "_PinnedCopier.copy"),
    "vivace.model.talker": ("Talker.fold_texts",),
    "vivace.model.layers": ("fuse",),
    "vivace.model.codec": ("Codec.fold",),
    "vivace.backends.kernel_cache": ("read_entry", "_source_hash", "_driver_version"),
    "vivace.backends.cuda_graph.triton_key": ("store_triton_key",),
    "vivace.backends.cuda_graph.compile": ("import_kernels", "KernelCompiler.compile"),
    "vivace.backends.cuda_graph.graphs": ("GraphPool._prepare", "GraphPool._capture"),
    "vivace.backends.cuda_graph.slots.table": ("SlotTable",),
    "vivace.backends.cuda_graph.prefill": ("join_tables", "Prefill", "Prefill.run"),
    "vivace.backends.cuda_graph.layers.selection": ("_tried", "_first_work", "_compare"),
    "vivace.backends.cuda_graph.codec.graphs": (
        *("_tried_fused", "CodecGraphs", "CodecGraphs.start_ahead"),
    ),
    "vivace.backends.cuda_graph.codec.fused": ("FusedDecoder",),
    "vivace.backends.cuda_graph.stepper": ("Stepper.start",),
    "vivace.backends.cuda_graph.backend": ("CudaGraphBackend",),
    "vivace.backends.cuda.driver": ("Module",),
    "vivace.backends.megakernel.kernel": ("Kernel", "Kernel.set_weights"),
    "vivace.backends.megakernel.layers": ("MegakernelLayers", "MegakernelLayers.load"),
    "vivace.backends.cuda.nvrtc": ("compile_source",),
}


@dataclass(slots=True)
class Span:
    """All calls of a function in one thread. Seconds; times are since the start of the process."""

    name: str
    thread: str
    begin: float
    end: float = 0.0
    calls: int = 0
    wall: float = 0.0
    cpu: float = 0.0  # of the thread, which may have computed without the interpreter's lock


class Timeline:
    def __init__(self, started_at: float) -> None:
        """`started_at` is `time.time()` at the start of the process."""
        self._offset = time.time() - started_at - time.perf_counter()
        self._spans: dict[tuple[str, int], Span] = {}

    def watch(self, targets: dict[str, tuple[str, ...]] = WATCHED) -> None:
        """Record these functions, and the imports of their modules from here on."""
        for name in targets.keys() & sys.modules.keys():
            self._wrap(sys.modules[name], targets[name])
        sys.meta_path.insert(0, _Finder(self, targets))

    @property
    def spans(self) -> list[dict[str, Any]]:
        """In the order of their first calls."""
        return [asdict(one) for one in sorted(self._spans.values(), key=lambda one: one.begin)]

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*arguments: Any, **named: Any) -> Any:
            began, cpu = time.perf_counter(), time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                self._add(name, began, time.perf_counter(), time.thread_time() - cpu)

        return run

    def _add(self, name: str, began: float, ended: float, cpu: float) -> None:
        thread = threading.current_thread()
        begin = round(began + self._offset, 4)
        span = self._spans.setdefault((name, thread.ident or 0), Span(name, thread.name, begin))
        span.end = round(ended + self._offset, 4)
        span.calls += 1
        span.wall, span.cpu = round(span.wall + ended - began, 4), round(span.cpu + cpu, 4)

    def _wrap(self, module: ModuleType, names: Sequence[str]) -> None:
        for name in names:
            *owners, last = name.split(".")
            owner: Any = module
            for each in owners:
                owner = getattr(owner, each)
            found = getattr(owner, last)
            if isinstance(found, type):
                owner, last, found = found, "__init__", found.__init__  # type: ignore[misc]
            wrapped = self.timed(f"{module.__name__.removeprefix('vivace.')}: {name}", found)
            is_class_method = hasattr(found, "__self__") and isinstance(owner, type)
            setattr(owner, last, staticmethod(wrapped) if is_class_method else wrapped)


class _Finder(MetaPathFinder):
    """Records imports, and wraps functions of imported modules."""

    def __init__(self, timeline: Timeline, targets: dict[str, tuple[str, ...]]) -> None:
        self._timeline, self._targets = timeline, targets

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._targets:
            return None
        finders = [one for one in sys.meta_path if one is not self]
        found = (one.find_spec(name, path, target) for one in finders)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            self._watch(name, spec.loader)
        return spec

    def _watch(self, name: str, loader: Any) -> None:
        timeline, create, execute = self._timeline, loader.create_module, loader.exec_module

        def run(module: ModuleType) -> None:
            execute(module)
            timeline._wrap(module, self._targets[name])

        loader.create_module = timeline.timed(f"open {name}", create)
        loader.exec_module = timeline.timed(f"import {name}", run)


def print_timeline(spans: Sequence[dict[str, Any]], *, least_s: float = 0.005) -> None:
    """Leaves out short spans."""
    print(f"{'begin':>7} {'end':>7} {'wall':>7} {'cpu':>7} {'calls':>6}  {'thread':<17} what")
    for span in spans:
        if span["wall"] >= least_s:
            times = " ".join(f"{span[name]:7.3f}" for name in ("begin", "end", "wall", "cpu"))
            print(f"{times} {span['calls']:6d}  {span['thread'][:17]:<17} {span['name']}")
