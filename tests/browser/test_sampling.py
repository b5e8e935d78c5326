"""The page's noise equals the package's: the same seed draws the same codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.support.node import run_modules
from vivace.sampling import NoiseTable

# Random123's published vectors for philox4x32-10: counter, key, result.
VECTORS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
SEEDS = [0, 3, 2**31 - 1, 2**32 + 5, 2**53 - 1]
FRAMES = [0, 1, 700]
CANDIDATES = [[*range(8), 614, 617], list(range(512))]


def test_philox_of_the_page_matches_the_published_vectors(tmp_path: Path) -> None:
    script = """
    import { philox } from './sampling.js';
    const result = data.map(([counter, key]) => philox(counter, key));
    """
    found = run_modules(tmp_path, script, [[counter, key] for counter, key, _ in VECTORS])
    assert found == [words for _, _, words in VECTORS]


def test_noise_of_the_page_equals_the_noise_of_the_package(tmp_path: Path) -> None:
    script = """
    import { noiseOf } from './sampling.js';
    const result = data.seeds.map((seed) => data.frames.map((frame) =>
      data.candidates.map((ids, book) => Array.from(noiseOf(seed, frame, book, ids)))));
    """
    data = {"seeds": SEEDS, "frames": FRAMES, "candidates": CANDIDATES}
    found = run_modules(tmp_path, script, data)
    table = NoiseTable([620, 512], torch.device("cpu"))
    for seed, by_frame in zip(SEEDS, found, strict=True):
        for frame, by_book in zip(FRAMES, by_frame, strict=True):
            noise = table.frames(torch.tensor([seed]), torch.tensor([frame]), 1)
            for ids, book, own in zip(CANDIDATES, noise, by_book, strict=True):
                expected = book[0, 0, ids].numpy()
                np.testing.assert_allclose(own, expected, rtol=2e-6, atol=2e-7)
