"""Checks requests against the loaded checkpoint and builds their prompts.

Errors name a checkpoint that supports the request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivace.errors import (
    RequestError,
    TextTooLongError,
    UnknownLanguageError,
    UnsupportedRequestError,
    UnsupportedTextError,
)
from vivace.model.config import ModelConfig
from vivace.options import SpeechOptions
from vivace.prompt import (
    Prompt,
    SpokenReference,
    build_prompt,
    language_id,
    preset_id,
)
from vivace.script.request import Request
from vivace.speech import AUTO_LANGUAGE, LIVE_MODES, ON_UNSUPPORTED, TextLayout
from vivace.text.letters import Letters
from vivace.text.normalize import LANGUAGES
from vivace.text.options import TEXT_OPTIONS, Packing, ScriptOptions
from vivace.text.pipeline import MAX_TEXT_CHARS
from vivace.text.plain import PlainRules
from vivace.text.scripts import LANGUAGE_SCRIPTS
from vivace.text.tokenizer import TextTokenizer
from vivace.voices.reference_leak import shares_words
from vivace.voices.voice import Voice

MAX_INSTRUCT_CHARS = 4096
TEXT_LAYOUTS = ("whole", "streamed")

SERVED_BY = {
    "base": "Qwen/Qwen3-TTS-12Hz-0.6B-Base",
    "custom_voice": "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
    "instruct": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "voice_design": "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
}
RELEASED_LANGUAGES = frozenset(LANGUAGE_SCRIPTS)
BASE_OF_WIDTH = {2048: "Qwen/Qwen3-TTS-12Hz-1.7B-Base"}  # for cloned voices of this width


@dataclass(frozen=True, slots=True, eq=False)
class PromptAdapter:
    """What prompts contain of an adapter that is chosen per request."""

    number: int  # from 1 on
    vectors: Mapping[str, NDArray[np.float32]]  # of its speakers


@dataclass(frozen=True, slots=True)
class Spoken:
    """A completed utterance, from which the next utterance continues."""

    text: str
    reference: SpokenReference


class PromptWriter:
    """Builds the prompts of one checkpoint, or of one adapter that is loaded beside it."""

    def __init__(
        self,
        config: ModelConfig,  # with the adapter's speakers
        tokenizer: TextTokenizer,
        adapter: PromptAdapter | None = None,
    ) -> None:
        self._config, self._number = config, 0 if adapter is None else adapter.number
        vectors = {} if adapter is None else adapter.vectors
        self._vectors = {name.lower(): vector for name, vector in vectors.items()}
        self.tokenizer = tokenizer
        self.letters = Letters.of(config.talker_config.codec_language_id)
        # Options of requests without a lexicon, by everything that decides them. A request is
        # checked before, so that the number of entries is limited.
        self._script_options: dict[tuple[object, ...], ScriptOptions] = {}

    def check(self, request: Request) -> None:
        """Raise a RequestError if the checkpoint does not support the request."""
        options = request.options
        if isinstance(request.text, str):
            if not (request.lexicons or request.verbatim):  # an entry may respell any sign
                options.check_speakable(request.text)
            if len(request.text) > MAX_TEXT_CHARS:
                raise TextTooLongError(len(request.text), MAX_TEXT_CHARS, "characters")
        elif options.text_layout == "whole" and not self.is_by_sentence(request):
            raise RequestError(
                "live text cannot be laid out whole word by word; leave text_layout out, or give "
                "live='sentence'"
            )
        _check_choice("live", options.live, LIVE_MODES, may_be_none=True)
        _check_choice("on_unsupported", options.on_unsupported, ON_UNSUPPORTED)
        _check_choice("text_layout", options.text_layout, TEXT_LAYOUTS, may_be_none=True)
        if not isinstance(options.language, str):
            kind = type(options.language).__name__
            raise RequestError(f"language must be a string, not {kind}")
        self._check_instruct(options.instruct)
        preset, _ = self._settle_voice(request.voice)
        self._check_language(options.language, preset)
        self._check_normalize(options)
        if preset is not None:
            preset_id(self._config.talker_config, preset)

    def script_options(self, request: Request) -> ScriptOptions:
        """The text options of a request for this checkpoint."""
        if request.lexicons:
            return self._build_script_options(request)
        options = request.options
        flags = [options.split, request.breaks, *(getattr(options, name) for name in TEXT_OPTIONS)]
        key = (
            *map(bool, flags),
            self._packing(request),
            self._language(options.language),
            options.normalize,
        )
        if key not in self._script_options:
            self._script_options[key] = self._build_script_options(request)
        return self._script_options[key]

    def _build_script_options(self, request: Request) -> ScriptOptions:
        reading, normalizes = self._config.reading_config, self._normalizes(request)
        return ScriptOptions.of(
            request.options,
            packing=self._packing(request),
            max_chars=reading.max_utterance_chars if request.options.split else None,
            min_chars=reading.min_utterance_chars if request.breaks else 0,
            language=self._language(request.options.language),
            normalize=normalizes,
            letter_names=reading.letter_names if normalizes else {},
            strip_end=reading.strip_end,
            plain_breaks=request.breaks and reading.plain_breaks,
            plain=PlainRules(
                drops_ellipsis=reading.plain_ellipsis,
                drops_quotes=reading.plain_quotes,
                end_stop=reading.end_stop,
                parts_letters=reading.end_stop and normalizes,
            ),
            lexicon=tuple(
                trie
                for lexicon in request.lexicons
                for trie in lexicon.tries(self._language(request.options.language))
            ),
            seam_s=reading.seam_s,
            paragraph_s=reading.paragraph_s if self._splits_paragraphs(request) else None,
        )

    def _packing(self, request: Request) -> Packing:
        if isinstance(request.text, str):
            return "whole"
        return "sentences" if self.is_by_sentence(request) else "words"

    def _splits_paragraphs(self, request: Request) -> bool:
        """Whether a paragraph ends an utterance.

        Not with voice design: two utterances would have two voices.
        """
        is_design = self._config.tts_model_type == "voice_design"
        return request.options.split and request.breaks and not is_design

    @property
    def silence_rms(self) -> float:
        """The RMS level of the voice's own silence."""
        return self._config.reading_config.silence_rms

    def is_by_sentence(self, request: Request) -> bool:
        """Whether a live text is spoken sentence by sentence, not word by word."""
        return (request.options.live or self._config.reading_config.live) == "sentence"

    def _normalizes(self, request: Request) -> bool:
        options = request.options
        if options.normalize is None:
            return self._config.reading_config.normalize and self._has_rules(options.language)
        return options.normalize

    def is_english(self, language: str) -> bool:
        return self._language(language) == "english"

    def _has_rules(self, language: str) -> bool:
        return self._language(language) in LANGUAGES

    def _language(self, language: str) -> str:
        """The language name; `auto` becomes the language of a checkpoint with one language."""
        languages = list(self._config.talker_config.codec_language_id)
        is_one = language.lower() == AUTO_LANGUAGE and len(languages) == 1
        return languages[0] if is_one else language.lower()

    def _check_normalize(self, options: SpeechOptions) -> None:
        if options.normalize not in (None, False, True):
            raise RequestError(f"normalize must be true, false or None, not {options.normalize!r}")
        if options.normalize and not self._has_rules(options.language):
            raise RequestError(
                f"normalize has no rules for the language {options.language!r}; "
                f"available: {', '.join(LANGUAGES)}; set language, or leave normalize out"
            )

    @property
    def continues(self) -> bool:
        """Whether an utterance can continue from the previous utterance in context."""
        return self._config.tts_model_type == "base"

    def num_first_ids(self, request: Request) -> int:
        """The ids of a live text that its prompt needs: the rows of the reference, at least one."""
        reference = self._voice_reference(request.voice)
        return max(1, len(reference.codes) + 1 - len(reference.text_ids)) if reference else 1

    def write(
        self,
        request: Request,
        text: str,  # of the utterance, as far as known
        text_ids: Sequence[int],
        *,
        is_complete: bool = True,  # False: more ids follow
        previous: Spoken | None = None,
    ) -> tuple[Prompt, SpokenReference | None]:
        """The prompt of an utterance, and the reference whose end may leak into the speech."""
        is_live = not isinstance(request.text, str)
        is_streamed = self.continues or (is_live and not self.is_by_sentence(request))
        default: TextLayout = "streamed" if is_streamed else "whole"
        reference, transcript = self._reference(request, previous)
        layout = request.options.text_layout or default
        if request.verbatim and not text_ids and layout == "streamed" and reference is None:
            text_ids = [self._config.im_end_token_id]  # like the official code
        preset, cloned = self._settle_voice(request.voice)
        prompt = build_prompt(
            self._config,
            text_ids,
            role_ids=self._role_ids(request, text),
            layout=layout,
            language=request.options.language,
            preset=preset,
            speaker=cloned.speaker if cloned else self._vectors.get((preset or "").lower()),
            reference=reference,
            instruct_ids=self._instruct_ids(request.options.instruct),
            is_complete=is_complete,
        )
        prompt = dataclasses.replace(prompt, adapter=self._number)
        limit = self._config.talker_config.max_position_embeddings - 1
        if len(prompt) > limit:
            raise TextTooLongError(len(prompt), limit, "tokens, with its voice and instruct,")
        may_leak = request.options.trim and not is_live and not shares_words(transcript, text)
        return prompt, reference if may_leak else None

    def _reference(
        self, request: Request, previous: Spoken | None
    ) -> tuple[SpokenReference | None, str]:
        """The reference that the speech continues from, and its words."""
        if previous is not None:
            return previous.reference, previous.text
        transcript = request.voice.ref_text if isinstance(request.voice, Voice) else None
        return self._voice_reference(request.voice), transcript or ""

    def encode(self, request: Request, text: str) -> list[int]:
        """The ids of an utterance's text."""
        return self._verbatim_ids(text)[1:] if request.verbatim else self.tokenizer.encode(text)

    def _role_ids(self, request: Request, text: str) -> list[int]:
        """The ids that begin the assistant's turn."""
        role_ids = self.tokenizer.role_ids("assistant")
        return [*role_ids[:-1], self._verbatim_ids(text)[0]] if request.verbatim else role_ids

    def _verbatim_ids(self, text: str) -> list[int]:
        """The ids of the role's line break and the text, encoded together like the official code.

        A line break at the start of the text and the role's line break become one id.
        """
        return self.tokenizer.encode_marked("\n" + text)

    def _settle_voice(self, voice: str | Voice | None) -> tuple[str | None, Voice | None]:
        """The preset name or the cloned voice, if the checkpoint type supports it."""
        if isinstance(voice, Voice):
            served_by = BASE_OF_WIDTH.get(voice.width, SERVED_BY["base"])
            self.require("base", f"speak with the cloned voice {voice.name!r}", served_by)
            self._check_voice(voice)
            return None, voice
        if isinstance(voice, str):
            self.require("custom_voice", f"speak with the preset voice {voice!r}")
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

    @property
    def default_voice(self) -> str | None:
        """The first preset, if the checkpoint has presets."""
        is_preset = self._config.tts_model_type == "custom_voice"
        return next(iter(self._config.talker_config.spk_id), None) if is_preset else None

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

    def _instruct_ids(self, instruct: str | None) -> list[int]:
        if not instruct:  # an empty string means none, like in the official code
            return []
        tokenizer = self.tokenizer
        end = [self._config.im_end_token_id, *tokenizer.encode("\n")]
        return [*tokenizer.role_ids("user"), *tokenizer.encode(instruct), *end]

    def _voice_reference(self, voice: str | Voice | None) -> SpokenReference | None:
        """The recording that a voice continues from, if it has one."""
        if not isinstance(voice, Voice) or voice.ref_codes is None or voice.ref_text is None:
            return None
        return SpokenReference(
            text_ids=self.tokenizer.encode(voice.ref_text), codes=voice.ref_codes
        )

    def require(self, model_type: str, what: str, served_by: str | None = None) -> None:
        if self._config.tts_model_type != model_type:
            served_by = served_by or SERVED_BY[model_type]
            raise UnsupportedRequestError(
                f"a {self._config.tts_model_type} checkpoint cannot {what}; load {served_by}"
            )


def _check_choice(
    name: str, value: object, known: Sequence[str], *, may_be_none: bool = False
) -> None:
    if value not in known and not (may_be_none and value is None):
        raise RequestError(f"{name} must be one of {known}, not {value!r}")
