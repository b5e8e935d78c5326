"""The speech options that concern the text alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vivace.text.emoji import EMOJI, drop_emoji
from vivace.text.letters import check_speakable, is_speakable


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options that need no checkpoint. Part of `SpeechOptions` and of `ScriptOptions`."""

    clean: Annotated[bool, "Remove markdown and links from the text."] = False
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
