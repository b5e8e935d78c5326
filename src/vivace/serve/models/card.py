"""Properties and capabilities of a served model, known even while the model is unloaded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from vivace.serve.errors import RefusedError
from vivace.speaker_notes import SpeakerNotes
from vivace.tts import TTS


def _speakers(tts: TTS) -> tuple[str, ...]:
    speakers = tts.checkpoint.config.talker_config.spk_id
    return tuple(speakers) if tts.model_type != "base" else ()


@dataclass(frozen=True, slots=True)
class Card:
    name: str
    model_type: str  # custom_voice, base or voice_design
    speakers: tuple[str, ...]  # presets; the first is the default
    languages: tuple[str, ...]
    sample_rate: int
    width: int  # of its speaker vectors
    follows_instruct: bool
    device: str
    backend: str
    adapter: str | None = None  # a voice of this name is the default voice
    can_clone: bool = False
    can_clone_in_context: bool = False  # with the transcript of the recording
    notes: SpeakerNotes = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, tts: TTS) -> Card:
        config = tts.checkpoint.config
        return cls(
            name=name,
            model_type=tts.model_type,
            speakers=_speakers(tts),
            languages=tuple(tts.languages),
            sample_rate=tts.sample_rate,
            width=config.talker_config.hidden_size,
            follows_instruct=config.honours_instruct,
            can_clone=config.can_clone,
            can_clone_in_context=tts.checkpoint.can_clone_in_context,
            device=str(tts.device),
            backend=tts.engine.backend.name,
            notes=tts.checkpoint.speaker_notes,
        )

    def with_adapter(self, name: str, tts: TTS) -> Card:
        """The card of an adapter that is loaded beside this model."""
        config = tts.checkpoint.config
        return replace(
            self,
            name=name,
            adapter=name,
            model_type=tts.model_type,
            speakers=_speakers(tts),
            follows_instruct=config.honours_instruct,
            can_clone=config.can_clone,
            can_clone_in_context=tts.checkpoint.can_clone_in_context,
            notes=tts.checkpoint.speaker_notes,
        )

    @property
    def can_design(self) -> bool:
        return self.model_type == "voice_design"

    def serves_task(self, model_type: str) -> bool:
        """Whether requests for a type of model can use this one. `base`: they clone."""
        return self.model_type == model_type or (model_type == "base" and self.can_clone)

    def check_context(self, param: str) -> None:
        """Raise RefusedError that names the field `param` if the model cannot clone in context."""
        if self.can_clone and not self.can_clone_in_context:
            raise RefusedError(
                f"{param}: {self.refusals['clone_in_context']}", code="unsupported", param=param
            )

    @property
    def refusals(self) -> dict[str, str | None]:
        """By capability: None, or the reason why the model lacks it."""
        clone = f"a {self.model_type} model does not clone; serve a Base model"
        design = f"a {self.model_type} model does not design voices; serve a VoiceDesign model"
        no_context = "this model clones without a transcript; leave the transcript out"
        context = no_context if self.can_clone else clone
        instruct = "this model was not trained to follow instructions"
        return {
            "instruct": None if self.follows_instruct else instruct,
            "clone": None if self.can_clone else clone,
            "clone_in_context": None if self.can_clone_in_context else context,
            "design": None if self.can_design else design,
        }

    def as_json(self) -> dict[str, Any]:
        """Fields of a model in `GET /v1/models` and `/v1/audio/models`. The page reads them."""
        return {
            "type": self.model_type,
            "languages": list(self.languages),
            "default_voice": self.speakers[0] if self.speakers else None,
            "sample_rate": self.sample_rate,
            "capabilities": self.refusals,
            "device": self.device,
            "backend": self.backend,
        }
