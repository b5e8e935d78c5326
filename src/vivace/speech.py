"""Types that all modules share: sampling parameters, finish reasons, usage, names of languages.

Imports only the standard library.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from numbers import Integral, Real
from typing import Annotated, Any, Literal

from vivace.errors import RequestError

FinishReason = Literal["stop", "length", "stall", "cancelled"]
"""`stop`: the model ended the speech. `stall`: the speech repeated itself or stayed silent."""
TextLayout = Literal["whole", "streamed"]
"""`whole`: all text before the first frame. `streamed`: one text id with every frame."""
LiveMode = Literal["word", "sentence"]
"""How a text that is still being written is taken: each word as it comes, or whole sentences."""
LIVE_MODES: tuple[LiveMode, ...] = ("word", "sentence")
OnUnsupported = Literal["error", "skip"]
"""The treatment of letters of a script that the checkpoint does not read."""
ON_UNSUPPORTED: tuple[OnUnsupported, ...] = ("error", "skip")

AUTO_LANGUAGE = "auto"  # the model infers the language from the text
SAMPLE_RATE = 24_000  # Hz, in every released checkpoint
MAX_INSTRUCT_CHARS = 4096
MAX_SEED = 2**63 - 1
NUM_DRAWN_SEEDS = 2**53  # drawn seeds stay exact in JSON readers that use floats
MIN_FRAMES = 2


@dataclass(frozen=True, slots=True)
class Bounds:
    """The allowed range of a number, both ends included."""

    low: float
    high: float
    zero: str | None = None  # the meaning of 0, if 0 is allowed in addition to the range

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high or (self.zero is not None and number == 0)

    def __str__(self) -> str:
        zero = "" if self.zero is None else f"0 ({self.zero}) or "
        return f"{zero}from {_written(self.low)} to {_written(self.high)}"


THREADS = Bounds(1, 1_024)  # OpenMP ends the process if it cannot start a thread
# With these bounds a score is at most 1e6 times a logit: finite in float32 and in bfloat16.
BOUNDS = {
    "temperature": Bounds(1e-5, 100.0, zero="greedy"),
    "top_k": Bounds(0, 2**31 - 1),
    "top_p": Bounds(1e-5, 1.0),
    "repetition_penalty": Bounds(0.5, 10.0),
    "min_frames": Bounds(0, 2**31 - 1),
    "max_frames": Bounds(1, 2**31 - 1),
    "seed": Bounds(0, MAX_SEED),
}
BOUNDS |= {f"predictor_{name}": BOUNDS[name] for name in ("temperature", "top_k", "top_p")}
WHOLE_NUMBERS = {"top_k", "predictor_top_k", "min_frames", "max_frames", "seed"}
LANGUAGES = {
    "zh": "chinese", "en": "english", "fr": "french", "de": "german", "it": "italian",
    "ja": "japanese", "ko": "korean", "pt": "portuguese", "ru": "russian", "es": "spanish",
}  # fmt: skip
MAX_SHOWN = 80  # characters of a rejected value in an error message
OPTIONAL = {"predictor_temperature", "seed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How codes are sampled from their logits.

    `temperature`, `top_k` and `top_p` apply to codebook 0, which carries the words. The three
    `predictor_` fields apply to the residual codebooks. A temperature of 0 is greedy;
    `temperature=0` alone makes both greedy. Values outside `BOUNDS` raise RequestError.
    """

    temperature: float = 0.9  # of codebook 0, which carries the words; 0 is greedy
    top_k: int = 50  # codes to draw from; 0 keeps every code
    top_p: float = 1.0  # probability mass of the codes to draw from
    repetition_penalty: float = 1.05  # codebook 0 only; 1 is none
    predictor_temperature: float | None = None  # None: greedy if the talker is, else 0.9
    predictor_top_k: int = 50  # of the residual codebooks
    predictor_top_p: float = 1.0  # of the residual codebooks
    min_frames: int = MIN_FRAMES  # of each utterance; the end token is suppressed before
    max_frames: int = 8191  # of each utterance, in frames of 80 ms
    seed: int | None = None  # None: a random seed

    def __post_init__(self) -> None:
        for name in self.__slots__:
            self._settle(name, getattr(self, name))
        self._check()

    def _check(self) -> None:
        if self.min_frames > self.max_frames:
            if self.min_frames > MIN_FRAMES:
                raise _too_few_frames(self.min_frames, self.max_frames)
            object.__setattr__(self, "min_frames", self.max_frames)

    def _settle(self, name: str, value: object) -> None:
        """Check a field and convert it to a Python number."""
        if value is not None or name not in OPTIONAL:
            value = as_sampling_number(name, value)
        object.__setattr__(self, name, value)

    @property
    def residual_temperature(self) -> float:
        """The predictor's temperature, with its default filled in."""
        if self.predictor_temperature is not None:
            return self.predictor_temperature
        return 0.0 if self.temperature == 0 else 0.9

    def replace(self, **changes: Any) -> SamplingParams:
        """Copy with changed fields. Unknown names raise RequestError.

        Args:
            changes: New values by field name.
        """
        if unknown := changes.keys() - SamplingParams.__dataclass_fields__.keys():
            raise RequestError(
                f"no sampling argument named {', '.join(sorted(unknown))}; "
                f"try one of: {', '.join(sorted(self.__slots__))}"
            )
        params = object.__new__(SamplingParams)
        for name in self.__slots__:  # the values of this object were checked
            object.__setattr__(params, name, getattr(self, name))
        for name, value in changes.items():
            params._settle(name, value)
        params._check()
        if params.temperature == 0 and "temperature" in changes:
            greedy = changes.get("predictor_temperature", 0.0)
            params = dataclasses.replace(params, predictor_temperature=greedy)
        if changes.get("min_frames", 0) > params.max_frames:
            raise _too_few_frames(changes["min_frames"], params.max_frames)
        return params


