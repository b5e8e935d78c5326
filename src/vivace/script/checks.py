"""Rejects requests that the loaded checkpoint does not support.

Errors name a checkpoint that supports the request.
"""

from __future__ import annotations

from vivace.arguments import check_choice, check_flag
from vivace.errors import (
    RequestError,
    TextTooLongError,
    UnknownLanguageError,
    UnsupportedRequestError,
    UnsupportedTextError,
)
from vivace.model.config import ModelConfig
from vivace.options import SpeechOptions
from vivace.prompt import language_id, preset_id
from vivace.script.request import Request
from vivace.script.text_settings import TextSettings
from vivace.speech import AUTO_LANGUAGE, LIVE_MODES, MAX_INSTRUCT_CHARS, ON_UNSUPPORTED
from vivace.text.letters import Letters
from vivace.text.normalize import LANGUAGES
from vivace.text.pipeline import MAX_TEXT_CHARS
from vivace.text.scripts import LANGUAGE_SCRIPTS
from vivace.voices.voice import Voice

TEXT_LAYOUTS = ("whole", "streamed")

SERVED_BY = {
    "base": "Qwen/Qwen3-TTS-12Hz-0.6B-Base",
    "custom_voice": "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
    "instruct": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "voice_design": "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
}
RELEASED_LANGUAGES = frozenset(LANGUAGE_SCRIPTS)
BASE_OF_WIDTH = {2048: "Qwen/Qwen3-TTS-12Hz-1.7B-Base"}  # for cloned voices of this width


class RequestChecker:
    """Checks requests against one checkpoint."""

    def __init__(self, config: ModelConfig, texts: TextSettings) -> None:
        self._config, self._texts = config, texts
        self.letters = Letters.of(config.talker_config.codec_language_id)

    def check(self, request: Request) -> None:
        """Raise a RequestError if the checkpoint does not support the request."""
        options = request.options
        if isinstance(request.text, str):
            if not (request.lexicons or request.verbatim):  # an entry may respell any sign
                options.check_speakable(request.text)
            if len(request.text) > MAX_TEXT_CHARS:
                raise TextTooLongError(len(request.text), MAX_TEXT_CHARS, "characters")
        elif options.text_layout == "whole" and not self._texts.is_by_sentence(request):
            raise RequestError(
                "live text cannot be laid out whole word by word; leave text_layout out, or give "
                "live='sentence'"
            )
        check_choice("live", options.live, LIVE_MODES, may_be_none=True)
        check_choice("on_unsupported", options.on_unsupported, ON_UNSUPPORTED)
        check_choice("text_layout", options.text_layout, TEXT_LAYOUTS, may_be_none=True)
        if not isinstance(options.language, str):
            kind = type(options.language).__name__
            raise RequestError(f"language must be a string, not {kind}")
        self._check_instruct(options.instruct)
        preset, _ = self.settle_voice(request.voice)
        self._check_language(options.language, preset)
        self._check_normalize(options)
        if preset is not None:
            preset_id(self._config.talker_config, preset)

    def settle_voice(self, voice: str | Voice | None) -> tuple[str | None, Voice | None]:
        """The preset name or the cloned voice, if the checkpoint type supports it."""
        if isinstance(voice, Voice):
            served_by = BASE_OF_WIDTH.get(voice.width, SERVED_BY["base"])
            self.require_cloning(f"speak with the cloned voice {voice.name!r}", served_by)
            self._check_voice(voice)
            return None, voice
        if isinstance(voice, str):
            self.require_presets(f"speak with the preset voice {voice!r}")
            return voice, None
        if voice is not None:
            kind = type(voice).__name__
            raise RequestError(f"voice must be a preset's name or a Voice, not {kind}")
        if self._config.tts_model_type == "base":
            raise RequestError(
                "a base checkpoint speaks with a cloned voice: voice=tts.clone('me.wav')"
            )
        return None, None  # instruct describes the voice, or the model chooses one

    def _check_voice(self, voice: Voice) -> None:
        config = self._config.talker_config
        voice.check_width(config.hidden_size)
        voice.check_codes(config.num_code_groups, config.code_predictor_config.vocab_size)

    def _check_language(self, language: str, preset: str | None) -> None:
        try:
            language_id(self._config.talker_config, language, preset)
        except UnknownLanguageError:
            if language.lower() not in RELEASED_LANGUAGES:
                raise
            known = [AUTO_LANGUAGE, *sorted(self._config.talker_config.codec_language_id)]
            raise UnknownLanguageError(language, known, SERVED_BY["custom_voice"]) from None

    def letter_error(self, letter: str) -> RequestError:
        """The error for a letter of a language that the checkpoint does not speak."""
        languages = sorted(self._config.talker_config.codec_language_id)
        message = (
            f"the text has the letter {letter!r} and this checkpoint speaks only "
            f"{', '.join(languages)}"
        )
        if Letters.of(RELEASED_LANGUAGES).find_foreign(letter) is not None:
            message += "; no released checkpoint reads it"
        elif not RELEASED_LANGUAGES.issubset(languages):
            message += f"; load {SERVED_BY['custom_voice']}"
        return UnsupportedTextError(message)

    def check_follows(self, instruct: str | None) -> str | None:
        """Return the instruction; raise if the checkpoint does not follow instructions."""
        if instruct and not self._config.honours_instruct:
            raise UnsupportedRequestError(
                f"this {self._config.tts_model_type} checkpoint was not trained to follow "
                f"instruct; load {SERVED_BY['instruct']}"
            )
        return instruct

    def _check_instruct(self, instruct: object) -> None:
        if instruct is None:
            return
        if not isinstance(instruct, str):
            raise RequestError(f"instruct must be a string, not {type(instruct).__name__}")
        if len(instruct) > MAX_INSTRUCT_CHARS:
            raise RequestError(
                f"instruct has {len(instruct):,} characters and the limit is "
                f"{MAX_INSTRUCT_CHARS:,}; shorten it"
            )

    def _check_normalize(self, options: SpeechOptions) -> None:
        if options.normalize is not None:
            check_flag("normalize", options.normalize)
        if options.normalize and not self._texts.has_rules(options.language):
            raise RequestError(
                f"normalize has no rules for the language {options.language!r}; "
                f"available: {', '.join(LANGUAGES)}; set language, or leave normalize out"
            )

    def require_cloning(self, what: str, served_by: str = SERVED_BY["base"]) -> None:
        """Raise UnsupportedRequestError if the checkpoint has no speaker vectors."""
        if not self._config.can_clone:
            raise self._unable(what, served_by)

    def require_presets(self, what: str, served_by: str = SERVED_BY["custom_voice"]) -> None:
        if not self._config.has_presets:
            raise self._unable(what, served_by)

    def _unable(self, what: str, served_by: str) -> UnsupportedRequestError:
        kind = self._config.tts_model_type
        return UnsupportedRequestError(f"a {kind} checkpoint cannot {what}; load {served_by}")
