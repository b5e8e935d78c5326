"""What a served model is and can do; kept while the model itself gives its memory back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vivace.tts import TTS


@dataclass(frozen=True, slots=True)
class Card:
    name: str
    model_type: str  # custom_voice, base or voice_design
    speakers: tuple[str, ...]  # presets; the first is the default
    languages: tuple[str, ...]
    sample_rate: int
    width: int  # of the speaker vectors it takes
    follows_instruct: bool
    device: str
    backend: str

    @classmethod
    def of(cls, name: str, tts: TTS) -> Card:
        config = tts.checkpoint.config
        return cls(
            name=name,
            model_type=tts.model_type,
            speakers=tuple(config.talker_config.spk_id) if tts.model_type != "base" else (),
            languages=tuple(tts.languages),
            sample_rate=tts.sample_rate,
            width=config.talker_config.hidden_size,
            follows_instruct=config.honours_instruct,
            device=str(tts.device),
            backend=tts.engine.backend.name,
        )

    @property
    def can_clone(self) -> bool:
        return self.model_type == "base"

    @property
    def can_design(self) -> bool:
        return self.model_type == "voice_design"

    def as_json(self) -> dict[str, Any]:
        """Under `vivace` in an object of `GET /v1/models`; the page reads it."""
        return {
            "model_type": self.model_type,
            "languages": list(self.languages),
            "sample_rate": self.sample_rate,
            "can_clone": self.can_clone,
            "can_design": self.can_design,
            "follows_instruct": self.follows_instruct,
            "device": self.device,
            "backend": self.backend,
        }
