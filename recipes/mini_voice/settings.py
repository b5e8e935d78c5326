"""The recipe's settings: config.toml as nested namespaces, and the two model configurations."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tomllib

from recipes.mini_voice.voices import TRAINING_VOICES
from vivace.model.config import (
    CodecDecoderConfig,
    PredictorConfig,
    SpeakerEncoderConfig,
    TalkerConfig,
)

CONFIG = Path(__file__).with_name("config.toml")
CODEC_SPECIALS = 1024  # ids after the codebook; the official code suppresses exactly these
SAMPLE_RATE = 24_000
FRAME = 1920  # samples of one frame, 80 ms
LABEL = 960  # samples of one phoneme label, two a frame
NUM_PHONEMES = 178  # ids of the teacher's alphabet


def load_settings(
    smoke: bool = False, overrides: list[str] | None = None, *, on_gpu: bool = False
) -> SimpleNamespace:
    """config.toml, with [gpu] and [smoke] over it and then `section.key=value` overrides."""
    raw: dict[str, Any] = tomllib.loads(CONFIG.read_text())
    for name, is_used in (("gpu", on_gpu), ("smoke", smoke)):
        for section, values in raw.pop(name).items():
            if is_used:
                raw[section].update(values)
    for item in overrides or []:
        path, _, value = item.partition("=")
        section, _, key = path.partition(".")
        if key not in raw[section]:
            raise SystemExit(f"config.toml has no key {path}")
        raw[section][key] = tomllib.loads(f"v = {value}")["v"]
    return SimpleNamespace(**{name: SimpleNamespace(**values) for name, values in raw.items()})


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options every stage has."""
    options = argparse.ArgumentParser(description=doc)
    options.add_argument("--smoke", action="store_true", help="tiny sizes, a few steps")
    options.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    options.add_argument("--out", type=Path, default=Path("build/mini_voice"))
    options.add_argument("--seconds", type=float, help="the stage's time box")
    options.add_argument("--no-graph", action="store_true", help="do not capture CUDA graphs")
    options.add_argument("--resume", type=Path, help="folder with checkpoints to begin from")
    return options


def decoder_config(settings: SimpleNamespace) -> CodecDecoderConfig:
    values = dict(vars(settings.codec))
    for key in ("upsample_rates", "upsampling_ratios"):
        values[key] = tuple(values[key])
    return CodecDecoderConfig(**values)


def speaker_encoder_config(settings: SimpleNamespace) -> SpeakerEncoderConfig:
    values = dict(vars(settings.speaker_encoder))
    return SpeakerEncoderConfig(**values | {"enc_channels": tuple(values["enc_channels"])})


def speaker_ids(settings: SimpleNamespace) -> dict[str, int]:
    """Ids of the preset speakers. The training voices have speaker vectors instead."""
    first = settings.talker.first_speaker_id
    names = settings.data.speakers
    return {name: first + place for place, name in enumerate(names) if name != TRAINING_VOICES}


def talker_config(settings: SimpleNamespace, text_vocab_size: int) -> TalkerConfig:
    values = dict(vars(settings.talker))
    for name in ("mrope_section", "first_speaker_id"):
        values.pop(name)
    english, speakers = values.pop("english_id"), speaker_ids(settings)
    size = settings.codec.codebook_size
    predictor = PredictorConfig(
        vocab_size=size, num_code_groups=settings.codec.num_quantizers, **vars(settings.predictor)
    )
    return TalkerConfig(
        **values,
        vocab_size=size + CODEC_SPECIALS,
        text_vocab_size=text_vocab_size,
        num_code_groups=settings.codec.num_quantizers,
        code_predictor_config=predictor,
        codec_language_id={"english": english},
        spk_id=speakers,
        spk_is_dialect=dict.fromkeys(speakers, False),
    )
