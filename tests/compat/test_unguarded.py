"""The compat classes run without completeness check and without retry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from vivace.compat import Qwen3TTSModel
from vivace.engine.streams.stream import Stream
from vivace.tts import TTS


@pytest.fixture
def markers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the word marker of every stream."""
    found: list[Any] = []
    real = Stream.__init__

    def record(self: Stream, *arguments: Any, **options: Any) -> None:
        found.append(options.get("marker"))
        real(self, *arguments, **options)

    monkeypatch.setattr(Stream, "__init__", record)
    return found


@pytest.mark.parametrize("limit", [{}, {"max_new_tokens": 5}])
def test_official_class_opens_streams_without_a_check(
    tiny_folder: Path, markers: list[Any], limit: dict[str, Any]
) -> None:
    folder = tiny_folder / "custom_voice"
    model = Qwen3TTSModel.from_pretrained(folder, device_map="cpu", dtype=torch.float32)
    model.generate_custom_voice(["One.", "Two."], ["ryan", "vivian"], **limit)
    assert len(markers) >= 2
    assert set(markers) == {None}


def test_tts_opens_streams_with_a_check_unless_the_guard_is_off(
    tiny_folder: Path, markers: list[Any]
) -> None:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as tts:
        tts.stream("One.").close()
        tts.stream("One.", guard=False).close()
    assert [marker is not None for marker in markers] == [True, False]
