"""The real TTS and engine over a backend without a model. The seed selects the plan of a speech."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from unittest.mock import patch

import numpy as np

from tests.support.shared_weights import weights_shared
from vivace import TTS
from vivace.backends.base import Frames, Samples, Slot, SlotStatus, SynchronousBackend
from vivace.prompt import Prompt
from vivace.script.prompts import PromptWriter
from vivace.serve.settings import ModelSpec
from vivace.speech import LiveMode, SamplingParams

SAMPLES_PER_FRAME = 1_920
NUM_CODEBOOKS = 16


@dataclass(frozen=True)
class Plan:
    """The length of a speech, or its fault."""

    num_frames: int = 25
    fails_at: int | None = None  # after this many frames the samples are not finite
    never_ends: bool = False
    is_refused: bool = False  # the prompt is rejected


@dataclass
class SlotProgress:
    """The frames that a slot has made and rendered by its plan."""

    plan: Plan
    max_frames: int
    num_made: int = 0
    num_rendered: int = 0

    @property
    def num_left(self) -> int:
        most = self.max_frames if self.plan.never_ends else self.plan.num_frames
        return min(most, self.max_frames) - self.num_made

    @property
    def status(self) -> SlotStatus:
        if self.plan.fails_at is not None and self.num_made >= self.plan.fails_at:
            return "failed"
        if self.num_left:
            return "running"
        is_over = not self.plan.never_ends and self.num_made >= self.plan.num_frames
        return "stop" if is_over else "length"


@dataclass
class ScriptedSpeech(SynchronousBackend):
    """Speaks every prompt as a tone, by the plan of its seed."""

    name: str = "scripted"
    shares_work: bool = True
    max_prompt_rows: int = 2048
    renders_beside: bool = True
    max_streams: int = 256
    max_queue: int = 64
    live: LiveMode = "word"  # like a released checkpoint
    step_s: float = 0.0  # duration of a turn
    frame_s: float = 0.0  # additional duration per frame
    plans: dict[int, Plan] = field(default_factory=dict)  # by seed
    default: Plan = field(default_factory=Plan)
    active_slots: dict[Slot, SlotProgress] = field(default_factory=dict)
    num_admitted: int = 0
    num_steps: int = 0
    broken: Exception | None = None
    is_open: Event = field(default_factory=Event)  # while not set, turns wait
    pause_at: int | None = None  # after this many frames a speech waits for `is_over`
    pause_s: float = 30.0  # longest wait for `is_over`
    is_over: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        self.is_open.set()

    @property
    def num_made(self) -> int:
        """Frames of the longest speech so far."""
        return max((progress.num_made for progress in list(self.active_slots.values())), default=0)

    def load(self, spec: ModelSpec) -> TTS:
        """A loader for `serving.running`: the embedded voice's text with this backend."""
        with (
            patch("vivace.engine.checkpoints.loading.build_backend", lambda *_: self),
            weights_shared(),
        ):
            tts = TTS.load(device="cpu", max_streams=self.max_streams, max_queue=self.max_queue)
        config = tts.checkpoint.config
        reading = replace(config.reading_config, live=self.live)
        config = replace(config, reading_config=reading)
        tts.loaded.writer = PromptWriter(config, tts.tokenizer)
        return tts

    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        plan = self.plans.get(sampling.seed or 0, self.default)
        if plan.is_refused:
            raise ValueError("a prompt that cannot be read")
        self.num_admitted += 1
        self.active_slots[self.num_admitted] = SlotProgress(plan, sampling.max_frames)
        return self.num_admitted

    def extend(self, slot: Slot, text_ids: Sequence[int], is_last: bool) -> None: ...

    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        self.is_open.wait(120)
        if self.pause_at is not None and self.num_made >= self.pause_at:
            self.is_over.wait(self.pause_s)
        time.sleep(self.step_s + self.frame_s * num_frames)
        if self.broken is not None:
            raise self.broken
        self.num_steps += 1
        codes = np.zeros((len(slots), num_frames, NUM_CODEBOOKS), dtype=np.int64)
        lengths: list[int] = []
        status: list[SlotStatus] = []
        for row, slot in enumerate(slots):
            progress = self.active_slots[slot]
            count = min(num_frames, progress.num_left)
            codes[row, :count, 0] = (
                0 if progress.plan.never_ends else np.arange(count) + progress.num_made
            )
            progress.num_made += count
            lengths.append(count)
            status.append(progress.status)
        return Frames(codes % 2_048, tuple(lengths), tuple(status))

    def render(self, slots: Sequence[Slot], frames: Frames) -> list[Samples]:
        rendered = []
        for row, slot in enumerate(slots):
            progress, count = self.active_slots[slot], frames.lengths[row]
            rendered.append(tone(count, progress.num_rendered))
            progress.num_rendered += count
        return rendered

    def release(self, slot: Slot) -> None:
        del self.active_slots[slot]  # twice would be a KeyError

    def warmup(self) -> None: ...

    def memory(self) -> dict[str, int]:
        return {}

    def facts(self) -> dict[str, str]:
        return {}


def tone(num_frames: int, start: int = 0) -> Samples:
    """`num_frames` frames of a 440 Hz tone, beginning at frame `start`."""
    time_s = (np.arange(num_frames * SAMPLES_PER_FRAME) + start * SAMPLES_PER_FRAME) / 24_000
    return (0.5 * np.sin(2 * np.pi * 440 * time_s)).astype(np.float32)