class CheckpointDefault(Enum):
    """The default of a sampling option: the value in the checkpoint's files."""

    VALUE = "checkpoint default"

    def __repr__(self) -> str:
        return str(self.value)


FROM_CHECKPOINT: Any = CheckpointDefault.VALUE


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """The fields of SamplingParams as options of a request."""

    temperature: Annotated[float, "Randomness of the words; 0 is greedy."] = FROM_CHECKPOINT
    top_k: Annotated[int, "Codes to draw from; 0 keeps every code."] = FROM_CHECKPOINT
    top_p: Annotated[float, "Probability mass of the codes to draw from."] = FROM_CHECKPOINT
    repetition_penalty: Annotated[float, "Above 1: repeat fewer codes."] = FROM_CHECKPOINT
    predictor_temperature: Annotated[
        float | None, "Randomness of the sound; None: greedy if the words are, else 0.9."
    ] = FROM_CHECKPOINT
    predictor_top_k: Annotated[int, "`top_k` of the residual codebooks."] = FROM_CHECKPOINT
    predictor_top_p: Annotated[float, "`top_p` of the residual codebooks."] = FROM_CHECKPOINT
    min_frames: Annotated[int, "Shortest utterance, in frames of 80 ms."] = FROM_CHECKPOINT
    max_frames: Annotated[
        int, "Longest speech without pauses, in frames of 80 ms; longer speech ends as `length`."
    ] = FROM_CHECKPOINT
    seed: Annotated[int | None, "Same seed, same speech; None draws one."] = FROM_CHECKPOINT

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling options that replace the checkpoint's values."""
        return {
            name: value
            for name in SamplingOptions.__dataclass_fields__
            if (value := getattr(self, name)) is not FROM_CHECKPOINT
        }


def as_whole_number(name: str, value: object) -> int:
    """Convert an integer of any library to int. Other values raise RequestError."""
    if type(value) is int:  # fast path: checking `Integral` is slower
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RequestError(f"{name} must be a whole number, not {shown(value)}")
    return int(value)


def check_least(name: str, value: object, least: int) -> None:
    """Raise RequestError unless the value is a whole number of at least `least`."""
    if as_whole_number(name, value) < least:
        raise RequestError(f"{name} must be {least} or more, not {shown(value)}")


def as_sampling_number(name: str, value: object) -> float:
    """Convert a sampling option to a Python number. Values out of bounds raise RequestError."""
    number = as_whole_number(name, value) if name in WHOLE_NUMBERS else _as_number(name, value)
    if number not in BOUNDS[name]:
        raise RequestError(f"{name} must be {BOUNDS[name]}, not {shown(value)}")
    return number


