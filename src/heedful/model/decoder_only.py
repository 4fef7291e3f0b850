"""The decoder-only model: continues a text.      Radford et al. 2018; the right half of Vaswani's figure 1"""

from typing import Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from heedful.config import Config, Size
from heedful.model.cache import Cache
from heedful.model.embedding import EmbeddingConfig
from heedful.model.heads import VocabularyConfig
from heedful.model.position.learned import LearnedConfig
from heedful.model.stack import StackConfig


class DecoderOnlyConfig(Config):
    kind: Literal["decoder_only"] = "decoder_only"
    vocab: Size = 32000
    width: Size = 512
    tie: Literal["all", "none"] = "all"
    embedding: EmbeddingConfig = EmbeddingConfig(scale=False)
    decoder: StackConfig = Field(default_factory=lambda: StackConfig(placement="pre", position=LearnedConfig()))
    head: VocabularyConfig = Field(default_factory=VocabularyConfig)

    @model_validator(mode="after")
    def _fits_together(self) -> "DecoderOnlyConfig":
        self.decoder.check("decoder", width=self.width, input_width=self.input_width, causal=True, cross=False)
        return self

    @property
    def input_width(self) -> int:
        return self.embedding.width or self.width

    def build(self) -> "DecoderOnly":
        return DecoderOnly(self)

    def parameters(self) -> dict[str, int]:
        """By component, from closed formulas."""
        decoder = self.decoder.parameters(width=self.width, input_width=self.input_width)
        return {
            "embedding": self.embedding.parameters(self.vocab, self.width),
            **{f"decoder.{part}": count for part, count in decoder.items()},
            "head": self.head.parameters(
                width=self.width, table_width=self.input_width, vocab=self.vocab, tied=self.tie == "all"
            ),
        }


class DecoderOnly(nn.Module):
    """p(next token | tokens so far)"""

    def __init__(self, config: DecoderOnlyConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = config.embedding.build(config.vocab, config.width)
        self.decoder = config.decoder.build(width=config.width, input_width=config.input_width, causal=True)
        self.head = config.head.build(
            width=config.width, table_width=config.input_width, vocab=config.vocab, tied=config.tie == "all"
        )

    def forward(
        self,
        tokens: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        prefix: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Token ids (rows query) -> logits (rows query vocab) for the token after each. Facts as in `Stack.forward`."""
        states = self.decode(tokens, valid=valid, segments=segments, prefix=prefix, positions=positions, cache=cache)
        return self.logits(states)

    def decode(
        self,
        tokens: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        prefix: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """-> states, rows query width. With a cache, `tokens` are the new ones; `valid` and `segments` cover all."""
        x = self.embedding(tokens)
        return self.decoder(x, valid=valid, segments=segments, prefix=prefix, positions=positions, cache=cache)

    def logits(self, states: Tensor) -> Tensor:
        """States of any leading shape -> a score for each word."""
        return self.head(states, self.embedding)

    def last_linear(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """(h, W, b) such that logits = W h + b."""
        return self.head.linear(states, self.embedding)

    def new_cache(self, length: int) -> Cache:
        return self.decoder.new_cache(length)
