"""Speaks single utterances with and without the completeness check, and damages speech on purpose.

The texts are given to the voice as they are: nothing is cleaned, normalized or split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray

from vivace import TTS
from vivace.backends.base import Frames, Slot
from vivace.backends.host import HostBackend
from vivace.engine.utterances.completeness import IdMarker, SpokenWords
from vivace.engine.utterances.follower import Fault, TextFollower
from vivace.engine.utterances.frame_block import FrameBlock, join_blocks
from vivace.engine.utterances.reader import UtteranceReader
from vivace.engine.utterances.utterance import Utterance
from vivace.options import SpeechOptions
from vivace.prompt import Prompt
from vivace.script.request import Request
from vivace.timing.attention import TextAttention

Codes = NDArray[np.int64]
Places = list[tuple[int, float]]
NUM_SILENT_FRAMES = 63  # 5 s


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """One utterance."""

    codes: Codes  # [frames, codebooks]
    samples: NDArray[np.float32]
    places: Places  # of every frame that was made, also of dropped ones
    finish_reason: str
    num_retries: int
    missing: tuple[str, ...]
    completeness: float | None


class GuardedVoice:
    """Speaks with one loaded checkpoint. `end_at` makes the backend end the first attempt early."""

    def __init__(self, tts: TTS) -> None:
        self.tts = tts
        self.marker = IdMarker(tts.tokenizer)
        backend = tts.engine.backend
        assert isinstance(backend, HostBackend)
        self._backend, self._step = backend, backend.step
        backend.step = self._observed_step  # type: ignore[method-assign]
        self._places: Places = []
        self._end_at: int | None = None
        self._num_made = 0

    def prompt(self, text: str) -> Prompt:
        voice = self.tts.loaded.writer.default_voice
        request = Request(text=text, voice=voice, options=SpeechOptions())
        prompt, _ = self.tts.loaded.writer.write(request, text, self.tts.tokenizer.encode(text))
        return prompt

    def follower(self, text: str) -> TextFollower:
        return TextFollower(self.marker.mark(self.tts.tokenizer.encode(text)))

    def speak(self, text: str, seed: int, *, is_checked: bool, end_at: int | None = None) -> Spoken:
        self._places, self._end_at, self._num_made = [], end_at, 0
        wakeups: SimpleQueue[None] = SimpleQueue()
        ids = self.tts.tokenizer.encode(text)
        utterance = Utterance(
            prompt=self.prompt(text),
            sampling=self.tts.sampling.replace(seed=seed),
            wake=lambda: wakeups.put(None),
            num_text_ids=len(ids),
            follower=self.follower(text) if is_checked else None,
            mark_ids=self.marker.mark,
        )
        reader = UtteranceReader(self.tts.engine, utterance)
        blocks: list[FrameBlock] = []
        reader.submit()
        while not blocks or blocks[-1].finish_reason is None:
            reader.request(10_000)
            while not reader.is_ready:
                wakeups.get()
            blocks.append(reader.take(10_000))
        whole, words = join_blocks(blocks), SpokenWords(self.tts.tokenizer)
        words.add(text, utterance.follower)
        return Spoken(
            whole.codes,
            whole.samples,
            self._places,
            whole.finish_reason or "",
            utterance.num_retries,
            words.missing,
            words.completeness,
        )

    def _observed_step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        frames = self._step(slots, num_frames)
        self._num_made += frames.lengths[0]
        if self._end_at is not None and self._num_made >= self._end_at:
            length = frames.lengths[0] - (self._num_made - self._end_at)
            self._end_at = None
            places = (frames.places_of(0)[:length],)
            frames = Frames(frames.codes[:, :length], (length,), ("stop",), places)
        self._places += frames.places_of(0)
        return frames

    def read_places(self, text: str, codes: Codes) -> Places:
        """The attention positions of the followed head while the talker reads the given frames."""
        model, head = self.tts.loaded.runtime.model, self._backend.watched
        assert head is not None
        prompt = self.prompt(text)
        weights = TextAttention(model, prompt, [head]).read(codes, prompt.num_own_ids)[0]
        return [(int(row.argmax()), float(row.sum())) for row in weights]

    def render(self, codes: Codes) -> NDArray[np.float32]:
        with torch.inference_mode():
            samples = self.tts.codec.decode(torch.from_numpy(codes))
        found: NDArray[np.float32] = samples.flatten().numpy()
        return found


def find_faults(follower: TextFollower, places: Places) -> list[Fault]:
    """All faults of a finished utterance. Each one is accepted, so that the next can be found."""
    rest, faults = iter(places), list[Fault]()
    while (fault := follower.observe(rest)) is not None:
        faults.append(fault)
        follower.accept(fault)
        if fault.kind == "tail":
            return faults
    if (fault := follower.end()) is not None:
        faults.append(fault)
    return faults


def arrivals(places: Places, num_ids: int, min_share: float) -> list[int]:
    """For each text id, the first frame that attends to it or to a later id."""
    found: list[int] = []
    for frame, (place, share) in enumerate(places):
        if share >= min_share:
            found += [frame] * max(0, place + 1 - len(found))
    return found[:num_ids]


def damage(codes: Codes, first: int, end: int, silent: Codes, other: Codes) -> dict[str, Codes]:
    """Controls: speech whose middle part, frames `first` to `end`, is one sentence of three."""
    before, part, after = codes[:first], codes[first:end], codes[end:]
    stall = np.resize(silent, (NUM_SILENT_FRAMES, codes.shape[1]))
    return {
        "removed sentence": np.concatenate([before, after]),
        "repeated sentence": np.concatenate([before, part, part, after]),
        "early end": codes[:end],
        "stall": np.concatenate([before, stall, part, after]),
        "invented tail": np.concatenate([codes, other]),
    }
