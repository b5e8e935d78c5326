"""The encoder in the released layout, with the quantizer of a codec in training."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from recipes.mini_voice.codec_model import CodecTrainer
from recipes.mini_voice.common import DEVICE, initialise
from recipes.mini_voice.export import codec_config
from vivace.model.codec_encoder import CodecEncoder, ConvEncoder, ResnetBlock
from vivace.model.config_file import parse_codec_config
from vivace.model.conv import StridedConv1d
from vivace.model.quantizer import EncoderCodebook, EncoderQuantizer

SPEECH_LEVEL = 0.1  # root mean square of the training speech
NEVER_NEAREST = 1e3  # in all dimensions of a code that belongs to another speaker


def build(settings: SimpleNamespace, trainer: CodecTrainer) -> CodecEncoder:
    """An encoder with new layers and with the codebooks and projections of `trainer`."""
    config = parse_codec_config(codec_config(settings, is_encoder_trained=True)).encoder_config
    if config.hidden_size != settings.codec.codebook_dim:
        raise SystemExit("codec_encoder.hidden_size must equal codec.codebook_dim")
    encoder = CodecEncoder(config)
    initialise(encoder)
    _initialise_convolutions(encoder.encoder)
    copy_quantizer(encoder, trainer)
    return encoder.to(DEVICE)


def _initialise_convolutions(body: ConvEncoder) -> None:
    """Scale the weights so that every layer's output has about unit variance."""
    for module in body.modules():
        if isinstance(module, StridedConv1d):
            fan_in = module.conv.weight[0].numel()
            nn.init.normal_(module.conv.weight, std=(1.5 / fan_in) ** 0.5)
            if module.conv.bias is not None:
                nn.init.zeros_(module.conv.bias)
    with torch.no_grad():
        first = body.layers[0]
        assert isinstance(first, StridedConv1d)
        first.conv.weight /= SPEECH_LEVEL
        for block in body.modules():
            if isinstance(block, ResnetBlock):
                last = block.block[-1]
                assert isinstance(last, StridedConv1d)
                last.conv.weight *= 0.3


@torch.no_grad()
def copy_quantizer(encoder: CodecEncoder, trainer: CodecTrainer) -> None:
    """Copy codebooks and projections, so that equal latents give equal codes.

    The released quantizer has no speakers: the offset of the trainer's speaker is subtracted from
    the last codebook, and the codes of other speakers are moved out of reach.
    """
    books, source, halves = trainer.books, trainer.decoder.quantizer, _halves(encoder)
    vectors = books.vectors.clone()
    vectors[-1] -= books.marks[trainer.speaker]
    vectors[-1, books.owner != trainer.speaker] = NEVER_NEAREST
    for half, projections in zip(halves, (source.rvq_first, source.rvq_rest), strict=True):
        half.input_proj.weight.copy_(projections.input_proj.weight)
        half.output_proj.weight.copy_(projections.output_proj.weight)
    for codebook, table in zip(_codebooks(encoder), vectors, strict=True):
        codebook.embed_sum.copy_(table)
        codebook.cluster_usage.fill_(1.0)
        codebook.initialized.fill_(1.0)
    encoder.quantizer.requires_grad_(False)


def _halves(encoder: CodecEncoder) -> tuple[EncoderQuantizer, EncoderQuantizer]:
    """The semantic and the acoustic quantizer."""
    quantizer = encoder.quantizer
    return (
        quantizer.semantic_residual_vector_quantizer,
        quantizer.acoustic_residual_vector_quantizer,
    )


def _codebooks(encoder: CodecEncoder) -> list[EncoderCodebook]:
    modules = [module for half in _halves(encoder) for module in half.modules()]
    return [module for module in modules if isinstance(module, EncoderCodebook)]


def codebook_vectors(encoder: CodecEncoder) -> Tensor:
    """Vectors of all codebooks of an encoder, [books, size, width]."""
    return torch.stack([codebook.vectors() for codebook in _codebooks(encoder)]).detach()


@torch.no_grad()
def agreement(
    encoder: CodecEncoder, trainer: CodecTrainer, recordings: list[Tensor], delay: int
) -> Tensor:
    """The share of frames in which both encoders give the same code, for each codebook."""
    num_books, same = len(trainer.books.usage), []
    for samples in recordings:
        same.append(encoder(samples, num_books, delay) == trainer.encode(samples[None])[0])
    return torch.cat(same).float().mean(0)
