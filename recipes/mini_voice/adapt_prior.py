"""What the talker of a preset expects for a transcript, to choose among codes of similar sound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from recipes.mini_voice.adapt_data import Speech
from recipes.mini_voice.codec_model import CodecTrainer
from recipes.mini_voice.common import DEVICE
from vivace.checkpoint import Checkpoint
from vivace.errors import RequestError
from vivace.finetune.examples import ExampleWriter, Transcript
from vivace.teacher_forcing import Example, collate, first_logits, residual_logits, talker_states

ROUNDS = 6  # the talker reads the codes of the round before
BATCH = 8  # utterances


class Prior:
    """Log probabilities of codes by the talker of `base`, speaking as a preset."""

    def __init__(self, base: Path, voice: str) -> None:
        checkpoint = Checkpoint.open(base)
        self._writer = ExampleWriter(checkpoint.config, checkpoint.load_tokenizer())
        self._model = checkpoint.load_plain_model(DEVICE, torch.float32)
        self._voice = voice
        self._num_codes = checkpoint.config.talker_config.code_predictor_config.vocab_size

    def examples(self, speech: Speech) -> Iterator[tuple[slice, Example]]:
        """The utterances that the talker can speak as one, and their frames."""
        end = 0
        for text, count in zip(speech.texts, speech.num_frames, strict=True):
            frames, end = slice(end, end + count), end + count
            transcript = Transcript(text=text, speaker=self._voice, language="english")
            try:
                codes = speech.codes[frames].cpu().numpy()
                yield frames, self._writer.write(transcript, codes)
            except RequestError:  # a pause in the text, or unsupported letters
                continue

    @torch.no_grad()
    def log_probabilities(self, speech: Speech) -> Tensor:
        """Of each frame: [books, frames, codes]. Zeros where the text cannot be spoken as one."""
        shape = (speech.codes.shape[1], len(speech.codes), self._num_codes)
        found = torch.zeros(shape, device=DEVICE)
        examples = sorted(self.examples(speech), key=lambda pair: len(pair[1]))
        talker = self._model.talker
        for start in range(0, len(examples), BATCH):
            places, chosen = zip(*examples[start : start + BATCH], strict=True)
            batch = collate(chosen, DEVICE)
            hidden = talker_states(talker, batch)
            first = first_logits(talker, hidden, batch)[: len(batch.before), : self._num_codes]
            rest = residual_logits(talker, hidden[batch.before], batch.frames)
            logits = torch.stack((first, *rest)).log_softmax(-1)
            lengths = [frames.stop - frames.start for frames in places]
            for frames, part in zip(places, logits.split(lengths, 1), strict=True):
                found[:, frames] = part
        return found


@torch.no_grad()
def choose_codes(
    trainer: CodecTrainer, prior: Prior, speech: Speech, temperature: float, weight: float
) -> Speech:
    """The speech with the codes that encoder and talker together find most probable.

    The encoder's log probabilities are squared distances by `temperature`. `weight` is that of the
    talker's; 0 leaves the codes of the encoder.
    """
    parts = [trainer.branches(trainer.encoder(one[None])) for one in speech.split()]
    first, rest = (torch.cat([part[side][0] for part in parts]) for side in range(2))
    codes = speech.codes
    for _ in range(ROUNDS):
        now = Speech(speech.texts, speech.audio, codes, speech.num_frames)
        expected = temperature * weight * prior.log_probabilities(now)
        codes = _nearest(trainer, first, rest, expected)
    return Speech(speech.texts, speech.audio, codes, speech.num_frames)


def _nearest(trainer: CodecTrainer, first: Tensor, rest: Tensor, bonus: Tensor) -> Tensor:
    """Codes [frames, books] of vectors [frames, width], by distance minus `bonus`.

    `bonus` is [books, frames, codes].
    """
    books, found, residual = trainer.books, [], rest
    for book, table in enumerate(books.vectors):
        own = first if book == 0 else residual
        is_last = book == len(books.vectors) - 1
        if is_last:
            own = own + books.marks[trainer.speaker]
        score = 2 * (own @ table.T) - table.square().sum(-1) + bonus[book]
        if is_last:
            score = torch.where(books.owner == trainer.speaker, score, -torch.inf)
        found.append(score.argmax(-1))
        if book:
            residual = residual - table[found[-1]]
    return torch.stack(found, -1)
