"""Totals of a stream over its utterances, and the usage report that they make."""

from __future__ import annotations

from vivace.engine.streams.assemble import Assembler
from vivace.engine.utterances.completeness import SpokenWords
from vivace.engine.utterances.reader import UtteranceReader
from vivace.speech import Usage
from vivace.text.tokenizer import TextTokenizer


class StreamTotals:
    """Written by the thread that reads the stream."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.words = SpokenWords(tokenizer)
        self.num_utterances = 0  # that are over, as are those of the other numbers
        self.is_runaway = False  # some speech was stopped because it did not end by itself
        self._num_frames = self._num_text_ids = self._num_retries = 0

    def add(self, reader: UtteranceReader) -> None:
        """Add an utterance that is over."""
        utterance = reader.utterance
        self.num_utterances += 1
        self._num_frames += reader.num_read
        self._num_text_ids += utterance.num_text_ids
        self._num_retries += utterance.num_retries
        self.is_runaway |= utterance.finish_reason == "stall" or utterance.is_over_budget

    def usage(
        self,
        current: UtteranceReader | None,  # of the utterance that is not over
        made: Assembler,
        *,
        seed: int,
        skipped: tuple[str, ...],
    ) -> Usage:
        utterance = current.utterance if current else None
        return Usage(
            text_tokens=self._num_text_ids + (utterance.num_text_ids if utterance else 0),
            frames=self._num_frames + (current.num_read if current else 0),
            audio_s=made.num_samples / made.sample_rate,
            wall_s=made.wall_s,
            seed=seed,
            first_audio_ms=made.first_audio_ms,
            audible_ms=made.audible_ms,
            completeness=self.words.completeness,
            missing_words=self.words.missing,
            retries=self._num_retries + (utterance.num_retries if utterance else 0),
            num_words=self.words.num_words,
            skipped=skipped,
        )
