"""Backend interface: prompts to frames and frames to samples, for many slots at once.

Backends do not deal with queues, threads or text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vivace.model.config import Head
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

Slot = int
"""A handle to one admitted prompt, valid until it is released."""

SlotStatus = Literal["running", "waiting", "stop", "length", "failed"]
"""`waiting`: the slot needs more text. `failed`: its logits were not finite."""

CodecPrecision = Literal["auto", "float32", "split", "half"]
"""Precision of the codec on an NVIDIA GPU and in C++ on a CPU.

On a GPU, `split` emulates float32 on tensor cores (3xTF32). `half` rounds inputs and weights to
float16 (TF32 in the transformer) and sums in float32. `auto` is `half` for a bfloat16 model and
`split` for a float32 model, or PyTorch's float32 where the fused kernels cannot run.

On a CPU, `half` allows bfloat16 (AMX), and float16 in the stages of the decoder (ARM). `split`
allows two bfloat16 numbers per float32 (AMX). The fastest allowed kernels are used. `auto` is
`half` for integer weights and `split` for full weights.
"""

Samples = NDArray[np.float32]

Admission = tuple[Prompt, SamplingParams]

Places = Sequence[tuple[int, float]]
"""Per frame: the index of the text id with the most attention (-1: unknown), and the share of
attention on the whole text. Measured at the head given to `Backend.watch`."""

Loudness = NDArray[np.float32]
"""The root mean square of each frame; not finite where a sample is not."""

Sound = tuple[Samples, Loudness]


class SlotFrames(NamedTuple):
    """Frames that one slot made in a step."""

    codes: NDArray[np.int64]  # [frames, codebooks]
    status: SlotStatus
    places: Places


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """Result of one step: one row per slot, in the order of the given slots."""

    codes: NDArray[np.int64]  # [slots, most frames made, codebooks]; valid up to lengths
    lengths: tuple[int, ...]
    status: tuple[SlotStatus, ...]
    places: tuple[Places, ...] | None = None  # one row per slot; None: no head is watched

    @classmethod
    def stack(cls, rows: Sequence[SlotFrames], num_groups: int, *, has_places: bool) -> Frames:
        """Combine the frames of several slots."""
        lengths = tuple(len(row.codes) for row in rows)
        codes = np.zeros((len(rows), max(lengths, default=0), num_groups), dtype=np.int64)
        for padded, row in zip(codes, rows, strict=True):
            padded[: len(row.codes)] = row.codes
        places = tuple(row.places for row in rows) if has_places else None
        return cls(codes, lengths, tuple(row.status for row in rows), places)

    @classmethod
    def stack_parts(cls, parts: Sequence[Frames], num_groups: int) -> Frames:
        """Combine the frames of different slots."""
        made = [
            SlotFrames(part.of(row), status, part.places_of(row))
            for part in parts
            for row, status in enumerate(part.status)
        ]
        has_places = any(part.places is not None for part in parts)
        return cls.stack(made, num_groups, has_places=has_places)

    @classmethod
    def join(cls, steps: Sequence[Frames]) -> Frames:
        """Join consecutive steps of the same slots."""
        last = steps[-1]
        if len(steps) == 1:
            return last
        if all(min(step.lengths) == step.codes.shape[1] for step in steps[:-1]):  # none is padded
            codes = np.concatenate([step.codes for step in steps], axis=1)
            lengths = map(sum, zip(*(step.lengths for step in steps), strict=True))
            places = None
            if last.places is not None:
                rows = range(len(last.lengths))
                places = tuple([*chain(*(step.places_of(row) for step in steps))] for row in rows)
            return cls(codes, tuple(lengths), last.status, places)
        made = [
            SlotFrames(
                np.concatenate([step.of(row) for step in steps]),
                status,
                [place for step in steps for place in step.places_of(row)],
            )
            for row, status in enumerate(last.status)
        ]
        return cls.stack(made, last.codes.shape[2], has_places=last.places is not None)

    def of(self, row: int) -> NDArray[np.int64]:
        """The frames of one row: [length, codebooks]."""
        return self.codes[row, : self.lengths[row]]

    def places_of(self, row: int) -> Places:
        """The places of one row; empty where no head is watched."""
        return self.places[row] if self.places is not None else ()

    def take(self, rows: Sequence[int]) -> Frames:
        """Select rows."""
        if len(rows) == len(self.lengths):
            return self
        return Frames(
            self.codes[list(rows)],
            tuple(self.lengths[row] for row in rows),
            tuple(self.status[row] for row in rows),
            None if self.places is None else tuple(self.places[row] for row in rows),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Rendered:
    """Audio of one render call: one row per slot, in the order of the given slots."""

    samples: list[Samples]
    loudness: list[Loudness]

    @classmethod
    def of(cls, samples: list[Samples], lengths: Sequence[int]) -> Rendered:
        pairs = zip(samples, lengths, strict=True)
        return cls(samples, [frame_loudness(sound, length) for sound, length in pairs])


def frame_loudness(samples: Samples, num_frames: int) -> Loudness:
    """[..., samples] to [..., frames]. Call it once for many slots: numpy releases the GIL."""
    if not num_frames:
        return np.zeros((*samples.shape[:-1], 0), np.float32)
    frames = samples.reshape(*samples.shape[:-1], num_frames, -1)
    power = np.einsum("...s,...s->...", frames, frames) / frames.shape[-1]
    return np.sqrt(power).astype(np.float32, copy=False)


class Backend(Protocol):
    name: str
    max_streams: int  # slots at once
    shares_work: bool  # a batched step costs little more than a step of one slot
    max_prompt_rows: int  # of `admit_many` that running slots can wait for without an underrun
    renders_beside: bool  # samples are made beside the next frames: `start_render` returns early

    @property
    def watched(self) -> Head | None:
        """The attention head whose places are reported; None: no places."""

    def admit_many(self, requests: Sequence[Admission]) -> list[Slot | Exception]:
        """Prefill prompts into free slots in one batch. Returns a slot or an error per prompt.

        Every `sampling.seed` must be set. After a `BackendFullError` retry when another slot was
        released; an idle backend never returns this error.
        """

    def extend(self, slot: Slot, text_ids: Sequence[int], is_last: bool) -> None:
        """Append live text to a slot whose prompt was not complete."""

    def start_step(self, slots: Sequence[Slot], num_frames: int) -> Callable[[], Frames]:
        """Start up to `num_frames` frames per slot. The returned call waits for the frames.

        A slot that ends or waits for text makes fewer. A `running` slot without frames waits for
        memory that the release of another slot frees. Slots may be released before the wait.

        Wait for the frames before the next step, unless the result is a `FollowedStep`. A slot that
        ends makes no frames in the following step.
        """

    def start_render(self, slots: Sequence[Slot], frames: Frames) -> Callable[[], Rendered]:
        """Start to decode these frames, continuing each slot's audio.

        The returned call waits for the samples. Slots may be released before the wait.
        """

    def release(self, slot: Slot) -> None:
        """Free the slot. Its handle becomes invalid."""

    def watch(self, head: Head) -> None:
        """Report this head's attention as `Frames.places` for slots admitted later."""

    def warmup(self) -> None:
        """Compile kernels and capture graphs before the first request."""

    def memory(self) -> dict[str, int]:
        """Bytes on the device, by purpose."""

    def facts(self) -> dict[str, str]:
        """Details for `vivace doctor`."""


