"""Speaker vectors equal the official ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.project import ROOT, load_script
from tests.support.tiny import Tiny
from vivace.audio.files import read_audio
from vivace.voices.enroll import speaker_vector

GOLDEN = Path(__file__).parent.parent / "golden" / "speaker.safetensors"
SECONDS = {"long": 3.3, "short": 0.61, "beyond_window": 13.0}


@pytest.mark.parametrize("name", list(SECONDS))
@pytest.mark.parametrize("model", ["base", "base_projected"])
def test_speaker_vector_equals_official_one(
    tiny: Callable[[str], Tiny], model: str, name: str
) -> None:
    waves = load_script(ROOT / "scripts" / "official" / "waves.py")
    recording = read_audio((waves.synthetic_wave(SECONDS[name]), 24_000))
    vector = torch.from_numpy(speaker_vector(tiny(model).model, recording))
    expected = load_file(GOLDEN)[f"{model}.{name}.float32"]
    assert torch.allclose(vector, expected, rtol=0, atol=1e-5)
