"""Notes of fine-tuned speakers: the licence of their recordings, and who agreed to their use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vivace.checkpoint_files import read_json
from vivace.errors import CheckpointError

FINETUNED = "finetuned.json"  # the metadata of the adapter that a checkpoint was merged with

SpeakerNotes = Mapping[str, Mapping[str, str]]  # `licence` and `consent`, if stated, by speaker


def make_notes(speakers: Any, licence: Any, consent: Any) -> SpeakerNotes:
    """The notes of every speaker of an adapter."""
    stated = {"licence": licence, "consent": consent}
    notes = {name: text for name, text in stated.items() if text and isinstance(text, str)}
    return dict.fromkeys(speakers, notes) if isinstance(speakers, Mapping) else {}


def read_notes(folder: Path) -> SpeakerNotes:
    """The notes of a merged checkpoint; none of other checkpoints."""
    path = folder / FINETUNED
    try:
        values = read_json(path) if path.is_file() else {}
    except CheckpointError:  # notes are no reason to refuse a checkpoint
        return {}
    return make_notes(values.get("speakers"), values.get("licence"), values.get("consent"))
