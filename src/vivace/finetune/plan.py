"""The order of training: which examples form a batch, in which layout, and the learning rate.

Everything follows from the seed, the epoch and the recording. A resumed run continues with the same
batches.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vivace.finetune.examples import ExampleWriter
from vivace.finetune.options import TrainOptions
from vivace.finetune.prepare import Clip
from vivace.speech import AUTO_LANGUAGE
from vivace.teacher_forcing import Example

BATCHES_PER_SORT = 16  # batches among which examples are sorted by length, to pad less
FINAL_RATE = 0.1  # of the highest learning rate, at the end

Batch = list[int]  # indices of recordings
Step = list[Batch]


@dataclass(frozen=True, slots=True, eq=False)
class TrainingPlan:
    clips: Sequence[Clip]
    lengths: Sequence[int]  # rows of each example
    writer: ExampleWriter
    options: TrainOptions

    @classmethod
    def make(
        cls, clips: Sequence[Clip], writer: ExampleWriter, options: TrainOptions
    ) -> TrainingPlan:
        lengths = [len(writer.prompt(clip.transcript, "whole")) + len(clip.codes) for clip in clips]
        return cls(clips, lengths, writer, options)

    def steps(self, epoch: int) -> list[Step]:
        """The steps of an epoch, shuffled."""
        rng = np.random.default_rng([self.options.seed, epoch])
        order = rng.permutation(len(self.clips)).tolist()
        batches = self._batches(order)
        rng.shuffle(batches)
        steps: list[Step] = [[]]
        num_rows = 0
        for batch in batches:
            rows = self._num_rows(batch)
            if steps[-1] and num_rows + rows > self.options.rows_per_step:
                steps.append([])
                num_rows = 0
            steps[-1].append(batch)
            num_rows += rows
        return steps

    def example(self, epoch: int, index: int) -> Example:
        """A recording in the layout and with the language of this epoch."""
        clip = self.clips[index]
        key = f"{self.options.seed} {epoch} {clip.sha256} {clip.transcript}"
        draws = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        is_streamed = draws[0] < 256 * self.options.streamed
        is_open = draws[1] < 256 * self.options.any_language
        return self.writer.write(
            clip.transcript,
            clip.codes,
            layout="streamed" if is_streamed else "whole",
            language=AUTO_LANGUAGE if is_open else None,
        )

    def _batches(self, order: Sequence[int]) -> list[Batch]:
        """Batches of similar lengths."""
        most = self.options.rows_per_batch
        mean = sum(self.lengths) / len(self.lengths)
        window = max(1, round(BATCHES_PER_SORT * most / mean))
        batches: list[Batch] = []
        for start in range(0, len(order), window):
            part = sorted(order[start : start + window], key=lambda one: self.lengths[one])
            batch: Batch = []
            for index in part:
                if batch and self.lengths[index] * (len(batch) + 1) > most:
                    batches.append(batch)
                    batch = []
                batch.append(index)
            batches.append(batch)
        return batches

    def _num_rows(self, batch: Batch) -> int:
        return sum(self.lengths[index] for index in batch)


def judged_examples(clips: Sequence[Clip], writer: ExampleWriter) -> list[Example]:
    """Held-out recordings as the engine speaks them by default."""
    return [writer.write(clip.transcript, clip.codes) for clip in clips]


def learning_rate(options: TrainOptions, progress: float) -> float:
    """The rate after this share of all steps: it rises, then falls along a cosine."""
    if progress < options.warmup:
        return options.learning_rate * max(progress / options.warmup, 0.01)
    done = (progress - options.warmup) / (1 - options.warmup)
    share = FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return options.learning_rate * share
