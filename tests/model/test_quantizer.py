"""Codebooks: vectors from sums and usages, the nearest code, and residuals."""

from __future__ import annotations

import pytest
import torch

from vivace.model.quantizer import (
    DecoderCodebook,
    EncoderCodebook,
    EncoderLayer,
    EncoderQuantizer,
)

USAGE = torch.tensor([2.0, 4.0, 1e-9, 0.0, -3.0])
SUMS = torch.arange(1.0, 11.0).reshape(5, 2)
DIVISORS = torch.tensor([2.0, 4.0, 1e-5, 1e-5, 1e-5])


def fill(codebook: EncoderCodebook | DecoderCodebook) -> None:
    name = "embed_sum" if isinstance(codebook, EncoderCodebook) else "embedding_sum"
    with torch.no_grad():
        codebook.cluster_usage.copy_(USAGE)
        getattr(codebook, name).copy_(SUMS)


@pytest.mark.parametrize("kind", [EncoderCodebook, DecoderCodebook])
def test_code_vectors_are_finite_for_unused_codes(
    kind: type[EncoderCodebook] | type[DecoderCodebook],
) -> None:
    codebook = kind(5, 2)
    fill(codebook)
    assert torch.equal(codebook.vectors(), SUMS / DIVISORS[:, None])
    assert torch.isfinite(codebook.vectors()).all()


def test_encoder_layer_returns_nearest_code_and_vector() -> None:
    layer = EncoderLayer(5, 2)
    fill(layer.codebook)
    vectors = layer.codebook.vectors()
    codes, found = layer(vectors[[1, 3, 0]] + 0.01)
    assert codes.tolist() == [1, 3, 0]
    assert torch.equal(found, vectors[[1, 3, 0]])


def test_encoder_layer_codes_the_residual_of_previous_layers() -> None:
    quantizer = EncoderQuantizer(2, 2, 1, 1)
    with torch.no_grad():
        quantizer.input_proj.weight.fill_(1.0)
        for layer, values in zip(quantizer.layers, ([0.0, 10.0], [0.0, 1.0]), strict=True):
            assert isinstance(layer, EncoderLayer)
            layer.codebook.cluster_usage.fill_(1.0)
            layer.codebook.embed_sum.copy_(torch.tensor(values)[:, None])
    x = torch.tensor([[[0.1, 0.9, 10.2, 11.1]]])
    assert quantizer(x, 2).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert quantizer(x, 1).tolist() == [[0], [0], [1], [1]]
