"""The interface of every backend, at the granularity of frames.

A backend turns prompts into frames and frames into samples, for many slots at once. It knows
nothing of queues, threads or text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from vivace.model.config import Head
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

Slot = int
"""A handle to one admitted prompt, valid until it is released."""

SlotStatus = Literal["running", "waiting", "stop", "length", "failed"]
"""`waiting` for text; `failed`: its logits were not finite."""

CodecPrecision = Literal["auto", "float32", "split", "half"]
"""Precision of the codec on an NVIDIA GPU.

`split` emulates float32 on tensor cores (3xTF32). `half` rounds inputs and weights to float16 (TF32
in the transformer) and sums in float32. `auto` is `half` for a bfloat16 model and `split` for a
float32 model, or PyTorch's float32 where the fused kernels cannot run.
"""

Samples = NDArray[np.float32]

Admission = tuple[Prompt, SamplingParams]

Places = Sequence[tuple[int, float]]
"""For each frame, the id of the slot's own text with the most attention (-1: not known), and the
share of attention that the whole text has. Of the head given to `Backend.watch`."""

Loudness = NDArray[np.float32]
"""The root mean square of each frame; not finite where a sample is not."""


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """The result of one step: a row per slot, in the order of the slots given."""

    codes: NDArray[np.int64]  # [slots, most frames made, codebooks]; valid up to lengths
    lengths: tuple[int, ...]
    status: tuple[SlotStatus, ...]
    places: tuple[Places, ...] | None = None  # a row per slot; None: no head is watched

    def of(self, row: int) -> NDArray[np.int64]:
        """The frames of one row: [length, codebooks]."""
        return self.codes[row, : self.lengths[row]]

    def places_of(self, row: int) -> Places:
        """The places of one row; empty where no head is watched."""
        return self.places[row] if self.places is not None else ()

    def take(self, rows: Sequence[int]) -> Frames:
        """These rows alone."""
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
    """The sound of one render: a row per slot, in the order of the slots given."""

    samples: list[Samples]
    loudness: list[Loudness]

    @classmethod
    def of(cls, samples: list[Samples], lengths: Sequence[int]) -> Rendered:
        pairs = zip(samples, lengths, strict=True)
        return cls(samples, [frame_loudness(sound, length) for sound, length in pairs])


def frame_loudness(samples: Samples, num_frames: int) -> Loudness:
    """[..., samples] to [..., frames]; for many slots in one call, since it gives the GIL away."""
    if not num_frames:
        return np.zeros((*samples.shape[:-1], 0), np.float32)
    frames = samples.reshape(*samples.shape[:-1], num_frames, -1)
    power = np.einsum("...s,...s->...", frames, frames) / frames.shape[-1]
    return np.sqrt(power).astype(np.float32, copy=False)


class Backend(Protocol):
    name: str
    max_streams: int  # slots at once
    shares_work: bool  # a batched step costs little more than one slot's, also during a render

    @property
    def watched(self) -> Head | None:
        """The attention head whose places are reported."""

    def admit_many(self, requests: Sequence[Admission]) -> list[Slot | Exception]:
        """Prefill prompts into free slots, in one batch; each gives its slot or its error.

        Every `sampling.seed` must be set. A BackendFullError asks to wait for a release; a backend
        without slots in use gives none.
        """

    def extend(self, slot: Slot, text_ids: Sequence[int], is_last: bool) -> None:
        """Append live text to a slot whose prompt was not complete."""

    def start_step(self, slots: Sequence[Slot], num_frames: int) -> Callable[[], Frames]:
        """Begin up to `num_frames` frames for every slot; one that ends or waits makes fewer.

        A `running` slot that made none waits for memory that another slot's release gives back.
        The call returned waits for them. A slot may be released before that.
        """

    def start_render(self, slots: Sequence[Slot], frames: Frames) -> Callable[[], Rendered]:
        """Begin the samples of these frames, continuing each slot's audio.

        The call returned waits for them. A slot may be released before that.
        """

    def release(self, slot: Slot) -> None:
        """Free the slot; its handle is no longer valid."""

    def watch(self, head: Head) -> None:
        """Report this head's attention as `Frames.places`, for slots admitted from now on."""

    def warmup(self) -> None:
        """Compile and capture what requests need, so that the first is as fast as later ones."""

    def memory(self) -> dict[str, int]:
        """Bytes on the device, by purpose."""

    def facts(self) -> dict[str, str]:
        """How it runs on this device, for `vivace doctor`."""


class Immediate(ABC):
    """Mixin for a synchronous backend: `start_step` and `start_render` do all the work."""

    watched: Head | None = None

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
            except Exception as error:  # concerns this prompt alone
                slots.append(error)
            except BaseException:  # ends the call, so nobody would release those before it
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
