"""The graph backend: a whole frame in one CUDA graph, the frame loop on the device.

Slots live in rows of tensors that never move (slot_table.py). A graph works on a small tensor of
row numbers, so one graph serves any company of its size. The host queues several frames, then
waits once for their codes. Without CUDA the same code runs un-captured: tests use that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch

from vivace.backends.base import Frames, Request, Samples, Slot
from vivace.backends.cuda_graph.buckets import BATCHES, PROMPT_ROWS
from vivace.backends.cuda_graph.codec import CodecGraphs, CodecPrecision
from vivace.backends.cuda_graph.computer import AUTO, pick_computer
from vivace.backends.cuda_graph.graphs import GraphPool
from vivace.backends.cuda_graph.memory import (
    checked_allocation,
    fitting_streams,
    format_sizes,
)
from vivace.backends.cuda_graph.prefill import Prefill
from vivace.backends.cuda_graph.slot_table import FreshSlot, SlotTable, bytes_per_slot
from vivace.backends.cuda_graph.stepper import LiveSlot, Stepper, stack
from vivace.backends.sizes import module_bytes
from vivace.errors import BackendError
from vivace.model.codec import Codec
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

log = logging.getLogger(__name__)

MAX_FRAMES = 2048  # of one slot: 164 s
PROMPT_ROOM = 1024  # positions of a slot beside those of its frames
LOOKAHEAD = 4  # frames queued while the host waits for those before them


class CudaGraphBackend:
    name = "cuda_graph"
    shares_work = True
    renders_beside_frames = True  # the codec has a stream of its own

    @torch.inference_mode()
    def __init__(
        self,
        model: Qwen3TTS,
        codec: Codec,
        *,
        max_streams: int | None = None,  # None: up to 8, as many as fit
        max_frames: int = MAX_FRAMES,
        computer: str = AUTO,
        codec_precision: CodecPrecision = "auto",
        is_capturing: bool = True,
    ) -> None:
        config, device = model.config.talker_config, model.device
        self.model, self.codec = model, codec
        if device.type == "cuda":
            model.talker.fold_texts()
            torch.cuda.empty_cache()  # what the embedding held is room for slots
        num_positions = min(max_frames + PROMPT_ROOM, config.max_position_embeddings)
        slot_bytes = bytes_per_slot(config, num_positions, model.dtype)
        self.max_streams = max_streams or fitting_streams(slot_bytes, device)
        self.max_frames = max_frames
        self.graphs = GraphPool(device, is_capturing=is_capturing, is_urgent=True)
        self.codec_graphs = GraphPool(
            codec.device,
            is_capturing=is_capturing,
            stream_of=None if self.renders_beside_frames else self.graphs,
        )
        with checked_allocation(self.max_streams, max_frames, device):
            self._table = SlotTable(
                config, self.max_streams, num_positions, max_frames, device, model.dtype
            )
            self._computer = pick_computer(computer, model, self._table)
            self._prefill = Prefill(model, self._table, self._computer, self.graphs)
            self._codec = CodecGraphs(
                codec, self.max_streams, self.codec_graphs, precision=codec_precision
            )
        pad_id = model.config.tts_pad_token_id
        self._stepper = Stepper(self._table, self._computer, self.graphs, pad_id)
        self._slots: dict[Slot, LiveSlot] = {}
        self._free = list(reversed(range(self.max_streams)))
        self._next_slot = 0
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the graphs' streams find everything in place
        log.info("memory of the graph backend:\n%s", format_sizes(self.memory()))

    # -- the seam ----------------------------------------------------------------------------

    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        [slot] = self.admit_many([(prompt, sampling)])
        if isinstance(slot, Exception):
            raise slot
        return slot

    @torch.inference_mode()
    def admit_many(self, requests: Sequence[Request]) -> list[Slot | Exception]:
        """Read prompts together; the place of one that cannot be admitted holds the reason."""
        places = [self._reserve(*request) for request in requests]
        pairs = zip(requests, places, strict=True)
        fresh = [(prompt, place) for (prompt, _), place in pairs if isinstance(place, FreshSlot)]
        try:
            self._open(fresh)
        except BaseException:
            self._free += [slot.row for _, slot in fresh]
            raise
        return [self._enter(p) if isinstance(p, FreshSlot) else p for p in places]

    @torch.inference_mode()
    def extend(self, slot: Slot, text_ids: Sequence[int], is_last: bool) -> None:
        live = self._live(slot)
        if live.is_complete:
            raise BackendError("the slot's text is complete; nothing can be appended")
        ids = [*text_ids, self.model.config.tts_eos_token_id] if is_last else text_ids
        with self.graphs.on_stream():
            live.num_texts = self._table.append_texts(live.row, live.num_texts, ids, is_last)
        live.is_complete = is_last

    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        return self.start_step(slots, num_frames)()

    def start_step(self, slots: Sequence[Slot], num_frames: int) -> Callable[[], Frames]:
        """Queue the first frames; the call returned waits for them and queues the others.

        A few at a time, one batch ahead of the host: little is made past the end. A slot's next
        step is started when this one was waited for.
        """
        live = [self._live(slot) for slot in slots]
        sizes = [min(LOOKAHEAD, num_frames - i) for i in range(0, num_frames, LOOKAHEAD)]
        waits = [self._queue(live, size) for size in sizes[:2]]
        made: list[Frames] = []

        def wait() -> Frames:  # interrupted, it goes on where it was
            while len(made) < len(waits):
                made.append(waits[len(made)]())
                if len(waits) < len(sizes) and not all(slot.is_over for slot in live):
                    waits.append(self._queue(live, sizes[len(waits)]))
            return _join(made)

        return wait

    @torch.inference_mode()
    def _queue(self, live: Sequence[LiveSlot], num_frames: int) -> Callable[[], Frames]:
        size = BATCHES[-1]
        with self.graphs.on_stream():
            waits = [
                self._stepper.start(live[i : i + size], num_frames)
                for i in range(0, len(live), size)
            ]
        num_groups = self.model.config.talker_config.num_code_groups
        return lambda: stack([made for wait in waits for made in wait()], num_groups)

    def render(self, slots: Sequence[Slot], frames: Frames) -> list[Samples]:
        return self.start_render(slots, frames)()

    @torch.inference_mode()
    def start_render(self, slots: Sequence[Slot], frames: Frames) -> Callable[[], list[Samples]]:
        """Queue the codec beside the next frames; the call returned waits for the samples."""
        codes = [frames.of(row) for row in range(len(slots))]
        return self._codec.start([self._live(slot).row for slot in slots], codes)

    def release(self, slot: Slot) -> None:
        live = self._live(slot)
        self._free.append(live.row)
        live.row = self._table.padding  # of a step still under way, nothing more is made
        del self._slots[slot]

    # -- beside the seam ---------------------------------------------------------------------

    @torch.inference_mode()
    def warmup(
        self,
        batches: Sequence[int] | None = None,
        *,
        num_positions: int = 1024,
        prompt_rows: Sequence[int] = PROMPT_ROWS,
        codec_frames: Sequence[int] = (1, 2, 4, 8, 16),
    ) -> None:
        """Capture what so many streams, or any number, will need; a slot must be free."""
        if batches is None:
            batches = [size for size in BATCHES if size < 2 * self.max_streams]
        with self.graphs.on_stream():
            for size in prompt_rows:
                self._prefill.warm(size)
            for batch in batches:
                self._stepper.warm(batch, num_positions)
        for batch in batches:
            for size in codec_frames:
                self._codec.warm(batch, size)

    def facts(self) -> dict[str, str]:
        room = f"up to {self.max_streams} streams of {self.max_frames} frames"
        sizes = ", ".join(f"{name} {size / 2**20:.0f}" for name, size in self.memory().items())
        facts = {"layers": f"{self.computer}, {room}", "memory": f"{sizes} MiB"}
        return facts | {f"without a graph: {name}": why for name, why in self.fallbacks.items()}

    @property
    def computer(self) -> str:
        """What runs the layers: `fused` kernels or `plain` PyTorch."""
        return self._computer.name

    @property
    def fallbacks(self) -> dict[str, str]:
        """What runs without a graph, and why."""
        return {**self.graphs.fallbacks, **self.codec_graphs.fallbacks}

    def memory(self) -> dict[str, int]:
        """Bytes on the device, by what they hold; graphs add to this as they are captured."""
        return {
            "model": module_bytes(self.model),
            "codec": module_bytes(self.codec),
            **self._table.num_bytes,
            "codec state": self._codec.num_bytes,
            "kept voices": self._prefill.num_bytes + self._codec.num_kept_bytes,
        }

    # -- inside ------------------------------------------------------------------------------

    def _live(self, slot: Slot) -> LiveSlot:
        try:
            return self._slots[slot]
        except KeyError:
            raise BackendError(f"slot {slot} was released or never admitted") from None

    def _reserve(self, prompt: Prompt, sampling: SamplingParams) -> FreshSlot | BackendError:
        """A row for the prompt, or why it gets none."""
        try:
            max_frames = self._room(prompt, sampling)
        except BackendError as error:
            return error
        if not self._free:
            return BackendError(
                f"all {self.max_streams} slots are taken; release one or raise max_streams"
            )
        return FreshSlot(
            row=self._free.pop(),
            sampling=sampling,
            num_rows=len(prompt),
            max_frames=max_frames,
            text_ids=prompt.trailing_ids[: self._table.num_texts],
            is_complete=prompt.is_complete,
        )

    def _open(self, fresh: Sequence[tuple[Prompt, FreshSlot]]) -> None:
        """Let each prompt be read by its slot."""
        if not fresh:
            return
        prompts, slots = zip(*fresh, strict=True)
        rows = [slot.row for slot in slots]
        with self.graphs.on_stream():
            self._prefill.run(prompts, rows)
            self._table.reset(slots)
        self._codec.reset(rows)
        for prompt, row in zip(prompts, rows, strict=True):
            if prompt.reference is not None:  # a cloned voice's audio continues its reference's
                self._codec.hear(row, prompt.reference)

    def _enter(self, fresh: FreshSlot) -> Slot:
        slot = self._next_slot
        self._next_slot += 1
        self._slots[slot] = LiveSlot(
            row=fresh.row,
            sampling=fresh.sampling,
            num_rows=fresh.num_rows,
            num_texts=len(fresh.text_ids),
            is_complete=fresh.is_complete,
        )
        return slot

    def _room(self, prompt: Prompt, sampling: SamplingParams) -> int:
        """How many frames the slot may make."""
        if sampling.seed is None:
            raise BackendError("a slot needs a seed; the front door draws one")
        room = self._table.num_positions - len(prompt)
        if room < 1:
            raise BackendError(
                f"the prompt has {len(prompt)} rows and a slot holds at most "
                f"{self._table.num_positions - 1}; raise max_frames"
            )
        return min(sampling.max_frames, self.max_frames, room)


def _join(steps: Sequence[Frames]) -> Frames:
    """Consecutive steps of the same slots as one."""
    if len(steps) == 1:
        return steps[0]
    made = [
        (np.concatenate([step.of(row) for step in steps]), status)
        for row, status in enumerate(steps[-1].status)
    ]
    return stack(made, steps[-1].codes.shape[2])
