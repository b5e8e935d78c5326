"""The code predictor: codebooks 1 and up of a frame, from its hidden state and codebook 0."""

from __future__ import annotations

from torch import Tensor, nn

from vivace.model.config import TalkerConfig
from vivace.model.layers import Attend, Block, Embedding, Linear, RMSNorm, Rope
from vivace.model.lora import adapted


class PredictorBody(nn.Module):
    """Embeddings (of the talker's width), layers and final norm."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        inner = config.code_predictor_config
        self.layers = nn.ModuleList(Block(inner) for _ in range(inner.num_hidden_layers))
        self.norm = RMSNorm(inner.hidden_size, inner.rms_norm_eps)
        self.codec_embedding = nn.ModuleList(
            Embedding(inner.vocab_size, config.hidden_size)
            for _ in range(inner.num_code_groups - 1)
        )


class CodePredictor(nn.Module):
    """Embedding g and head g serve codebook g + 1."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        inner = config.code_predictor_config
        self.config = inner
        self.model = PredictorBody(config)
        self.lm_head = nn.ModuleList(
            Linear(inner.hidden_size, inner.vocab_size, bias=False)
            for _ in range(inner.num_code_groups - 1)
        )
        self.small_to_mtp_projection = (
            Linear(config.hidden_size, inner.hidden_size)
            if config.has_projection
            else nn.Identity()
        )
        self.rope = Rope(inner.head_dim, inner.rope_theta)

    def forward(
        self,
        x: Tensor,
        start: int,
        attend: Attend,
        adapters: Tensor | None = None,  # int64 [B], the adapter of each row; 0 is none
    ) -> Tensor:
        """Rows of the talker's width from position `start` to normed hidden states."""
        x = adapted(self.small_to_mtp_projection, x, adapters)
        rope = self.rope.span(start, x.shape[1], x)
        for index, layer in enumerate(self.model.layers):
            x = layer(index, x, rope, attend, adapters)
        return self.model.norm(x)
