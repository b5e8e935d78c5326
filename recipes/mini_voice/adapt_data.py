"""What `adapt_codec` learns from: recordings of a new speaker, and speech of a preset."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.mini_voice.common import DEVICE
from recipes.mini_voice.settings import FRAME, SAMPLE_RATE
from recipes.mini_voice.talk_lines import TalkLines
from recipes.mini_voice.templates import CITIES, template_lines
from vivace import TTS
from vivace.audio.clip import Audio
from vivace.audio.resample import resample
from vivace.audio.sandbox import Sandbox
from vivace.errors import AudioError
from vivace.finetune.options import DataOptions
from vivace.finetune.recordings import RecordingReader
from vivace.finetune.sources import Defaults, Entry, Rejection, Row, read_rows

LOUDNESS = -24.6  # LUFS of the preset `michael`
SHORT_EVERY = 6  # lines, of which the last is short
REPLIES = """Yes. No. Hello. Hi! Thanks. Please. Sorry. Maybe. Never. Always. Really? Why? When?
Where? Welcome. Goodbye. Stop! Wait. Listen. Look. Great. Sure. Okay. Exactly. Right. Wrong.
Today. Now. Later. Nothing. Everyone. Finally. Perhaps. Indeed. Enough. Ready? Done. Next. Again.
"""


@dataclass(frozen=True)
class Speech:
    """Concatenated utterances. Each utterance starts at a frame boundary."""

    texts: list[str]
    audio: Tensor  # [frames * 1920]
    codes: Tensor  # [frames, books]
    num_frames: list[int]

    @cached_property
    def starts(self) -> Tensor:
        """The first frame of each utterance."""
        counts = torch.tensor(self.num_frames, device=self.audio.device)
        return counts.cumsum(0) - counts

    def split(self) -> list[Tensor]:
        """The samples of each utterance."""
        return list(self.audio.split([FRAME * count for count in self.num_frames]))

    def split_codes(self) -> list[Tensor]:
        return list(self.codes.split(self.num_frames))

    def first(self, count: int) -> Speech:
        """The first utterances."""
        lengths = self.num_frames[:count]
        frames = sum(lengths)
        return Speech(
            self.texts[:count], self.audio[: FRAME * frames], self.codes[:frames], lengths
        )

    def with_audio(self, audios: list[Tensor]) -> Speech:
        """The same texts and codes with other samples."""
        return replace(self, audio=torch.cat(audios))


def read_recordings(data: Path) -> tuple[list[str], list[Tensor], list[Rejection]]:
    """Transcripts, samples padded to whole frames, and recordings that cannot be used.

    `data` has a layout of `vivace finetune`, and recordings are prepared in the same way.
    """
    options = DataOptions(loudness=LOUDNESS)
    texts, audios, rejections = [], [], []
    with Sandbox() as sandbox:
        reader = RecordingReader(options, sandbox)
        for row in read_rows(data, Defaults(speaker=None, language="english")):
            try:
                samples = _samples(row, reader)
            except AudioError as error:
                rejections.append(Rejection(row.where, str(error)))
                continue
            assert isinstance(row, Entry)
            texts.append(row.transcript.text)
            audios.append(samples)
    return texts, audios, rejections


def _samples(row: Row, reader: RecordingReader) -> Tensor:
    if isinstance(row, Rejection):
        raise AudioError(row.reason)
    if row.audio is None:
        raise AudioError("codes of another codec; the recording itself is needed")
    recording = reader.read(row.audio)
    samples = resample(recording.samples, recording.sample_rate, SAMPLE_RATE)
    return F.pad(torch.from_numpy(samples), (0, -len(samples) % FRAME)).to(DEVICE)


def other_lines(count: int) -> list[str]:
    """Sentences beside the transcripts: numbers, names, conversation and single words.

    Without single words, the talker learns to speak longer, and speaks "Hello." twice.
    """
    choice = random.Random(1)
    talk, short = TalkLines(CITIES, choice), [*REPLIES.split(), *(f"{one}." for one in CITIES)]
    lines = [*template_lines(count // 2, seed=1), *(talk.line() for _ in range(count - count // 2))]
    for number in range(SHORT_EVERY - 1, count, SHORT_EVERY):
        lines[number] = choice.choice(short)
    return lines


def imitate(
    base: Path, voice: str, texts: list[str], audios: list[Tensor]
) -> tuple[Speech, list[Tensor]]:
    """The texts, spoken by a preset of the base, and the recordings of the first texts.

    Speech in several parts has pauses without codes and is left out, as is speech without an end.
    """
    with TTS.load(base, device=DEVICE.type, max_streams=64) as tts:
        speech = tts.speak(texts, voice=voice, seed=1, trim=False)
    is_exact = [_is_exact(one) for one in speech]
    preset = join_speech(
        [
            (text, torch.from_numpy(one.samples), torch.from_numpy(one.codes))
            for text, one, kept in zip(texts, speech, is_exact, strict=True)
            if kept
        ]
    )
    return preset, [one for one, kept in zip(audios, is_exact, strict=False) if kept]


def _is_exact(audio: Audio) -> bool:
    return audio.finish_reason == "stop" and len(audio.samples) == FRAME * len(audio.codes)


def join_speech(utterances: list[tuple[str, Tensor, Tensor]]) -> Speech:
    """Utterances (text, samples, codes) as one."""
    texts, audios, codes = zip(*utterances, strict=True)
    return Speech(
        list(texts),
        torch.cat(audios).to(DEVICE),
        torch.cat(codes).to(DEVICE),
        [len(one) for one in codes],
    )
