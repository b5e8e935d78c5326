"""What Wyoming's events say, checked; and what the server is, as an `info` event."""

from __future__ import annotations

from typing import Any

from wyoming.event import Event
from wyoming.info import Attribution, Info, TtsProgram, TtsVoice

from vivace._version import __version__
from vivace.serve.context import ServeContext
from vivace.serve.errors import RefusedError
from vivace.serve.lists import find_voices
from vivace.serve.voices import Listed
from vivace.speech import LANGUAGES, shown

PROGRAM = "vivace"
CODES = {name: code for code, name in LANGUAGES.items()}


def read_text(event: Event) -> str:
    text = event.data.get("text")
    if not isinstance(text, str):
        raise RefusedError(f"the text of {event.type} is a string, not {shown(text)}", param="text")
    return text


def read_speech(event: Event) -> dict[str, Any]:
    """The fields of a speech request: which voice speaks, in which language."""
    text_format = event.data.get("text_format")
    if text_format not in (None, "text"):
        raise RefusedError(
            f"text_format {shown(text_format)} is not read; send plain text", param="text_format"
        )
    voice = event.data.get("voice") or {}
    if not isinstance(voice, dict):
        raise RefusedError(f"voice is an object, not {shown(voice)}", param="voice")
    name, speaker = voice.get("name"), voice.get("speaker")
    name = None if name == "" else name  # Home Assistant without a chosen voice
    if speaker not in (None, "", name):
        raise RefusedError(
            f"voice {shown(name)} has no speaker {shown(speaker)}; every voice is one speaker",
            param="speaker",
        )
    fields = {"voice": name, "language": voice.get("language"), "response_format": "pcm"}
    return {key: value for key, value in fields.items() if value is not None}


def describe_server(context: ServeContext) -> Event:
    """One program with the voices of all models; reads the library, so call it in a thread."""
    listed = find_voices(context) or find_voices(context, with_aliases=True)
    languages = {card.name: _codes(card.languages) for card in context.models.cards()}
    has_several = len(languages) > 1
    program = TtsProgram(
        name=PROGRAM,
        attribution=Attribution("Vivace", ""),
        installed=True,
        description="Vivace: Qwen3-TTS, spoken while it is made",
        version=__version__,
        voices=[_voice(each, languages[each.model], has_several) for each in listed],
        supports_synthesize_streaming=True,
    )
    event: Event = Info(tts=[program]).event()
    return event


def _voice(listed: Listed, languages: list[str], has_several: bool) -> TtsVoice:
    """Home Assistant shows a voice by its description."""
    return TtsVoice(
        name=listed.id,
        attribution=Attribution(listed.model, ""),
        installed=True,
        description=f"{listed.id} ({listed.model})" if has_several else listed.id,
        version=None,
        languages=languages,
    )


def _codes(languages: tuple[str, ...]) -> list[str]:
    """Codes of what a model speaks; one that names no language is taken to speak all."""
    return [CODES[name] for name in languages if name in CODES] or sorted(LANGUAGES)
