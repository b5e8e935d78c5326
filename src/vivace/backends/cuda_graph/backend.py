"""The CUDA graph backend: a whole frame is one graph, the frame loop runs on the device.

Slots are rows of tensors with fixed addresses (slots/table.py). A graph reads the row numbers from
a tensor, so one graph serves any batch of its size. The host queues several frames and waits once
for their codes. Without CUDA the same code runs without capture; tests use this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import torch

from vivace.backends.base import (
    Admission,
    CodecPrecision,
    Frames,
    Rendered,
    Samples,
    Slot,
)
from vivace.backends.cuda_graph.buckets import BATCHES, PROMPT_ROWS, largest_batch
from vivace.backends.cuda_graph.codec.graphs import CodecGraphs
from vivace.backends.cuda_graph.compile import kernel_compiler
from vivace.backends.cuda_graph.graphs import GraphPool
from vivace.backends.cuda_graph.layers.selection import AUTO_LAYERS, pick_layers
from vivace.backends.cuda_graph.prefill import Prefill, join_tables
from vivace.backends.cuda_graph.rendering import Renderer
from vivace.backends.cuda_graph.slots.memory import DEFAULT_STREAMS, checked_allocation, pool_size
from vivace.backends.cuda_graph.slots.pages import PAGE, PagePool, num_pages
from vivace.backends.cuda_graph.slots.reservations import FRAMES_PER_TEXT, Reservations
from vivace.backends.cuda_graph.slots.table import GraphSlot, SlotTable, bytes_per_page
from vivace.backends.cuda_graph.step import GroupedStep, ShortStep
from vivace.backends.cuda_graph.stepper import QueuedFrames, Stepper
from vivace.backends.host import model_memory
from vivace.backends.slots import Slots
from vivace.errors import BackendError, BackendFullError, BackendUnavailableError
from vivace.model.codec import Codec
from vivace.model.config import Head, TalkerConfig
from vivace.model.layers import module_bytes
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

log = logging.getLogger(__name__)

MAX_FRAMES = 2048  # per slot: 164 s
PROMPT_POSITIONS = 1024  # per slot, besides the positions of its frames
PROMPT_NUMBERS = 2**22  # hidden size times rows of the prompts of a turn


def positions_per_slot(max_frames: int, config: TalkerConfig) -> int:
    """Positions of a prompt and `max_frames` frames: whole pages, within the model's limit."""
    num_model_pages = config.max_position_embeddings // PAGE
    return PAGE * min(num_pages(max_frames + PROMPT_POSITIONS), num_model_pages)


