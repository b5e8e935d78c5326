"""The body of `POST /v1/audio/speech`: OpenAI's fields and extensions of compatible servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from vivace.audio.formats import BIT_RATES, SpeechFormat
from vivace.audio.speed import MAX_SPEED, MIN_SPEED
from vivace.options import StreamOptions
from vivace.serve.errors import FieldNames, RefusedError, with_field_names
from vivace.serve.input.recording import decode_audio
from vivace.serve.input.validation import ClientInput, Within
from vivace.serve.models.card import Card
from vivace.serve.settings import ServeSettings
from vivace.speech import (
    BOUNDS,
    MAX_INSTRUCT_CHARS,
    Bounds,
    LiveMode,
    OnUnsupported,
    shown,
)
from vivace.voices.voice import MAX_REF_TEXT

if TYPE_CHECKING:
    from typing_extensions import Self

TASKS = {"customvoice": "custom_voice", "voicedesign": "voice_design", "base": "base"}
MAX_EMBEDDING = 8_192  # numbers
MAX_LEXICON = 500  # entries
MAX_NAME_CHARS = 1_000  # of a voice; the longest mix of eight voices is shorter
LATER = "later"  # stands for a text that follows, in messages or events
SAMPLING = ("temperature", "top_k", "top_p", "repetition_penalty", "seed")
OPTIONS = (*SAMPLING, "language", "lexicon", "live", "on_unsupported", "speed", "trim_start")


NAME = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS, "pattern": r"\S"}
NAMED = {  # written out, because OpenAPI resolves no reference inside a body
    "anyOf": [NAME, {"type": "object", "properties": {"id": NAME}, "required": ["id"]}]
}
Spelling = Annotated[str, StringConstraints(min_length=1, max_length=100)]
Respelling = Annotated[str, StringConstraints(min_length=1, max_length=200)]


def _read_name(value: object) -> str:
    """The name of a voice, given as a string or as an object with an `id`."""
    name = value.get("id") if isinstance(value, dict) else value
    if not isinstance(name, str):
        raise ValueError(f'must be a name or {{"id": name}}, not {shown(value)}')
    if not name.strip():
        raise ValueError("the voice's name is empty; leave the field out for the default voice")
    if len(name) > MAX_NAME_CHARS:
        raise ValueError(f"must have at most {MAX_NAME_CHARS:,} characters, not {len(name):,}")
    return name


VoiceName = Annotated[str, BeforeValidator(_read_name), WithJsonSchema(NAMED)]


Seed = Annotated[int, Within(BOUNDS["seed"])]
MaxFrames = Annotated[int, Within(BOUNDS["max_frames"])]
Temperature = Annotated[float, Within(BOUNDS["temperature"])]
TopK = Annotated[int, Within(BOUNDS["top_k"])]
TopP = Annotated[float, Within(BOUNDS["top_p"])]
RepetitionPenalty = Annotated[float, Within(BOUNDS["repetition_penalty"])]
Speed = Annotated[float, Within(Bounds(MIN_SPEED, MAX_SPEED))]
SampleRate = Annotated[int, Within(Bounds(8_000, 48_000))]
BitRate = Annotated[int, Within(BIT_RATES)]


class SpeechRequest(ClientInput):
    """Text to speech."""

    model_config = ConfigDict(title="SpeechRequest")

    input: str = Field(description="The text to speak.")
    model: str | None = Field(None, description="A served model; other names mean the default.")
    voice: VoiceName | None = Field(None, description="A voice's name, or an object with its `id`.")
    speaker: VoiceName | None = Field(None, description="The same as `voice`.")
    instructions: str | None = Field(
        None,
        max_length=MAX_INSTRUCT_CHARS,
        description="How to speak, where the model follows it.",
    )
    response_format: SpeechFormat = Field("mp3", description="The audio format.")
    speed: Speed = Field(1.0, description="1 is normal speed. The pitch stays the same.")
    stream_format: Literal["audio", "sse"] = Field(
        "audio", description="`sse` sends events with base64 audio."
    )
    stream: bool = Field(True, description="False: one complete file with its length.")
    sample_rate: SampleRate | None = Field(None, description="In Hz.")
    bit_rate: BitRate | None = Field(None, description="Of mp3, opus and aac, in bits a second.")
    language: str = Field("auto", description="A name or a code: `English`, `en`, `auto`.")
    live: LiveMode | None = Field(None, description="Speak live text by `word` or by `sentence`.")
    lexicon: dict[Spelling, Respelling] | None = Field(
        None, max_length=MAX_LEXICON, description="Pronunciations: `word: respelling`."
    )
    on_unsupported: OnUnsupported = Field(
        "skip",
        description="Letters that the model does not read: `skip` them and list them in the header "
        "`x-vivace-skipped`, or respond with an `error`.",
    )
    trim_start: bool = Field(
        True, description="Remove silence before the first sound, except for 20 ms."
    )
    word_timestamps: bool = Field(
        False, description="With `stream_format: sse`: send events with the time of each word."
    )
    task_type: str | None = Field(None, description="`CustomVoice`, `VoiceDesign` or `Base`.")
    ref_audio: str | None = Field(None, description="A recording to clone: base64 or a data URI.")
    ref_text: str | None = Field(
        None, max_length=MAX_REF_TEXT, description="The words of the recording."
    )
    x_vector_only_mode: bool = Field(False, description="Clone without `ref_text`.")
    speaker_embedding: list[float] | None = Field(
        None, max_length=MAX_EMBEDDING, description="The speaker vector of a cloned voice."
    )
    seed: Seed | None = Field(None, description="The same seed gives the same speech.")
    max_new_tokens: MaxFrames | None = Field(None, description="Frames of 80 ms.")
    temperature: Temperature | None = Field(
        None, description="Higher values vary more. 0 is greedy; other values are at least 1e-05."
    )
    top_k: TopK | None = Field(None, description="0 keeps every code.")
    top_p: TopP | None = Field(None, description="Keep the most probable codes up to this sum.")
    repetition_penalty: RepetitionPenalty | None = Field(None, description="1 is none.")

    _names: FieldNames = PrivateAttr(default_factory=dict)

    @classmethod
    def read(
        cls,
        fields: Mapping[str, Any],
        settings: ServeSettings | None = None,
        names: FieldNames | None = None,
    ) -> Self:
        """Validate fields. `names`: those that errors name as the client's protocol does."""
        try:
            request = super().read(fields, settings)
        except RefusedError as error:
            raise with_field_names(error, names or {}) from None
        request._names = names or {}
        return request

    @property
    def names(self) -> FieldNames:
        """The client's names of fields that have another name here."""
        is_speaker = self.voice is None and self.speaker is not None
        return {"voice": "speaker", **self._names} if is_speaker else self._names

    @field_validator("task_type")
    @classmethod
    def _read_task(cls, task: str) -> str:
        key = task.replace("_", "").lower()
        if key not in TASKS:
            raise ValueError(f"must be CustomVoice, VoiceDesign or Base, not {shown(task)}")
        return TASKS[key]

    @model_validator(mode="after")
    def _check_text(self, info: ValidationInfo) -> SpeechRequest:
        """The text is not blank, and has at most `max_text_chars` of the server's settings."""
        if not self.input.strip():
            raise RefusedError("input is empty or blank", param="input", code="empty_input")
        if info.context is None:
            return self
        most = info.context.max_text_chars
        if len(self.input) > most:
            raise RefusedError(
                f"input has {len(self.input):,} characters and the limit is {most:,}; split it "
                "into parts",
                param="input",
                code="text_too_long",
            )
        if self.num_chars_respelled > most:
            raise RefusedError(
                f"with its lexicon, input may have {self.num_chars_respelled:,} characters and the "
                f"limit is {most:,}; shorten the respellings",
                param="lexicon",
                code="text_too_long",
            )
        return self

    @property
    def voice_name(self) -> str | None:
        return self.speaker if self.voice is None else self.voice

    @property
    def num_chars_respelled(self) -> int:
        """The largest possible length of the text after its lexicon is applied."""
        text = self.input.lower()
        return len(text) + sum(
            text.count(word.lower()) * max(0, len(respelling) - len(word))
            for word, respelling in (self.lexicon or {}).items()
        )

    @property
    def model_type(self) -> str | None:
        """The type of model that the request needs; None: any."""
        is_clone = self.ref_audio or self.speaker_embedding
        return self.task_type or ("base" if is_clone else None)

    @property
    def is_pinned(self) -> bool:
        """Whether the client wants the speech even if it does not end by itself."""
        return self.seed is not None or self.max_new_tokens is not None

    def options(self) -> StreamOptions:
        """The options of the stream, without `voice` and `instruct`."""
        given = {name: getattr(self, name) for name in OPTIONS}
        given |= {"max_frames": self.max_new_tokens, "timings": self.word_timestamps}
        return StreamOptions(**{name: value for name, value in given.items() if value is not None})

    def check_task(self, card: Card) -> None:
        """Raise RefusedError if the model is not of the type that the request needs."""
        if self.model_type is not None and not card.serves_task(self.model_type):
            names = ("task_type", "ref_audio", "speaker_embedding")
            what = next(name for name in names if getattr(self, name))
            raise RefusedError(
                f"{what} needs a {self.model_type} model and {card.name!r} is a {card.model_type} "
                "one",
                param=what,
                code="unsupported_task",
            )

    def recording(self, settings: ServeSettings) -> bytes | None:
        """The bytes of `ref_audio`."""
        if not self.ref_audio:
            return None
        return decode_audio(self.ref_audio, settings.max_audio_bytes, "ref_audio")
