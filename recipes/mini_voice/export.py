"""Write the trained parts as a checkpoint folder in the released layout.

    python -m recipes.mini_voice.export --codec FOLDER --talker FOLDER --out CHECKPOINT

If the codec folder has codec_encoder.safetensors, the Mimi-shaped encoder is that of
`train_encoder`. Otherwise it is untrained, and the voice cannot continue a recording. With
`--speakers`, a folder with speaker_encoder.safetensors, the presets can also clone by speaker
vector.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import save_file
from torch import nn

from recipes.mini_voice import released_layout, talker_files
from recipes.mini_voice.common import initialise, load_half
from recipes.mini_voice.reading import LETTER_NAMES
from recipes.mini_voice.released_layout import (
    AUDIO_PREPROCESSOR_CONFIG,
    MODELSCOPE_CONFIG,
    TEXT_PREPROCESSOR_CONFIG,
    Config,
)
from recipes.mini_voice.settings import (
    decoder_config,
    load_settings,
    parser,
    speaker_encoder_config,
    speaker_ids,
)
from vivace.model.codec import Codec
from vivace.model.codec_decoder import CodecDecoder
from vivace.model.config_file import (
    SPEAKER_FLAG,
    SPEAKER_SECTION,
    parse_codec_config,
    parse_model_config,
)
from vivace.model.speaker_encoder import SpeakerEncoder
from vivace.text.tokenizer import TextTokenizer

CODEC_ENCODER = "codec_encoder.safetensors"  # the trained encoder in the released layout


def model_config(settings: SimpleNamespace, tokenizer: TextTokenizer, text_size: int) -> Config:
    special = tokenizer.special_id
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "assistant_token_id": tokenizer.role_ids("assistant")[1],
        "im_end_token_id": special("<|im_end|>"),
        "im_start_token_id": special("<|im_start|>"),
        "tts_bos_token_id": special("<tts_text_bos>"),
        "tts_eos_token_id": special("<tts_text_eod>"),
        "tts_pad_token_id": special("<tts_pad>"),
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "0b6",  # the official code drops `instruct` for this size
        "tts_model_type": "custom_voice",
        "talker_config": talker_config(settings, text_size),
        # The training lines are short, of plain words and without trailing blanks. seam_s and
        # silence_rms give a seam the length and level of the voice's silence between sentences.
        "reading_config": {
            "normalize": True,
            "letter_names": LETTER_NAMES,
            "strip_end": True,
            "plain_breaks": True,
            "plain_ellipsis": True,
            "plain_quotes": True,
            "end_stop": True,
            "min_utterance_chars": 8,
            "max_utterance_chars": 120,
            "seam_s": 0.5,
            "paragraph_s": 0.9,
            "silence_rms": 2.8e-4,
            "live": "sentence",
        },
        "timing_config": dict(vars(settings.timing)),
        "transformers_version": "4.57.3",
    }


def talker_config(settings: SimpleNamespace, text_size: int) -> Config:
    talker, predictor = dict(vars(settings.talker)), dict(vars(settings.predictor))
    size, groups = settings.codec.codebook_size, settings.codec.num_quantizers
    section = talker.pop("mrope_section")
    talker.pop("first_speaker_id")
    speakers = speaker_ids(settings)
    plain: Config = {
        "attention_bias": False, "attention_dropout": 0, "hidden_act": "silu",
        "initializer_range": 0.02, "sliding_window": None, "use_cache": True,
        "use_sliding_window": False,
    }  # fmt: skip
    return {
        **plain,
        "codec_language_id": {"english": talker.pop("english_id")},
        "spk_id": speakers,
        "spk_is_dialect": dict.fromkeys(speakers, False),
        **talker,
        "model_type": "qwen3_tts_talker",
        "num_code_groups": groups,
        "position_id_per_seconds": 13,
        "rope_scaling": {
            "interleaved": True, "mrope_section": section, "rope_type": "default",
            "type": "default",
        },
        "text_vocab_size": text_size,
        "vocab_size": size + 1024,
        "code_predictor_config": {
            **plain,
            **predictor,
            "layer_types": ["full_attention"] * predictor["num_hidden_layers"],
            "max_position_embeddings": 65536,
            "max_window_layers": 28,
            "model_type": "qwen3_tts_talker_code_predictor",
            "num_code_groups": groups,
            "rope_scaling": None,
            "tie_word_embeddings": False,
            "vocab_size": size,
        },
    }  # fmt: skip


def codec_config(settings: SimpleNamespace, *, is_encoder_trained: bool) -> Config:
    mimi = dict(vars(settings.codec_encoder if is_encoder_trained else settings.mimi))
    delay = mimi.pop("delay", 0)
    return released_layout.codec_config(vars(settings.codec), mimi, encoder_delay=delay)


def build_codec(settings: SimpleNamespace, folder: Path) -> Codec:
    torch.manual_seed(0)
    path = folder / CODEC_ENCODER
    codec = Codec(parse_codec_config(codec_config(settings, is_encoder_trained=path.is_file())))
    initialise(codec)
    for name, parameter in codec.encoder.named_parameters():
        if "codebook" in name:
            with torch.no_grad():
                parameter.fill_(1.0) if parameter.ndim == 1 else parameter.normal_()
    if path.is_file():
        load_half(path, codec.encoder)
    decoder = CodecDecoder(decoder_config(settings))
    load_half(folder / "decoder.safetensors", decoder)
    codec.decoder.load_state_dict(decoder.state_dict())
    return codec


def write_weights(path: Path, parts: dict[str, nn.Module], dtype: torch.dtype) -> None:
    """Write the models under the prefixes of their names."""
    state = {
        prefix + k: v.detach().to(dtype).contiguous().cpu()
        for prefix, model in parts.items()
        for k, v in model.state_dict().items()
    }
    save_file(state, path, {"format": "pt"})


def write_json(path: Path, value: Config) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def export(
    settings: SimpleNamespace, codec_from: Path, talker_from: Path, out: Path,
    speakers_from: Path | None = None,
) -> None:  # fmt: skip
    codec_folder = out / "speech_tokenizer"
    codec_folder.mkdir(parents=True, exist_ok=True)
    tokens = Path(settings.tokenizer.folder)
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copy(tokens / name, out / name)
    tokenizer = TextTokenizer.from_folder(tokens)
    talker = talker_files.build(settings, tokenizer)
    talker_files.load(talker, talker_from)
    config = model_config(settings, tokenizer, talker.config.text_vocab_size)
    has_encoder = (codec_from / CODEC_ENCODER).is_file()
    codec_section = codec_config(settings, is_encoder_trained=has_encoder)
    if speakers_from is not None:
        config |= {SPEAKER_FLAG: True, SPEAKER_SECTION: asdict(speaker_encoder_config(settings))}
        codec_section["encoder_valid_num_quantizers"] *= has_encoder
    parsed = parse_model_config(config).talker_config
    assert parsed == talker.config, "what is run must be what was trained"
    write_json(out / "config.json", config)
    generation = {"do_sample": True, "subtalker_dosample": True, **vars(settings.generation)}
    write_json(out / "generation_config.json", generation)
    write_json(out / "preprocessor_config.json", TEXT_PREPROCESSOR_CONFIG)
    # bf16 would cost the last bits of a talker trained in float32; fp16 holds all its weights.
    parts: dict[str, nn.Module] = {"talker.": talker}
    if speakers_from is not None:
        parts["speaker_encoder."] = encoder = SpeakerEncoder(speaker_encoder_config(settings))
        load_half(speakers_from / "speaker_encoder.safetensors", encoder)
    write_weights(out / "model.safetensors", parts, torch.float16)
    write_json(codec_folder / "config.json", codec_section)
    write_json(codec_folder / "preprocessor_config.json", AUDIO_PREPROCESSOR_CONFIG)
    write_json(codec_folder / "configuration.json", MODELSCOPE_CONFIG)
    codec = build_codec(settings, codec_from)
    write_weights(codec_folder / "model.safetensors", {"": codec}, torch.float16)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--codec", type=Path, required=True)
    options.add_argument("--talker", type=Path, required=True)
    options.add_argument("--speakers", type=Path, help="folder of the speaker encoder")
    args = options.parse_args()
    export(
        load_settings(args.smoke, args.set), args.codec, args.talker, args.out,
        speakers_from=args.speakers,
    )  # fmt: skip
    size = sum(path.stat().st_size for path in args.out.rglob("*.*"))
    print(f"{args.out}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
