"""Builds the Prompt of a request: two aligned integer tracks and at most one vector.

A row of the talker's input is one text id plus the codes of up to all codebooks. A Prompt needs no
weights and can be printed as a table.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vivace.errors import UnknownLanguageError, UnknownVoiceError
from vivace.model.config import NO_CODE, SPEAKER, ModelConfig, TalkerConfig
from vivace.speech import AUTO_LANGUAGE, TextLayout

T = TypeVar("T")
_NO_CODE_BYTES = np.int64(NO_CODE).tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenReference:
    """A recording to continue from: its transcript's ids and its codes."""

    text_ids: Sequence[int]
    codes: NDArray[np.int64]  # [R, codebooks]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    text_ids: tuple[int, ...]  # one per row
    codes: NDArray[np.int64]  # [rows, codebooks]
    labels: tuple[str, ...]  # describes each row, for debugging
    trailing_ids: tuple[int, ...]  # the rest of the text, one id per frame
    pad_id: int  # the text id of every frame after that
    is_complete: bool = True  # False: more text may be appended
    speaker: NDArray[np.float32] | None = None
    reference: NDArray[np.int64] | None = None  # decoded by the codec before the first frame
    num_shared_rows: int = 0  # first rows, before the request's own text
    own_row: int = 0  # index of the own text's first id, in rows and then trailing ids
    num_own_ids: int = 0  # known ids of the own text
    end_id: int = 0  # the text id that ends the text
    adapter: int = 0  # number of the adapter that changes the model for this prompt; 0: none

    def __len__(self) -> int:
        return len(self.text_ids)

    def continued(
        self, codes: NDArray[np.int64], later_ids: Sequence[int], *, is_complete: bool
    ) -> Prompt:
        """A prompt that continues after the frames [frames, codebooks] of this prompt.

        `later_ids` is text that was appended since; `is_complete`: no more text follows.
        """
        has_end = is_complete and not self.is_complete
        track = [*self.trailing_ids, *later_ids, *[self.end_id] * has_end]
        beside = (*track, *[self.pad_id] * len(codes))[: len(codes)]
        spoken = [codes] if self.reference is None else [self.reference, codes]
        return dataclasses.replace(
            self,
            text_ids=(*self.text_ids, *beside),
            codes=np.concatenate([self.codes, codes]),
            labels=(*self.labels, *(f"frame {index}" for index in range(len(codes)))),
            trailing_ids=tuple(track[len(codes) :]),
            is_complete=is_complete,
            num_own_ids=self.num_own_ids + len(later_ids),
            reference=np.concatenate(spoken),
        )

    def __str__(self) -> str:
        lines = [f"{'row':>4}  {'text':>7}  {'codes':<24}  what"]
        for row, (text, codes, label) in enumerate(
            zip(self.text_ids, self.codes, self.labels, strict=True)
        ):
            lines.append(f"{row:>4}  {text:>7}  {_cell(codes):<24}  {label}")
        trailing = " ".join(map(str, self.trailing_ids)) or "none"
        lines.append(f"then, one per frame: {trailing}; then {self.pad_id}")
        return "\n".join(lines)


def build_prompt(
    config: ModelConfig,
    text_ids: Sequence[int],
    *,
    role_ids: Sequence[int],
    layout: TextLayout,
    language: str = AUTO_LANGUAGE,
    preset: str | None = None,
    speaker: NDArray[np.float32] | None = None,
    reference: SpokenReference | None = None,
    instruct_ids: Sequence[int] = (),
    is_complete: bool = True,
) -> Prompt:
    """Build the same rows as the official code.

    `preset` names a speaker of the checkpoint; `speaker` is an x-vector, or the vector of a preset
    that is not in the embedding. Without both, the instruction determines the voice.
    `instruct_ids` are the ids of the complete user turn.
    """
    rows = _Rows(config, speaker, is_complete)
    rows.add_head(
        instruct_ids, role_ids, _codec_prefix(config.talker_config, language, preset, speaker)
    )
    if reference is not None:
        rows.add_reference(reference, text_ids, layout)
    elif layout == "whole":
        rows.add_whole_text(text_ids)
    else:
        rows.add_first_text(text_ids)
    return rows.build(len(text_ids))


def language_id(config: TalkerConfig, language: str, preset: str | None) -> int | None:
    """The id of a language; None for auto. Chinese becomes the dialect of a dialect speaker."""
    key = language.lower()
    if key in (AUTO_LANGUAGE, "chinese") and preset is not None:
        dialect = _lower_keys(config.spk_is_dialect).get(preset.lower())
        if isinstance(dialect, str) and dialect:
            key = dialect
    if key == AUTO_LANGUAGE:
        return None
    if key not in config.codec_language_id:
        raise UnknownLanguageError(language, [AUTO_LANGUAGE, *sorted(config.codec_language_id)])
    return config.codec_language_id[key]