def _as_number(name: str, value: object) -> float:
    if type(value) is float:  # fast path: checking `Real` is slower
        return value
    if isinstance(value, bool) or not isinstance(value, Real):  # includes numpy's numbers
        raise RequestError(f"{name} must be a number, not {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _written(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def _too_few_frames(min_frames: int, max_frames: int) -> RequestError:
    return RequestError(
        f"min_frames must be at most max_frames, which is {max_frames}, not {shown(min_frames)}"
    )


def shown(value: object) -> str:
    """A short form of any value for an error message."""
    try:
        words = repr(value)
    except ValueError:  # Python does not print integers of thousands of digits
        return f"a {type(value).__name__} of thousands of digits"
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"
    return words if len(words) <= MAX_SHOWN else words[:MAX_SHOWN] + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word of the text and its time in the audio."""

    text: str  # as written, with its punctuation: "Dr.", "$5,"
    start_s: float  # in the whole audio
    end_s: float  # in the whole audio
    start_char: int  # offset in the given text
    end_char: int  # offset of the first character after the word


def join_words(parts: Iterable[Sequence[Word] | None]) -> tuple[Word, ...] | None:
    """The words of all parts. None if a part has no timings: some words would look like all."""
    words = list[Word]()
    for part in parts:
        if part is None:
            return None
        words += part
    return tuple(words)


def move_words(
    words: Iterable[Word] | None, seconds: float, length_s: float = math.inf, speed: float = 1.0
) -> tuple[Word, ...] | None:
    """The words at `speed`, then `seconds` later, within 0 and `length_s`; None stays None."""

    def move(time_s: float) -> float:
        return min(max(0.0, time_s / speed + seconds), length_s)

    if words is None:
        return None
    return tuple(
        dataclasses.replace(one, start_s=move(one.start_s), end_s=move(one.end_s)) for one in words
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Size, time and completeness of speech."""

    text_tokens: int  # token ids of the text
    frames: int  # frames of 80 ms
    audio_s: float  # seconds of audio
    wall_s: float  # seconds from the call to the end
    seed: int  # the same seed gives the same codes
    first_audio_ms: float | None = None  # from the call to the first samples
    audible_ms: float | None = None  # from the call to the first sample above -50 dBFS
    completeness: float | None = None  # share of words that were spoken; None: unknown
    missing_words: tuple[str, ...] = ()  # words that were not spoken
    retries: int = 0  # utterances that were spoken again
    num_words: int = 0  # words that were checked
    skipped: tuple[str, ...] = ()  # parts of the text that the checkpoint cannot read

    @classmethod
    def total(
        cls, parts: Sequence[Usage], *, audio_s: float, wall_s: float, first_audio_ms: float | None
    ) -> Usage:
        """Add up parts. Times are arguments, because the times of parts overlap."""
        return cls(
            text_tokens=sum(part.text_tokens for part in parts),
            frames=sum(part.frames for part in parts),
            audio_s=audio_s,
            wall_s=wall_s,
            seed=parts[0].seed if parts else 0,
            first_audio_ms=first_audio_ms,
            audible_ms=first_audio_ms,  # the lines of a dialogue are trimmed
            completeness=total_completeness(parts),
            missing_words=tuple(word for part in parts for word in part.missing_words),
            retries=sum(part.retries for part in parts),
            num_words=sum(part.num_words for part in parts),
            skipped=tuple(one for part in parts for one in part.skipped),
        )

    @property
    def times_real_time(self) -> float:
        """Seconds of audio per second of wall time."""
        return self.audio_s / self.wall_s if self.wall_s else float("inf")


def stream_repr(stream: object, usage: Usage | None, reason: FinishReason | None) -> str:
    """The `repr` of a stream: `<Stream, 1.31 s, stop>`."""
    audio_s = 0.0 if usage is None else usage.audio_s
    return f"<{type(stream).__name__}, {audio_s:.2f} s, {reason or 'open'}>"


def total_completeness(parts: Iterable[Usage]) -> float | None:
    """The share of all words; None if the share of a part with text is unknown."""
    num_words, num_right = 0, 0.0
    for part in parts:
        if not part.text_tokens:
            continue
        if part.completeness is None:
            return None
        num_words += part.num_words
        num_right += part.completeness * part.num_words
    return num_right / num_words if num_words else None


def language_name(language: str) -> str:
    """Map `English`, `en` and `en-US` to `english`. Unknown names stay, in lower case."""
    key = language.strip().lower().replace("_", "-")
    return LANGUAGES.get(key.split("-")[0], language.strip().lower()) or AUTO_LANGUAGE