@runtime_checkable
class FollowedStep(Protocol):
    """A step in flight whose successor may be started before its frames are there."""

    def __call__(self) -> Frames:
        """Wait for the frames."""

    def wait_for_last_frame(self) -> None:
        """Wait until the device begins the last frames of the step."""


@runtime_checkable
class ReadsAttention(Protocol):
    """A backend that computes the attention of all heads itself."""

    def read_attention(
        self, prompt: Prompt, codes: NDArray[np.int64], num_ids: int
    ) -> NDArray[np.float32]:
        """Attention of an utterance's frames to its text ids: [heads of all layers, n, num_ids].

        `codes` are [n, codebooks]. The attention is 0 for an id that the talker has not read.
        """


class SynchronousBackend(ABC):
    """Mixin of synchronous backends: `start_step` and `start_render` return finished results."""

    watched: Head | None = None
    renders_beside: bool = False

    @abstractmethod
    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        """Prefill a prompt into a free slot."""

    @abstractmethod
    def release(self, slot: Slot) -> None:
        """Free the slot."""

    @abstractmethod
    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        """Make frames."""

    @abstractmethod
    def render(self, slots: Sequence[Slot], frames: Frames) -> list[Samples]:
        """The samples of frames."""

    def watch(self, head: Head) -> None:  # noqa: B027
        """A backend that reports no places ignores it."""

    def admit_many(self, requests: Sequence[Admission]) -> list[Slot | Exception]:
        slots: list[Slot | Exception] = []
        for prompt, sampling in requests:
            try:
                slots.append(self.admit(prompt, sampling))
            except Exception as error:  # affects only this prompt
                slots.append(error)
            except BaseException:  # the caller gets no slots, so release those admitted so far
                for slot in slots:
                    if not isinstance(slot, Exception):
                        self.release(slot)
                raise
        return slots

    def start_step(self, slots: Sequence[Slot], num_frames: int) -> Callable[[], Frames]:
        frames = self.step(slots, num_frames)
        return lambda: frames

    def start_render(self, slots: Sequence[Slot], frames: Frames) -> Callable[[], Rendered]:
        rendered = Rendered.of(self.render(slots, frames), frames.lengths)
        return lambda: rendered
