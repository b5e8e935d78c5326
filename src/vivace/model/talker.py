"""The talker and, inside it as in the checkpoint, the code predictor."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from vivace.model.code_predictor import CodePredictor
from vivace.model.config import SPEAKER, ModelConfig, TalkerConfig, Weights
from vivace.model.layers import Attend, Block, Embedding, Linear, RMSNorm, Rope, TextProjection
from vivace.model.speaker_encoder import SpeakerEncoder

FOLDED_AT_ONCE = 4096  # text ids per pass, to bound its memory


class TalkerBody(nn.Module):
    """Embeddings, layers and final norm."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.codec_embedding = Embedding(config.vocab_size, config.hidden_size)
        self.text_embedding = Embedding(config.text_vocab_size, config.text_hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class UnfoldedTexts(nn.Module):
    """Embedding and projection of text ids, for rows with an adapter."""

    def __init__(self, embedding: nn.Embedding, projection: TextProjection) -> None:
        super().__init__()
        self.embedding, self.projection = embedding, projection

    def forward(self, ids: Tensor, adapters: Tensor) -> Tensor:
        vectors: Tensor = self.projection(self.embedding(ids), adapters)
        return vectors


class Talker(nn.Module):
    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config
        self.model = TalkerBody(config)
        self.text_projection: nn.Module = TextProjection(
            config.text_hidden_size, config.hidden_size
        )
        self.codec_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        self.code_predictor = CodePredictor(config)
        self.unfolded: UnfoldedTexts | None = None  # kept by `fold_texts` for adapters
        self.rope = Rope(config.head_dim, config.rope_theta)

    def forward(
        self,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        attend: Attend,
        adapters: Tensor | None = None,  # int64 [B], the adapter of each row; 0 is none
    ) -> Tensor:
        """Rows [B, T, hidden] to hidden states after the final norm, [B, T, hidden]."""
        for index, layer in enumerate(self.model.layers):
            x = layer(index, x, rope, attend, adapters)
        return self.model.norm(x)

    def text_vectors(self, ids: Tensor, adapters: Tensor | None = None) -> Tensor:
        """Text vectors that are added to rows: ids [...] to [..., hidden].

        `adapters` has one number for each entry of the first dimension, or one for all ids.
        """
        embedded = self.model.text_embedding(ids)
        if isinstance(self.text_projection, TextProjection):
            return self.text_projection(embedded, adapters)
        if self.unfolded is None or adapters is None:
            return embedded
        changed = self.unfolded(ids, adapters)
        return choose_changed(changed, embedded, adapters)

    def fold_texts(self) -> None:
        """Project all text ids once, so that text vectors become a table lookup.

        The table replaces the embedding and the projection and takes no more memory, unless an
        adapter changes the projection. Then both are kept for the rows of such adapters.
        """
        projection = self.text_projection
        if not isinstance(projection, TextProjection):
            return
        if projection.is_adapted:
            self.unfolded = UnfoldedTexts(self.model.text_embedding, projection)
        weight = self.model.text_embedding.weight.detach()
        table = weight.new_empty(len(weight), self.config.hidden_size)
        for rows, out in zip(
            weight.split(FOLDED_AT_ONCE), table.split(FOLDED_AT_ONCE), strict=True
        ):
            out.copy_(projection(rows))
        self.model.text_embedding = Embedding(
            len(table), self.config.hidden_size, _weight=table, _freeze=True
        )
        self.text_projection = nn.Identity()

    def rows(
        self,
        text_ids: Tensor,
        codes: Tensor,
        speaker: Tensor | None = None,
        adapters: Tensor | None = None,  # int64 [1], of all rows
    ) -> Tensor:
        """Input rows: text ids [T] and codes [T, groups] to [T, hidden]."""
        rows = self.code_vectors(codes)
        if speaker is not None:
            rows = torch.where(codes[:, :1] == SPEAKER, speaker.to(rows), rows)
        return rows + self.text_vectors(text_ids, adapters)

    @property
    def code_tables(self) -> list[nn.Embedding]:
        """One per codebook."""
        rest = self.code_predictor.model.codec_embedding
        return [self.model.codec_embedding, *(cast("nn.Embedding", table) for table in rest)]

    def code_vectors(self, codes: Tensor) -> Tensor:
        """Sum of a row's code embeddings, [..., groups] to [..., hidden]; NO_CODE adds nothing.

        One sum over all codebooks: in bfloat16, adding pair by pair would round differently.
        """
        present = codes.ge(0)
        ids = codes.clamp(min=0)
        parts = [table(ids[..., g]) for g, table in enumerate(self.code_tables)]
        vectors = torch.stack(parts, dim=-2)
        return (vectors * present.unsqueeze(-1)).sum(-2)


def choose_changed(changed: Tensor, plain: Tensor, adapters: Tensor) -> Tensor:
    """Rows [n, hidden] of `changed` where the row has an adapter, else of `plain`."""
    return torch.where(adapters[:, None] > 0, changed, plain)


class Qwen3TTS(nn.Module):
    """A whole talker checkpoint: parameter names are those of model.safetensors."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.weights: Weights = "full"
        self.num_adapters = 0  # that rows of a batch can choose
        self.talker = Talker(config.talker_config)
        self.speaker_encoder = (
            SpeakerEncoder(config.speaker_encoder_config) if config.speaker_encoder_config else None
        )

    @property
    def device(self) -> torch.device:
        return self.talker.codec_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of activations; integer weights have types of their own."""
        return self.talker.model.norm.weight.dtype

    @property
    def is_quantized(self) -> bool:
        """Whether the matrices are integers, which only a CPU multiplies."""
        return self.weights in ("int8", "int4")
