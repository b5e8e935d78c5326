"""Write tests/golden/embedded_seeds.json: the codes that the embedded voice draws for a seed.

    python scripts/make_embedded_golden.py

Run it after a change of the weights in src/vivace/assets/mini, together with
`scripts/official/make_golden.py --only embedded`. A draw between two almost equal scores may differ
on another machine, so each entry uses the first seed whose draws all have a clear winner.
"""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from vivace import TTS, Audio
from vivace.backends import frame_maker
from vivace.sampling import draw

OUTPUT = Path(__file__).parents[1] / "tests" / "golden" / "embedded_seeds.json"
TEXTS = ("Good morning.", "The tall ship sailed at noon.", "Are there 12 eggs left?")
CLEAR_LEAD = 3e-3


class LeadWatch:
    """Replaces `draw` and records the smallest margin between the best and the second score."""

    def __init__(self) -> None:
        self.narrowest = float("inf")

    def __call__(self, scores: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        best, second = (scores + noise).topk(2, dim=-1).values.unbind(-1)
        self.narrowest = min(self.narrowest, float((best - second).min()))
        return draw(scores, noise)


def main() -> None:
    torch.set_num_threads(1)
    tts = TTS.load(device="cpu")
    entries = []
    for text in TEXTS:
        seed, audio = find_clear_seed(tts, text)
        print(f"{text} seed {seed}: {len(audio.codes)} frames")
        entries.append({"text": text, "seed": seed, "codes": audio.codes.tolist()})
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    OUTPUT.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def find_clear_seed(tts: TTS, text: str) -> tuple[int, Audio]:
    for seed in range(100):
        watch = LeadWatch()
        with patch.object(frame_maker, "draw", watch):
            audio = tts.speak(text, seed=seed, normalize=False)
        if watch.narrowest >= CLEAR_LEAD and audio.finish_reason == "stop":
            return seed, audio
    raise SystemExit(f"no seed below 100 draws {text!r} clearly; change the text")


if __name__ == "__main__":
    main()
