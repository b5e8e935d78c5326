"""Notes of fine-tuned speakers, also in files of other tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vivace.speaker_notes import FINETUNED, read_notes

ME: dict[str, Any] = {"speakers": {"me": 0}}


@pytest.mark.parametrize(
    ("values", "notes"),
    [
        (
            ME | {"licence": "CC0", "consent": "agreed"},
            {"me": {"licence": "CC0", "consent": "agreed"}},
        ),
        (ME | {"licence": "", "consent": None}, {"me": {}}),
        (ME | {"licence": 3, "consent": ["yes"]}, {"me": {}}),
        ({"speakers": ["me"], "licence": "CC0"}, {}),
        ({"speakers": 3}, {}),
        ([], {}),
    ],
)
def test_notes_are_the_texts_of_each_speaker(values: object, notes: object, tmp_path: Path) -> None:
    (tmp_path / FINETUNED).write_text(json.dumps(values), encoding="utf-8")
    assert read_notes(tmp_path) == notes


def test_checkpoint_without_the_file_has_no_notes(tmp_path: Path) -> None:
    assert read_notes(tmp_path) == {}