class CudaGraphBackend:
    name = "cuda_graph"
    shares_work = True
    renders_beside = True
    renders_beside_frames = True  # the codec uses a separate CUDA stream
    default_layers = AUTO_LAYERS

    @torch.inference_mode()
    def __init__(
        self,
        model: Qwen3TTS,
        codec: Codec,
        *,
        max_streams: int | None = None,  # None: 8
        max_frames: int = MAX_FRAMES,
        layers: str | None = None,  # None: `default_layers`
        codec_precision: CodecPrecision = "auto",
        is_capturing: bool = True,
    ) -> None:
        if (refusal := self.unfit(model, max_streams)) is not None:
            raise BackendUnavailableError(refusal)
        config, device = model.config.talker_config, model.device
        self.model, self.codec = model, codec
        if device.type == "cuda":
            model.talker.fold_texts()
            torch.cuda.empty_cache()  # frees the memory of the text embedding for slots
        num_positions = positions_per_slot(max_frames, config)
        max_streams = max_streams or DEFAULT_STREAMS
        self.max_streams, self.max_frames = max_streams, max_frames
        self.max_prompt_rows = PROMPT_NUMBERS // config.hidden_size
        page_bytes = bytes_per_page(config, model.dtype)
        self._pool = PagePool(pool_size(max_streams, num_positions, page_bytes, device))
        self._compile = kernel_compiler(device)
        self.graphs, self.codec_graphs = self._open_graph_pools(is_capturing)
        with checked_allocation(max_streams, max_frames, device):
            self._table = SlotTable(
                config,
                max_streams,
                num_positions,
                max_frames,
                device,
                model.dtype,
                self._pool.size,
                model.num_adapters,
            )
            vectors = join_tables(model.talker, max_streams)
            self._layers = pick_layers(layers or self.default_layers, model, self._table)
            self._prefill = Prefill(model, self._table, self._layers, self.graphs, vectors)
            self._codec = CodecGraphs(
                codec, max_streams, self.codec_graphs, precision=codec_precision, dtype=model.dtype
            )
        pad_id = model.config.tts_pad_token_id
        self._stepper = Stepper(self._table, self._layers, self.graphs, pad_id)
        self._renderer = Renderer(self._codec, self._table.ring, self.graphs)
        self._slots = Slots[GraphSlot]()
        self._reservations = Reservations(self._table, self._pool)
        if model.config.timing_config is not None:
            self._table.set_head(model.config.timing_config.followed)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the graphs run on other streams
        log.info("memory of the graph backend: %s", self.facts()["memory"])

    def __del__(self) -> None:
        """Wait for frames that are still queued: they write to memory that is freed after this."""
        with suppress(AttributeError):  # the constructor has failed
            for pool in (self.graphs, self.codec_graphs):
                pool.wait()

    def _open_graph_pools(self, is_capturing: bool) -> tuple[GraphPool, GraphPool]:
        """The graphs of frames, and the graphs of the codec."""
        pool = partial(GraphPool, is_capturing=is_capturing, compile=self._compile)
        frames = pool(self.model.device, is_urgent=True)
        shared = None if self.renders_beside_frames else frames
        return frames, pool(self.codec.device, stream_of=shared)

    @staticmethod
    def unfit(model: Qwen3TTS, max_streams: int | None) -> str | None:
        """Why the backend cannot run this model with `max_streams` streams, or None."""
        return None

    # -- the Backend interface ---------------------------------------------------------------

    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        [slot] = self.admit_many([(prompt, sampling)])
        if isinstance(slot, Exception):
            raise slot
        return slot

    @torch.inference_mode()
    def admit_many(self, requests: Sequence[Admission]) -> list[Slot | Exception]:
        """Prefill prompts in one batch. Returns a slot or an error per prompt.

        When pages run out, all later prompts wait too: admission is first come, first served.
        """
        reserved: list[GraphSlot | BackendError] = []
        is_full = False
        for request in requests:
            reserved.append(self._reservations.reserve(*request, is_full=is_full))
            is_full = is_full or isinstance(reserved[-1], BackendFullError)
        pairs = zip(requests, reserved, strict=True)
        fresh = [(prompt, slot) for (prompt, _), slot in pairs if isinstance(slot, GraphSlot)]
        try:
            self._open(fresh)
        except BaseException:
            for _, slot in fresh:
                self._reservations.vacate(slot.row)
            raise
        return [self._slots.add(r) if isinstance(r, GraphSlot) else r for r in reserved]

    @torch.inference_mode()
    def extend(self, slot: Slot, text_ids: Sequence[int], is_last: bool) -> None:
        live = self._slots[slot]
        ids = live.extend(text_ids, is_last, self.model.config.tts_eos_token_id)
        with self.graphs.on_stream():
            self._table.append_texts(live, ids)
            self._reservations.grow(live, FRAMES_PER_TEXT * len(live.text_ids))

    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        return self.start_step(slots, num_frames)()

    def start_step(self, slots: Sequence[Slot], num_frames: int) -> Callable[[], Frames]:
        """Queue the first frames; the returned call waits for them and queues the others.

        No frames are queued beyond the limits of all slots. A `ShortStep` may be followed by one
        more step of these or other slots before the wait.
        """
        live = [self._slots[slot] for slot in slots]
        num_frames = min(num_frames, max([1, *[slot.num_left for slot in live]]))
        kind = ShortStep if num_frames <= ShortStep.MAX_FRAMES else GroupedStep
        render_ahead = partial(self._renderer.start_ahead, live, num_frames)
        return kind(live, num_frames, self._queue, render_ahead)

    @torch.inference_mode()
    def _queue(self, live: Sequence[GraphSlot], num_frames: int) -> QueuedFrames:
        size = BATCHES[-1]
        with self.graphs.on_stream():
            self._reservations.grow_all(live, num_frames)
            parts = [
                self._stepper.start(live[i : i + size], num_frames)
                for i in range(0, len(live), size)
            ]
        if len(parts) == 1:
            return parts[0]
        num_groups = self.model.config.talker_config.num_code_groups
        return QueuedFrames(
            lambda: Frames.stack_parts([part.read() for part in parts], num_groups),
            parts[-1].last_begins if parts else None,
        )

    def render(self, slots: Sequence[Slot], frames: Frames) -> list[Samples]:
        return self.start_render(slots, frames)().samples

    @torch.inference_mode()
    def start_render(self, slots: Sequence[Slot], frames: Frames) -> Callable[[], Rendered]:
        """Queue the codec for frames that `start_step` did not queue; the call waits for all."""
        return self._renderer.start([self._slots[slot] for slot in slots], frames)

    def release(self, slot: Slot) -> None:
        live = self._slots.remove(slot)
        self._reservations.vacate(live.row)
        live.row = self._table.padding  # frames that are queued later use the padding row

    @property
    def watched(self) -> Head | None:
        return self._table.head

    @torch.inference_mode()
    def watch(self, head: Head) -> None:
        if head == self._table.head:
            return
        with self.graphs.on_stream():
            self._table.set_head(head)
        if self._layers.name == "plain":  # only the kernels read the head from a tensor
            self.graphs.discard_all()

    # -- more than the interface -------------------------------------------------------------

    @torch.inference_mode()
    def warmup(
        self,
        batches: Sequence[int] | None = None,
        *,
        num_positions: int | None = None,
        prompt_rows: Sequence[int] = PROMPT_ROWS,
        codec_frames: Sequence[int] = (1, 2, 4, 8, 16),
    ) -> None:
        """Capture the graphs of these batch sizes, or of all sizes up to `max_streams`, and of
        this many positions, or of all. No later request compiles a kernel or captures a graph,
        except for top-p together with a top-k above 64.

        The largest graphs come first, so that the others reuse their memory.
        """
        if batches is None:
            batches = [size for size in BATCHES if size < 2 * self.max_streams]
        num_positions = num_positions or self._table.num_positions
        capture = partial(self._capture, batches, num_positions, prompt_rows, codec_frames)
        if self._compile is not None:
            with self.graphs.noting() as frames, self.codec_graphs.noting() as passes:
                capture()
            self._compile([*frames, *passes])
        capture()

    def _capture(
        self,
        batches: Sequence[int],
        num_positions: int,
        prompt_rows: Sequence[int],
        codec_frames: Sequence[int],
    ) -> None:
        with self.graphs.on_stream():
            for size in sorted(prompt_rows, reverse=True):
                self._prefill.warm(size)
            for batch in sorted(batches, reverse=True):
                self._stepper.warm(batch, num_positions)
        sizes = [
            (batch, size)
            for size in codec_frames
            for batch in batches
            if batch <= largest_batch(size)
        ]
        for batch, size in sorted(sizes, key=lambda each: each[0] * each[1], reverse=True):
            self._codec.warm(batch, size)

    def facts(self) -> dict[str, str]:
        capacity = f"up to {self.max_streams} streams of {self.max_frames} frames"
        sizes = ", ".join(f"{name} {size / 2**20:.0f}" for name, size in self.memory().items())
        facts = {
            "layers": f"{self.layers}, {capacity}",
            "keys": f"{self._pool.size} pages of {PAGE} positions, {self._pool.num_free} free",
            "codec": self._codec.description,
            "memory": f"{sizes} MiB",
        }
        return facts | {f"without a graph: {name}": why for name, why in self.fallbacks.items()}

    @property
    def layers(self) -> str:
        """Name of the layers in use: `fused`, `megakernel` or `plain`."""
        return self._layers.name

    @property
    def fallbacks(self) -> dict[str, str]:
        """Work that runs without a graph because its capture failed, with the reason."""
        return {**self.graphs.fallbacks, **self.codec_graphs.fallbacks}

    def memory(self) -> dict[str, int]:
        """Bytes on the device by purpose, without the memory of captured graphs."""
        return {
            **model_memory(self.model),
            "codec": module_bytes(self.codec),
            **self._table.num_bytes,
            "codec state": self._codec.num_bytes,
            "voice cache": self._prefill.num_bytes + self._codec.num_kept_bytes,
        }

    # -- admission ---------------------------------------------------------------------------

    def _open(self, fresh: Sequence[tuple[Prompt, GraphSlot]]) -> None:
        """Prefill each prompt into its slot and initialise the slot's codec state."""
        if not fresh:
            return
        prompts, slots = zip(*fresh, strict=True)
        rows = [slot.row for slot in slots]
        with self.graphs.on_stream():
            self._prefill.run(prompts, slots)
            self._table.lay_texts(slots)
        self._codec.reset(rows)
        for prompt, row in zip(prompts, rows, strict=True):
            if prompt.reference is not None:  # the audio continues that of the reference
                self._codec.load_reference(row, prompt.reference)
