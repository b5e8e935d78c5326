"""The checkpoint's configuration as frozen dataclasses, with the field names of config.json.

`config_file.py` reads them. Dimensions have no defaults: those of the official classes fit no
released model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from vivace.arguments import check_choice
from vivace.errors import CheckpointError, UnsupportedRequestError
from vivace.speech import LIVE_MODES, LiveMode

ModelType = Literal["base", "custom_voice", "voice_design"]
MODEL_TYPES: tuple[ModelType, ...] = ("base", "custom_voice", "voice_design")

Weights = Literal["full", "fp8", "int8", "int4"]
"""`full`: as in the checkpoint; `fp8`: the predictor's matrices and the talker's MLPs rounded;
`int8` and `int4`: integer matrices, for a CPU."""
IntWeights = Literal["int8", "int4"]
QUANT_METHOD = "vivace"  # the layout of `model/quantized_layers.py`

NO_CODE = -1  # a codebook that a row does not use
SPEAKER = -2  # in codebook 0: the speaker's vector is added to this row


@dataclass(frozen=True, slots=True, kw_only=True)
class StackConfig:
    """The dimensions that every stack of transformer layers has."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedConfig(StackConfig):
    """A stack with RMSNorm and a gated MLP."""

    rms_norm_eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorConfig(GatedConfig):
    """The code predictor: codebooks 1 and up of one frame."""

    vocab_size: int
    num_code_groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerConfig(GatedConfig):
    """The talker: text and codes so far to codebook 0 of the next frame."""

    vocab_size: int
    text_vocab_size: int
    text_hidden_size: int
    num_code_groups: int
    max_position_embeddings: int
    codec_pad_id: int
    codec_bos_id: int
    codec_eos_token_id: int
    codec_think_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int
    code_predictor_config: PredictorConfig
    codec_language_id: Mapping[str, int] = field(default_factory=dict)
    spk_id: Mapping[str, int] = field(default_factory=dict)
    spk_is_dialect: Mapping[str, str | bool] = field(default_factory=dict)

    @property
    def has_projection(self) -> bool:
        """Whether talker vectors are narrowed before they enter the predictor."""
        return self.hidden_size != self.code_predictor_config.hidden_size


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerEncoderConfig:
    """The x-vector network; only `enc_dim` and `sample_rate` are in the released files."""

    enc_dim: int
    sample_rate: int
    mel_dim: int = 128
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingConfig:
    """How to prepare text for the model. Absent in released files: their text stays unchanged."""

    normalize: bool = False  # spell out English numbers, dates, capitals and signs
    # Respellings of letters in spelled words such as "A I", after normalization.
    letter_names: Mapping[str, str] = field(default_factory=dict)
    strip_end: bool = False  # remove white space at the end of an utterance
    plain_breaks: bool = False  # line breaks end utterances; the tokenizer gets single spaces only
    plain_ellipsis: bool = False  # an ellipsis is read as a comma or a full stop
    plain_quotes: bool = False  # remove quotation marks
    end_stop: bool = False  # an utterance without punctuation at its end gets a full stop
    min_utterance_chars: int = 0  # a shorter utterance is not extended by the next sentence
    max_utterance_chars: int = 300
    seam_s: float = 0.15  # silence added between utterances
    paragraph_s: float = 0.5  # silence added between paragraphs
    silence_rms: float = 0.0  # noise level of the voice's silence, used for pauses
    live: LiveMode = "word"  # unit in which live text is passed on

    def __post_init__(self) -> None:
        for name in ("seam_s", "paragraph_s"):
            if not 0 < getattr(self, name) <= 10:
                raise CheckpointError(
                    f"{name} must be above 0 and at most 10 s, not {getattr(self, name)}"
                )
        if not 0 <= self.min_utterance_chars <= self.max_utterance_chars:
            raise CheckpointError(
                f"min_utterance_chars must be 0 to {self.max_utterance_chars}, "
                f"not {self.min_utterance_chars}"
            )
        if not 0 <= self.silence_rms <= 0.01:
            raise CheckpointError(f"silence_rms must be 0 to 0.01, not {self.silence_rms}")
        for letter, name in self.letter_names.items():
            is_letter = len(letter) == 1 and "A" <= letter <= "Z"
            if not is_letter or not isinstance(name, str) or not name.isalpha():
                raise CheckpointError(
                    f"letter_names must map capital letters to words, not {letter!r} to {name!r}"
                )
        if self.live not in LIVE_MODES:
            raise CheckpointError(f"live must be one of {LIVE_MODES}, not {self.live!r}")


