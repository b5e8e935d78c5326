"""The text options of requests for one checkpoint: language, normalization, live text."""

from __future__ import annotations

from vivace.model.config import ModelConfig
from vivace.script.request import Request
from vivace.speech import AUTO_LANGUAGE
from vivace.text.normalize import LANGUAGES
from vivace.text.options import TEXT_OPTIONS, Packing, ScriptOptions
from vivace.text.plain import PlainRules


class TextSettings:
    """How the texts of requests are read with one checkpoint."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        # Options of requests without a lexicon, by everything that decides them. A request is
        # checked before, so that the number of entries is limited.
        self._known: dict[tuple[object, ...], ScriptOptions] = {}

    def script_options(self, request: Request) -> ScriptOptions:
        """The text options of a request for this checkpoint."""
        if request.lexicons:
            return self._build(request)
        options = request.options
        flags = [options.split, request.breaks, *(getattr(options, name) for name in TEXT_OPTIONS)]
        key = (
            *map(bool, flags),
            self._packing(request),
            self._language(options.language),
            options.normalize,
        )
        if key not in self._known:
            self._known[key] = self._build(request)
        return self._known[key]

    def _build(self, request: Request) -> ScriptOptions:
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

    def is_by_sentence(self, request: Request) -> bool:
        """Whether a live text is spoken sentence by sentence, not word by word."""
        return (request.options.live or self._config.reading_config.live) == "sentence"

    def _normalizes(self, request: Request) -> bool:
        options = request.options
        if options.normalize is None:
            return self._config.reading_config.normalize and self.has_rules(options.language)
        return options.normalize

    def is_english(self, language: str) -> bool:
        return self._language(language) == "english"

    def has_rules(self, language: str) -> bool:
        """Whether texts of the language can be normalized."""
        return self._language(language) in LANGUAGES

    def _language(self, language: str) -> str:
        """The language name; `auto` becomes the language of a checkpoint with one language."""
        languages = list(self._config.talker_config.codec_language_id)
        is_one = language.lower() == AUTO_LANGUAGE and len(languages) == 1
        return languages[0] if is_one else language.lower()
