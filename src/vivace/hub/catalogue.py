"""The models that can be used without a local folder: the embedded voice and the released ones."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

EMBEDDED = Path(__file__).parents[1] / "assets" / "mini"  # the embedded voice
PRESETS = "9 preset voices, 10 languages"
CODEC_AND_TEXT_BYTES = 682_293_092 + 4_462_000  # the codec's weights, vocabulary and configuration
MIN_SIMILARITY = 0.5  # of a suggested name


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model and what `vivace models` shows about it."""

    name: str  # a hub id, or the name of the embedded voice
    num_bytes: int  # of all files that are downloaded
    abilities: str
    licence: str = "Apache-2.0"


def _released(size: str, kind: str, weight_bytes: int, abilities: str) -> ModelEntry:
    name = f"Qwen/Qwen3-TTS-12Hz-{size}-{kind}"
    return ModelEntry(name, weight_bytes + CODEC_AND_TEXT_BYTES, abilities)


MODELS = (
    _released("0.6B", "Base", 1_829_344_272, "clones recordings, 10 languages"),
    _released("0.6B", "CustomVoice", 1_811_626_576, PRESETS),
    _released("1.7B", "Base", 3_857_413_744, "clones recordings, 10 languages"),
    _released("1.7B", "CustomVoice", 3_833_402_552, f"{PRESETS}, instructions"),
    _released("1.7B", "VoiceDesign", 3_833_402_552, "speaks with described voices, 10 languages"),
)
RELEASED = tuple(model.name for model in MODELS)


def suggest_name(name: str) -> str | None:
    """The known name that is most similar to an unknown name, or None."""
    known = {known.rpartition("/")[2].lower(): known for known in (*RELEASED, EMBEDDED.name)}
    wanted = name.rpartition("/")[2].lower()
    if ending := [full for short, full in known.items() if wanted and short.endswith(wanted)]:
        return ending[0]
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=MIN_SIMILARITY)
    return known[near[0]] if near else None
