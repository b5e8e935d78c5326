"""The talker's input rows for every utterance and both text layouts, equal to `build_prompt`.

A row has a text id (or none) and a special codec id, a frame of codes, or neither. The rows of all
examples are stored in flat arrays; an example is a range of rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from recipes.mini_voice.encode import Codes
from recipes.mini_voice.lines import SPEAKER, all_lines
from recipes.mini_voice.voices import TRAINING_VOICES
from vivace.model.config import SPEAKER as SPEAKER_VECTOR
from vivace.model.config import TalkerConfig
from vivace.text.tokenizer import TextTokenizer

NOTHING = -1


@dataclass(frozen=True)
class Ids:
    """The text ids that every prompt needs."""

    role: list[int]
    pad: int
    bos: int
    eos: int

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> Ids:
        return cls(
            tokenizer.role_ids("assistant"),
            tokenizer.special_id("<tts_pad>"),
            tokenizer.special_id("<tts_text_bos>"),
            tokenizer.special_id("<tts_text_eod>"),
        )


def prompt_rows(
    text: list[int], config: TalkerConfig, ids: Ids, *, speaker: int | None, is_streaming: bool,
    is_auto: bool,
) -> tuple[list[int], list[int], list[int]]:  # fmt: skip
    """Text ids and codec ids of the prefill, and the text ids of the rows after it.

    `speaker` is an index into the config's speakers, or None for a speaker vector.
    """
    think = [
        [config.codec_nothink_id, config.codec_think_bos_id, config.codec_think_eos_id],
        [
            config.codec_think_id,
            config.codec_think_bos_id,
            config.codec_language_id["english"],
            config.codec_think_eos_id,
        ],
    ][not is_auto]
    prefix = [*think, SPEAKER_VECTOR if speaker is None else [*config.spk_id.values()][speaker]]
    texts = [*ids.role, *[ids.pad] * len(prefix), ids.bos]
    codecs = [*[NOTHING] * 3, *prefix, config.codec_pad_id]
    if is_streaming:
        return [*texts, text[0]], [*codecs, config.codec_bos_id], [*text[1:], ids.eos]
    texts = [*texts, *text, ids.eos, ids.pad]
    codecs = [*codecs, *[config.codec_pad_id] * (len(text) + 1), config.codec_bos_id]
    return texts, codecs, []


@dataclass
class Examples:
    text: np.ndarray  # int16 of each row
    codec: np.ndarray  # int16: a special codec id, or NOTHING
    frame: np.ndarray  # int32: the frame whose codes are fed here, or NOTHING
    target: np.ndarray  # int32: the frame to predict, NOTHING for none, -2 for end of speech
    starts: np.ndarray  # first row of each example
    lengths: np.ndarray
    utterances: np.ndarray


END = -2


def build_examples(
    codes: Codes, tokenizer: TextTokenizer, config: TalkerConfig, settings: SimpleNamespace,
    utterances: Iterable[int], *, seed: int = 5, variants: int | None = None,
) -> Examples:  # fmt: skip
    """Make `variants` examples of each utterance, each with a random layout and language.

    The default comes from the settings, which have more variants for speakers with fewer lines.
    Streamed examples begin with a lead, if leads exist.
    """
    train = settings.train_talker
    lines = all_lines(settings.data)
    ids, rng, starts = Ids.of(tokenizer), np.random.default_rng(seed), codes.starts
    texts, codecs, frames, targets, lengths, owners = [], [], [], [], [], []
    longest = max(train.buckets)
    for utterance in utterances:
        speaker, line = divmod(int(codes.lines[utterance]), SPEAKER)
        text = tokenizer.encode(lines[line])
        begin, count = int(starts[utterance]), int(codes.frames[utterance])
        usual = train.variants_other if speaker else train.variants
        for _ in range(usual if variants is None else variants):
            is_streaming = rng.random() < train.streaming_fraction
            row_text, row_codec, trailing = prompt_rows(
                text, config, ids,
                speaker=None if settings.data.speakers[speaker] == TRAINING_VOICES else speaker,
                is_streaming=is_streaming,
                is_auto=rng.random() < train.auto_fraction,
            )  # fmt: skip
            run = np.arange(begin, begin + count, dtype=np.int32)
            if is_streaming and len(codes.leads):
                run = np.concatenate((rng.choice(codes.leads).astype(np.int32), run))
            head, length = len(row_text), len(row_text) + len(run)
            if length > longest:
                continue
            later = (trailing + [ids.pad] * len(run))[: len(run)]
            texts.append(np.asarray(row_text + later, np.int16))
            codecs.append(np.asarray(row_codec + [NOTHING] * len(run), np.int16))
            frames.append(np.concatenate((np.full(head, NOTHING, np.int32), run)))
            target = np.full(length, NOTHING, np.int32)
            target[head - 1 : -1] = run
            target[-1] = END
            targets.append(target)
            lengths.append(length)
            owners.append(utterance)
    sizes = np.asarray(lengths, np.int64)
    return Examples(
        np.concatenate(texts), np.concatenate(codecs), np.concatenate(frames),
        np.concatenate(targets), np.concatenate(([0], np.cumsum(sizes)[:-1])), sizes,
        np.asarray(owners),
    )  # fmt: skip
