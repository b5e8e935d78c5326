"""From a prompt to an utterance: the shortest road through a backend."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import Backend, Samples
from vivace.errors import NumericError
from vivace.prompt import Prompt
from vivace.speech import FinishReason, SamplingParams

FRAMES_PER_STEP = 16


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    samples: Samples
    codes: NDArray[np.int64]  # [frames, codebooks]
    finish_reason: FinishReason


def generate(backend: Backend, prompt: Prompt, sampling: SamplingParams) -> Utterance:
    """Speak one complete prompt; the slot is free again whatever happens."""
    slot = backend.admit(prompt, sampling)
    codes, samples = [], []
    try:
        while True:
            frames = backend.step([slot], FRAMES_PER_STEP)
            codes.append(frames.of(0))
            samples += backend.render([slot], frames)
            status = frames.status[0]
            if status in ("stop", "length"):
                return Utterance(np.concatenate(samples), np.concatenate(codes), status)
            if status != "running":
                raise NumericError(
                    f"the model's numbers stopped being finite at frame {sum(map(len, codes))}; "
                    "try float32, and check the weights"
                )
    finally:
        backend.release(slot)
