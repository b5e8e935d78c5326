"""Options of text preparation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from vivace.text.emoji import EMOJI, drop_emoji
from vivace.text.letters import check_speakable, is_speakable
from vivace.text.plain import PlainRules
from vivace.text.trie import Trie

Packing = Literal["whole", "sentences", "words"]


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options that need no checkpoint. Part of `SpeechOptions` and of `ScriptOptions`."""

    clean: Annotated[bool, "Remove markdown and links, and read TeX formulas."] = False
    keep_emoji: Annotated[bool, "Speak emoji. By default they are removed."] = False

    def remove_emoji(self, text: str) -> str:
        return text if self.keep_emoji else drop_emoji(text)

    def is_speakable(self, text: str) -> bool:
        """Whether the text has a letter, a digit or a sign that has a name."""
        return is_speakable(text) or (self.keep_emoji and EMOJI.search(text) is not None)

    def check_speakable(self, text: str) -> None:
        """Raise TextError if nothing of the text can be spoken."""
        if not self.is_speakable(text):
            check_speakable(text)


TEXT_OPTIONS = tuple(field.name for field in fields(TextOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions(TextOptions):
    """How the text of a request becomes utterances of one checkpoint."""

    packing: Packing = "words"  # how sentences are packed; see `vivace.text.packing`
    max_chars: int | None = 300  # per utterance; None does not split the text
    min_chars: int = 0  # a shorter utterance is not extended by the next sentence
    language: str = "english"  # whose rules `normalize` applies
    normalize: bool = False  # write numbers, dates, capitals and signs as words
    strip_end: bool = False  # remove white space at the end of an utterance
    plain_breaks: bool = False  # line breaks end utterances; the model gets single spaces only
    plain: PlainRules = field(default_factory=PlainRules)  # used with `plain_breaks`
    letter_names: Mapping[str, str] = field(default_factory=dict)  # see `vivace.text.letter_names`
    lexicon: tuple[Trie, ...] = ()  # respellings; the first trie has precedence
    seam_s: float = 0.15  # silence added between utterances
    paragraph_s: float | None = None  # silence between paragraphs; None: no utterance ends there

    @classmethod
    def of(cls, options: TextOptions, **own: Any) -> ScriptOptions:
        """Add the checkpoint's settings `own` to the options of a request."""
        return cls(**{name: getattr(options, name) for name in TEXT_OPTIONS}, **own)
