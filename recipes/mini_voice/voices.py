"""The voices of Kokoro: single ones from their files, and training voices and mixtures of them.

    python -m recipes.mini_voice.voices FOLDER build/kokoro/voices.npz

packs the style files NAME.bin of FOLDER (npm's `kokoro-js`, 28 MB) into one file of 1 MB. A style
depends smoothly on the number of phonemes, so 34 of its 510 rows are kept.

There are `NUM_VOICES` training voices: every packed voice that is not in `HELD_OUT`, then mixtures
of two or three of them. Mixtures alone lie between the packed voices, and an unseen voice does not,
so each mixture is moved along the difference of two voices. It also has another pitch. A line's
number selects its voice. The held-out voices are for tests: neither codec nor talker is trained on
them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

Number = TypeVar("Number", int, np.ndarray)
TRAINING_VOICES = "training_voices"  # a name in data.speakers
NUM_VOICES = 1024
HELD_OUT = (
    "af_bella", "af_sky", "bf_emma", "bf_isabella", "am_fenrir", "am_puck", "bm_george", "bm_lewis",
)  # fmt: skip
WIDTH = 256  # of a style: timbre, then prosody
NUM_LENGTHS = 510
PITCHES = 0.87, 1.15  # of mixtures
MOST_MOVED = 0.5  # of the difference of two voices
SPEEDS = 0.9, 1.15
SAME_SEX = 0.8  # share of mixtures whose parts have the same sex


@dataclass(frozen=True, eq=False)
class Voice:
    name: str
    styles: np.ndarray  # float32 [rows, WIDTH]
    lengths: np.ndarray  # number of phonemes of each row
    pitch: float = 1.0
    speed: float = 1.0

    @classmethod
    def from_file(cls, path: Path) -> Voice:
        styles = np.fromfile(path, np.float32).reshape(-1, WIDTH)
        return cls(path.stem, styles, np.arange(len(styles)))

    def style(self, num_phonemes: int) -> np.ndarray:
        """The style [1, WIDTH], interpolated between the known lengths."""
        length = min(num_phonemes, int(self.lengths[-1]))
        above = max(1, int(np.searchsorted(self.lengths, length)))
        low, high = self.lengths[above - 1], self.lengths[above]
        share = np.float32((length - low) / (high - low))
        style: np.ndarray = (1 - share) * self.styles[above - 1] + share * self.styles[above]
        return style[None].astype(np.float32)

    def repitch(self, wave: np.ndarray) -> np.ndarray:
        """Raise the pitch by resampling, which makes the speech shorter."""
        size = round(len(wave) / self.pitch)
        if size == len(wave):
            return wave
        spectrum = np.fft.rfft(wave)[: size // 2 + 1]
        changed: np.ndarray = np.fft.irfft(spectrum, size) * (size / len(wave))
        return changed.astype(np.float32)


class Voices:
    """The packed voices by name, and the training voices by number."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as data:
            self._lengths, styles = data["lengths"], data["styles"].astype(np.float32)
            self._styles = dict(zip(data["names"].tolist(), styles, strict=True))
        self.names = [name for name in self._styles if name not in HELD_OUT]

    def named(self, name: str) -> Voice:
        return Voice(name, self._styles[name], self._lengths)

    def __getitem__(self, line: int) -> Voice:
        """The training voice that reads this line."""
        number = voice_of(line)
        if number < len(self.names):
            return self.named(self.names[number])
        return self._mixture(number)

    def _mixture(self, number: int) -> Voice:
        rng = np.random.default_rng(number)
        first = rng.choice(self.names)
        same = [name for name in self.names if name[1] == first[1]]
        others = same if rng.random() < SAME_SEX else self.names
        names = [first, *rng.choice(others, 2, replace=False)][: rng.integers(2, 4)]
        parts = np.stack([self._styles[name] for name in names])
        one, other = (self._styles[name] for name in rng.choice(self.names, 2, replace=False))
        timbre, prosody = (
            np.tensordot(rng.dirichlet(np.ones(len(names))), parts[..., half], 1)
            for half in (slice(WIDTH // 2), slice(WIDTH // 2, WIDTH))
        )
        timbre = timbre + rng.uniform(0, MOST_MOVED) * (one - other)[:, : WIDTH // 2]
        styles = np.concatenate((timbre, prosody), axis=1).astype(np.float32)
        pitch, speed = (np.exp(rng.uniform(*np.log(span))) for span in (PITCHES, SPEEDS))
        return Voice(f"mixture_{number}", styles, self._lengths, float(pitch), float(speed))


def voice_of(line: Number) -> Number:
    """The number of the training voice that reads a line, or those of several lines."""
    return line % NUM_VOICES


def pack(folder: Path, out: Path) -> None:
    lengths = np.unique(np.geomspace(1, NUM_LENGTHS, 40).round().astype(int)) - 1
    voices = [Voice.from_file(path) for path in sorted(folder.glob("[a-z][fm]_*.bin"))]
    if not voices:
        raise SystemExit(f"{folder} has no style files such as af_bella.bin")
    styles = np.stack([voice.styles[lengths] for voice in voices]).astype(np.float16)
    out.parent.mkdir(parents=True, exist_ok=True)
    names = [voice.name for voice in voices]
    np.savez_compressed(out, names=names, lengths=lengths, styles=styles)
    print(f"{out}: {len(names)} voices, {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
