"""Recordings with transcripts as examples: the engine's own text pipeline and prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivace.errors import TextError
from vivace.model.config import SPEAKER, ModelConfig
from vivace.options import SpeechOptions
from vivace.prompt import Prompt, preset_id
from vivace.script.prompts import PromptWriter
from vivace.script.request import Request
from vivace.script.script import Line, Script
from vivace.speech import AUTO_LANGUAGE, TextLayout
from vivace.teacher_forcing import Example
from vivace.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The text of a recording, its speaker, language and instruction."""

    text: str
    speaker: str | None = None  # None: voice design, where the instruction describes the voice
    language: str = AUTO_LANGUAGE
    instruct: str | None = None


class ExampleWriter:
    """Writes examples for the checkpoint that results from the training."""

    def __init__(
        self,
        config: ModelConfig,  # with the new speakers
        tokenizer: TextTokenizer,
        new_speakers: Collection[str] = (),  # their vectors are not in the weights yet
    ) -> None:
        self._config, self._writer = config, PromptWriter(config, tokenizer)
        self._new_speakers = frozenset(new_speakers)

    def check(self, transcript: Transcript) -> None:
        """Raise a RequestError if the checkpoint cannot speak the transcript as one utterance."""
        self.prompt(transcript)

    def write(
        self,
        transcript: Transcript,
        codes: NDArray[np.int64],
        layout: TextLayout | None = None,
        language: str | None = None,  # None: the transcript's
    ) -> Example:
        if language is not None:
            transcript = dataclasses.replace(transcript, language=language)
        prompt = self.prompt(transcript, layout)
        if transcript.speaker not in self._new_speakers:
            return Example(prompt=prompt, codes=codes)
        prompt = self._with_speaker_row(prompt, str(transcript.speaker))
        return Example(prompt=prompt, codes=codes, speaker=transcript.speaker)

    def prompt(self, transcript: Transcript, layout: TextLayout | None = None) -> Prompt:
        """The prompt that the engine writes for this text."""
        request = Request(
            text=transcript.text,
            voice=transcript.speaker,
            options=SpeechOptions(
                language=transcript.language,
                instruct=transcript.instruct,
                text_layout=layout,
                on_unsupported="error",
                split=False,
            ),
            breaks=True,
        )
        self._writer.checker.check(request)
        self._writer.checker.check_follows(transcript.instruct)
        line = self._only_line(request)
        return self._writer.write(request, line.text, line.take())[0]

    def _only_line(self, request: Request) -> Line:
        script = Script(self._writer, request)
        line = script.next_part()
        if not isinstance(line, Line) or not script.is_over:
            raise TextError("the transcript has pauses; give each utterance a recording of its own")
        return line

    def _with_speaker_row(self, prompt: Prompt, speaker: str) -> Prompt:
        """The prompt with a vector in the row of the speaker's id."""
        codes = prompt.codes.copy()
        number = preset_id(self._config.talker_config, speaker)
        codes[codes[:, 0] == number, 0] = SPEAKER
        return dataclasses.replace(prompt, codes=codes)
