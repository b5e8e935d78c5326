"""The events of Wyoming clients, and the `info` event."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator
from wyoming.event import Event
from wyoming.info import Attribution, Info, TtsProgram, TtsVoice

from vivace._version import __version__
from vivace.serve.context import ServeContext
from vivace.serve.input.validation import ClientInput
from vivace.serve.models.voices import ListedVoice
from vivace.serve.routes.lists import find_voices
from vivace.speech import LANGUAGES, shown

PROGRAM = "vivace"
CODES = {name: code for code, name in LANGUAGES.items()}


class EventVoice(ClientInput):
    name: str | None = None  # empty if no voice is chosen in Home Assistant
    language: str | None = None
    speaker: str | None = None

    @model_validator(mode="after")
    def _check_speaker(self) -> EventVoice:
        if self.speaker and self.speaker != self.name:
            raise ValueError(
                f"speaker {shown(self.speaker)} does not exist; voice {shown(self.name)} has one "
                "speaker only"
            )
        return self


class SpeechEvent(ClientInput):
    text_format: Literal["text"] = "text"
    voice: EventVoice = EventVoice()

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of a `SpeechRequest` except its text."""
        voice = self.voice
        return {"voice": voice.name or None, "language": voice.language, "response_format": "pcm"}


class Synthesize(SpeechEvent):
    type: Literal["synthesize"]
    text: str


class SynthesizeStart(SpeechEvent):
    type: Literal["synthesize-start"]


class SynthesizeChunk(ClientInput):
    type: Literal["synthesize-chunk"]
    text: str


class SynthesizeStop(ClientInput):
    type: Literal["synthesize-stop"]


class Describe(ClientInput):
    type: Literal["describe"]


class Ping(ClientInput):
    type: Literal["ping"]
    text: str | None = None


ClientEvent = Synthesize | SynthesizeStart | SynthesizeChunk | SynthesizeStop | Describe | Ping
CLIENT_EVENTS: TypeAdapter[ClientEvent] = TypeAdapter(
    Annotated[ClientEvent, Field(discriminator="type")]
)


def describe_server(context: ServeContext) -> Event:
    """One program with the voices of all models. Reads the library: call it in a thread."""
    listed = find_voices(context) or find_voices(context, with_aliases=True)
    languages = {card.name: _codes(card.languages) for card in context.models.cards()}
    has_several = len(languages) > 1
    program = TtsProgram(
        name=PROGRAM,
        attribution=Attribution("Vivace", ""),
        installed=True,
        description="Vivace: Qwen3-TTS as a stream",
        version=__version__,
        voices=[_voice(each, languages[each.model], has_several) for each in listed],
        supports_synthesize_streaming=True,
    )
    event: Event = Info(tts=[program]).event()
    return event


def _voice(listed: ListedVoice, languages: list[str], has_several: bool) -> TtsVoice:
    """Home Assistant displays the description."""
    return TtsVoice(
        name=listed.id,
        attribution=Attribution(listed.model, ""),
        installed=True,
        description=f"{listed.id} ({listed.model})" if has_several else listed.id,
        version=None,
        languages=languages,
    )


def _codes(languages: tuple[str, ...]) -> list[str]:
    """Language codes; all of them for a model that names no language."""
    return [CODES[name] for name in languages if name in CODES] or sorted(LANGUAGES)