def _codec_prefix(
    config: TalkerConfig,
    language: str,
    preset: str | None,
    speaker: NDArray[np.float32] | None,
) -> list[tuple[int, str]]:
    language_code = language_id(config, language, preset)
    if language_code is None:
        prefix = [(config.codec_nothink_id, "language left open")]
    else:
        prefix = [(config.codec_think_id, "language follows")]
    prefix.append((config.codec_think_bos_id, "language begins"))
    if language_code is not None:
        prefix.append((language_code, f"language {language.lower()}"))
    prefix.append((config.codec_think_eos_id, "language ends"))
    if speaker is not None:
        prefix.append((SPEAKER, "speaker vector"))
    elif preset is not None:
        prefix.append((preset_id(config, preset), f"speaker {preset.lower()}"))
    return prefix


def preset_id(config: TalkerConfig, preset: str) -> int:
    """The embedding id of a preset speaker."""
    name, ids = preset.lower(), config.spk_id
    if name not in ids:
        ids = _lower_keys(ids)  # fine-tuned checkpoints may use capitals
    if name not in ids:
        raise UnknownVoiceError(preset, sorted(config.spk_id))
    return ids[name]


def _lower_keys(table: Mapping[str, T]) -> dict[str, T]:
    return {key.lower(): value for key, value in table.items()}


@dataclass(slots=True)
class _Rows:
    """Rows under construction."""

    config: ModelConfig
    speaker: NDArray[np.float32] | None
    is_complete: bool
    text: list[int] = field(default_factory=list)
    first_codes: list[int] = field(default_factory=list)  # the others are NO_CODE
    labels: list[str] = field(default_factory=list)
    trailing: list[int] = field(default_factory=list)
    reference: NDArray[np.int64] | None = None
    reference_row: int = 0
    num_shared: int = 0

    def add(self, text_ids: Sequence[int], code: int, label: str) -> None:
        """Append a row for each text id, all with the same code."""
        self.text += text_ids
        self.first_codes += [code] * len(text_ids)
        self.labels += [label] * len(text_ids)

    def add_head(
        self,
        instruct_ids: Sequence[int],
        role_ids: Sequence[int],
        prefix: Sequence[tuple[int, str]],
    ) -> None:
        if instruct_ids:
            self.add(instruct_ids, NO_CODE, "instruct")
        self.add(role_ids, NO_CODE, "role")
        codes, labels = zip(*prefix, (self._pad, "text begins"), strict=True)
        self.text += [self.config.tts_pad_token_id] * len(prefix)
        self.text.append(self.config.tts_bos_token_id)
        self.first_codes += codes
        self.labels += labels
        self.num_shared = len(self.text)

    def add_first_text(self, text_ids: Sequence[int]) -> None:
        first, *rest = [*text_ids, *self._text_end]
        self.add([first], self._bos, "text; speech begins")
        self.trailing = rest

    def add_whole_text(self, text_ids: Sequence[int]) -> None:
        self.add(text_ids, self._pad, "text")
        self.add([self.config.tts_eos_token_id], self._pad, "text ends")
        self.add([self.config.tts_pad_token_id], self._bos, "speech begins")

    def add_reference(
        self, reference: SpokenReference, text_ids: Sequence[int], layout: TextLayout
    ) -> None:
        spoken = [*reference.text_ids, *text_ids, *self._text_end]
        self.num_shared += len(reference.text_ids)
        if layout == "whole":
            self.add(spoken, self._pad, "text")
            spoken = []
        num_rows = 1 + len(reference.codes)
        beside = spoken[:num_rows] + [self.config.tts_pad_token_id] * (num_rows - len(spoken))
        self.add(beside[:1], self._bos, "speech begins")
        self.reference, self.reference_row = reference.codes, len(self.text)
        for index, text_id in enumerate(beside[1:]):
            self.add([text_id], NO_CODE, f"reference {index}")
        self.trailing = spoken[num_rows:]

    def build(self, num_own_ids: int) -> Prompt:
        return Prompt(
            text_ids=tuple(self.text),
            codes=self._codes(),
            labels=tuple(self.labels),
            trailing_ids=tuple(self.trailing),
            pad_id=self.config.tts_pad_token_id,
            is_complete=self.is_complete,
            speaker=self.speaker,
            reference=self.reference,
            num_shared_rows=min(self.num_shared, len(self.text)),
            own_row=self.num_shared,
            num_own_ids=num_own_ids,
            end_id=self.config.tts_eos_token_id,
        )

    def _codes(self) -> NDArray[np.int64]:
        shape = len(self.text), self.config.talker_config.num_code_groups
        # `np.full` would release the GIL and wait to get it back.
        codes = np.frombuffer(bytearray(_NO_CODE_BYTES * math.prod(shape)), np.int64).reshape(shape)
        codes[:, 0] = self.first_codes
        if self.reference is not None:
            codes[self.reference_row : self.reference_row + len(self.reference)] = self.reference
        return codes

    @property
    def _pad(self) -> int:
        return self.config.talker_config.codec_pad_id

    @property
    def _bos(self) -> int:
        return self.config.talker_config.codec_bos_id

    @property
    def _text_end(self) -> list[int]:
        return [self.config.tts_eos_token_id] if self.is_complete else []


def _cell(codes: NDArray[np.int64]) -> str:
    if codes[0] == SPEAKER:
        return "speaker"
    present = [str(code) for code in codes if code != NO_CODE]
    return "-" if not present else " ".join(present[:4]) + (" …" if len(present) > 4 else "")
