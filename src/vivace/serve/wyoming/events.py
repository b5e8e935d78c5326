"""Reads the data of Wyoming events, and builds the `info` event."""

from __future__ import annotations

from typing import Any

from wyoming.event import Event
from wyoming.info import Attribution, Info, TtsProgram, TtsVoice

from vivace._version import __version__
from vivace.serve.context import ServeContext
from vivace.serve.errors import RefusedError
from vivace.serve.lists import find_voices
from vivace.serve.voices import ListedVoice
from vivace.speech import LANGUAGES, shown

PROGRAM = "vivace"
CODES = {name: code for code, name in LANGUAGES.items()}


def read_text(event: Event) -> str:
    text = event.data.get("text")
    if not isinstance(text, str):
        raise RefusedError(
            f"text of {event.type} must be a string, not {shown(text)}", param="text"
        )
    return text


def read_speech(event: Event) -> dict[str, Any]:
    """Voice and language as fields of a `SpeechRequest`."""
    text_format = event.data.get("text_format")
    if text_format not in (None, "text"):
        raise RefusedError(
            f"text_format {shown(text_format)} is not supported; send plain text",
            param="text_format",
        )
    voice = event.data.get("voice") or {}
    if not isinstance(voice, dict):
        raise RefusedError(f"voice must be an object, not {shown(voice)}", param="voice")
    name, speaker = voice.get("name"), voice.get("speaker")
    name = None if name == "" else name  # sent by Home Assistant if no voice is chosen
    if speaker not in (None, "", name):
        raise RefusedError(
            f"speaker {shown(speaker)} does not exist; voice {shown(name)} has one speaker only",
            param="speaker",
        )
    fields = {"voice": name, "language": voice.get("language"), "response_format": "pcm"}
    return {key: value for key, value in fields.items() if value is not None}


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
