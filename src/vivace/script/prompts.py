"""Writes the prompts of utterances for the loaded checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivace.errors import TextTooLongError
from vivace.model.config import ModelConfig
from vivace.prompt import Prompt, SpokenReference, build_prompt
from vivace.script.checks import RequestChecker
from vivace.script.request import Request
from vivace.script.text_settings import TextSettings
from vivace.speech import TextLayout
from vivace.text.tokenizer import TextTokenizer
from vivace.voices.reference_leak import shares_words
from vivace.voices.voice import Voice


@dataclass(frozen=True, slots=True, eq=False)
class PromptAdapter:
    """The part of an adapter that prompts use. The adapter is chosen per request."""

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
        self.texts = TextSettings(config)
        self.checker = RequestChecker(config, self.texts)

    @property
    def silence_rms(self) -> float:
        """The RMS level of the voice's own silence."""
        return self._config.reading_config.silence_rms

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
        is_streamed = self.continues or (is_live and not self.texts.is_by_sentence(request))
        default: TextLayout = "streamed" if is_streamed else "whole"
        reference, transcript = self._reference(request, previous)
        layout = request.options.text_layout or default
        if request.verbatim and not text_ids and layout == "streamed" and reference is None:
            text_ids = [self._config.im_end_token_id]  # like the official code
        preset, cloned = self.checker.settle_voice(request.voice)
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
        if self._number:
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

    @property
    def default_voice(self) -> str | None:
        """The first preset, if the checkpoint has presets."""
        has_presets = self._config.has_presets
        return next(iter(self._config.talker_config.spk_id), None) if has_presets else None

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