@dataclass(frozen=True, slots=True)
class Head:
    """One attention head of the talker."""

    layer: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingConfig:
    """The talker's attention head that follows the text; not in the released files."""

    layer: int
    head: int

    @property
    def followed(self) -> Head:
        return Head(self.layer, self.head)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationConfig:
    """Written by `vivace quantize`; not in the released files."""

    quant_method: str
    weights: IntWeights

    def __post_init__(self) -> None:
        known = {"quant_method": (QUANT_METHOD,), "weights": get_args(IntWeights)}
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise CheckpointError(
                    f"quantization_config: {name} is {getattr(self, name)!r}; "
                    f"only {' and '.join(values)} can be loaded"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """config.json of a talker checkpoint."""

    tokenizer_type: str
    tts_model_size: str
    tts_model_type: ModelType
    tts_pad_token_id: int
    tts_bos_token_id: int
    tts_eos_token_id: int
    im_start_token_id: int
    im_end_token_id: int
    talker_config: TalkerConfig
    speaker_encoder_config: SpeakerEncoderConfig | None = None
    reading_config: ReadingConfig = field(default_factory=ReadingConfig)
    timing_config: TimingConfig | None = None  # None: chosen at the first request with timings
    quantization_config: QuantizationConfig | None = None  # None: the weights are floating point

    def __post_init__(self) -> None:
        timing, talker = self.timing_config, self.talker_config
        sizes = talker.num_hidden_layers, talker.num_attention_heads
        if timing and not (0 <= timing.layer < sizes[0] and 0 <= timing.head < sizes[1]):
            raise CheckpointError(
                f"timing_config names head {timing.head} of layer {timing.layer}, and the talker "
                f"has {sizes[0]} layers of {sizes[1]} heads"
            )

    @property
    def can_clone(self) -> bool:
        """Whether the checkpoint converts recordings to speaker vectors and speaks with them."""
        return self.tts_model_type == "base" or self.speaker_encoder_config is not None

    @property
    def has_presets(self) -> bool:
        return self.tts_model_type == "custom_voice"

    @property
    def honours_instruct(self) -> bool:
        """Whether the checkpoint follows instructions (presets: only larger sizes)."""
        is_small_preset = self.tts_model_type == "custom_voice" and self.tts_model_size == "0b6"
        return self.tts_model_type != "base" and not is_small_preset


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecDecoderConfig(GatedConfig):
    """Codes to samples."""

    latent_dim: int
    codebook_dim: int
    codebook_size: int
    decoder_dim: int
    sliding_window: int
    num_quantizers: int
    num_semantic_quantizers: int
    upsample_rates: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecEncoderConfig(StackConfig):
    """Samples to codes: a Mimi encoder."""

    audio_channels: int
    num_filters: int
    kernel_size: int
    last_kernel_size: int
    residual_kernel_size: int
    num_residual_layers: int
    dilation_growth_rate: int
    compress: int
    upsampling_ratios: tuple[int, ...]
    norm_eps: float
    codebook_size: int
    codebook_dim: int
    vector_quantization_hidden_dimension: int
    num_quantizers: int
    num_semantic_quantizers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecConfig:
    """config.json of the speech tokenizer."""

    model_type: str
    encoder_valid_num_quantizers: int  # 0: the encoder is not trained
    input_sample_rate: int
    output_sample_rate: int
    decode_upsample_rate: int
    encode_downsample_rate: int
    decoder_config: CodecDecoderConfig
    encoder_config: CodecEncoderConfig
    encoder_delay: int = 0  # frames that the encoder reads after a frame before it gives its codes

    @property
    def has_encoder(self) -> bool:
        """Whether the codec converts audio to codes."""
        return self.encoder_valid_num_quantizers > 0

    def require_encoder(self, what: str, instead: str) -> None:
        """Raise UnsupportedRequestError if the codec has no trained encoder."""
        if not self.has_encoder:
            raise UnsupportedRequestError(
                f"the codec of this checkpoint has no trained encoder, so it cannot {what}; "
                f"{instead}"
            )


def check_weights(weights: str) -> None:
    check_choice("weights", weights, get_args(Weights))
