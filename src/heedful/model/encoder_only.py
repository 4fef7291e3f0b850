"""The encoder-only model: reads a text, with heads that say something about it.      Devlin et al. 2019 (BERT)"""

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from heedful.config import Config, Size
from heedful.model.embedding import EmbeddingConfig, new_table
from heedful.model.heads import HeadConfig, MaskedLmConfig
from heedful.model.position.learned import LearnedConfig
from heedful.model.stack import StackConfig


class EncoderOnlyConfig(Config):
    """`token_types` learned vectors tell the first text of a pair from the second (BERT); 0 = none."""

    kind: Literal["encoder_only"] = "encoder_only"
    vocab: Size = 32000
    width: Size = 512
    token_types: int = Field(0, ge=0)
    embedding: EmbeddingConfig = EmbeddingConfig(scale=False)
    encoder: StackConfig = Field(default_factory=lambda: StackConfig(position=LearnedConfig()))
    heads: list[HeadConfig] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits_together(self) -> "EncoderOnlyConfig":
        self.encoder.check("encoder", width=self.width, input_width=self.input_width, causal=False, cross=False)
        names = [head.kind for head in self.heads]
        if len(set(names)) < len(names):
            raise ValueError(f"heads {names} name one twice; a model has each head once")
        return self

    @property
    def input_width(self) -> int:
        return self.embedding.width or self.width

    def build(self) -> "EncoderOnly":
        return EncoderOnly(self)

    def parameters(self) -> dict[str, int]:
        """By component, from closed formulas."""
        encoder = self.encoder.parameters(width=self.width, input_width=self.input_width)
        counts = {"embedding": self.embedding.parameters(self.vocab, self.width)}
        if self.token_types:
            counts["token_types"] = self.token_types * self.input_width
        counts |= {f"encoder.{part}": count for part, count in encoder.items()}
        for head in self.heads:
            counts[f"heads.{head.kind}"] = (
                head.parameters(
                    width=self.width, table_width=self.input_width, vocab=self.vocab, norm=self.encoder.norm
                )
                if isinstance(head, MaskedLmConfig)
                else head.parameters(width=self.width)
            )
        return counts


class EncoderOnly(nn.Module):
    """A state for each token that has seen the whole text, and heads that read them."""

    def __init__(self, config: EncoderOnlyConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = config.embedding.build(config.vocab, config.width)
        self.token_types = new_table(config.token_types, config.input_width) if config.token_types else None
        self.encoder = config.encoder.build(width=config.width, input_width=config.input_width, causal=False)
        self.heads = nn.ModuleDict({head.kind: _build_head(head, config) for head in config.heads})

    def forward(
        self,
        tokens: Tensor,
        *,
        token_types: Tensor | None = None,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Token ids (batch query) -> states (batch query width); `predict` reads them."""
        x = self.embedding(tokens)
        if self.token_types is not None:
            x = x + self.token_types[torch.zeros_like(tokens) if token_types is None else token_types]
        return self.encoder(x, valid=valid, segments=segments, positions=positions)

    def predict(self, head: str, states: Tensor) -> Tensor:
        """What this head says: logits, or the pooled vector."""
        if head not in self.heads:
            raise ValueError(f"this model has no head {head!r}; it has {', '.join(self.heads) or 'none'}")
        if head == "masked_lm":
            return self.heads[head](states, self.embedding)
        return self.heads[head](states)


def _build_head(head: HeadConfig, config: EncoderOnlyConfig) -> nn.Module:
    if isinstance(head, MaskedLmConfig):
        return head.build(
            width=config.width, table_width=config.input_width, vocab=config.vocab, norm=config.encoder.norm
        )
    return head.build(width=config.width)
