"""The encoder-decoder: reads a source, writes a target.      Vaswani et al. 2017, figure 1"""

from collections.abc import Callable
from typing import Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from heedful.config import Config, Size
from heedful.model.cache import Cache
from heedful.model.embedding import Embedding, EmbeddingConfig
from heedful.model.heads import VocabularyConfig
from heedful.model.stack import Memory, StackConfig


class EncoderDecoderConfig(Config):
    """`vocab` is the target's and, unless `source_vocab` is given, the source's too.

    tie      the source table is   the target table is   the output matrix is
    all      shared                shared                shared                   (the paper)
    output   its own               shared                shared
    inputs   shared                shared                its own                  (T5 v1.1)
    none     its own               its own               its own
    """

    kind: Literal["encoder_decoder"] = "encoder_decoder"
    vocab: Size = 32000
    source_vocab: Size | None = None
    width: Size = 512
    tie: Literal["all", "output", "inputs", "none"] = "all"
    embedding: EmbeddingConfig = Field(default_factory=EmbeddingConfig)
    encoder: StackConfig = Field(default_factory=StackConfig)
    decoder: StackConfig = Field(default_factory=StackConfig)
    head: VocabularyConfig = Field(default_factory=VocabularyConfig)

    @model_validator(mode="after")
    def _fits_together(self) -> "EncoderDecoderConfig":
        if self.source_vocab not in (None, self.vocab) and self.tie in ("all", "inputs"):
            raise ValueError(
                f"tie {self.tie!r} shares one table, but source_vocab {self.source_vocab} is not vocab {self.vocab}; "
                "choose tie 'output' or 'none', or one vocabulary"
            )
        self.encoder.check("encoder", width=self.width, input_width=self.input_width, causal=False, cross=False)
        self.decoder.check("decoder", width=self.width, input_width=self.input_width, causal=True, cross=True)
        return self

    @property
    def input_width(self) -> int:
        return self.embedding.width or self.width

    @property
    def ties_inputs(self) -> bool:
        return self.tie in ("all", "inputs")

    @property
    def ties_output(self) -> bool:
        return self.tie in ("all", "output")

    def build(self) -> "EncoderDecoder":
        return EncoderDecoder(self)

    def parameters(self) -> dict[str, int]:
        """By component, from closed formulas."""
        counts = {"embedding": self.embedding.parameters(self.source_vocab or self.vocab, self.width)}
        if not self.ties_inputs:
            counts["target_embedding"] = self.embedding.parameters(self.vocab, self.width)
        encoder = self.encoder.parameters(width=self.width, input_width=self.input_width)
        decoder = self.decoder.parameters(width=self.width, input_width=self.input_width, cross=True)
        counts |= {f"encoder.{part}": count for part, count in encoder.items()}
        counts |= {f"decoder.{part}": count for part, count in decoder.items()}
        counts["head"] = self.head.parameters(
            width=self.width, table_width=self.input_width, vocab=self.vocab, tied=self.ties_output
        )
        return counts


class EncoderDecoder(nn.Module):
    """p(target | source), word by word. Every weight is owned once: what is tied is looked up, not copied."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = config.embedding.build(config.source_vocab or config.vocab, config.width)
        self.target_embedding = None if config.ties_inputs else config.embedding.build(config.vocab, config.width)
        width, input_width = config.width, config.input_width
        self.encoder = config.encoder.build(width=width, input_width=input_width, causal=False)
        self.decoder = config.decoder.build(width=width, input_width=input_width, causal=True, cross=True)
        self.head = config.head.build(
            width=config.width, table_width=config.input_width, vocab=config.vocab, tied=config.ties_output
        )

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_valid: Tensor | None = None,
        target_valid: Tensor | None = None,
    ) -> Tensor:
        """Token ids (batch source), (batch target) -> logits (batch target vocab) for the word after each target token.

        Padding that stands after the last real target token needs no `target_valid`: the causal mask hides it.
        """
        memory = self.encode(source, valid=source_valid)
        return self.logits(self.decode(target, memory, valid=target_valid))

    def encode(self, source: Tensor, *, valid: Tensor | None = None, positions: Tensor | None = None) -> Memory:
        states = self.encoder(self.embedding(source), valid=valid, positions=positions)
        return self.decoder.read(states, valid)

    def decode(
        self,
        target: Tensor,
        memory: Memory,
        *,
        valid: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """-> states, rows target width. With a cache, `target` holds the new tokens only. There may be several rows
        (beams) to a sentence of the memory, side by side."""
        x = self.target_table(target)
        return self.decoder(x, valid=valid, positions=positions, memory=memory, cache=cache)

    def logits(self, states: Tensor) -> Tensor:
        """States of any leading shape -> a score for each word."""
        return self.head(states, self.target_table)

    def last_linear(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """(h, W, b) such that logits = W h + b."""
        return self.head.linear(states, self.target_table)

    def narrowed(self, words: Tensor) -> Callable[[Tensor], Tensor]:
        """The same for these words only."""
        return self.head.narrowed(self.target_table, words)

    def new_cache(self, length: int) -> Cache:
        return self.decoder.new_cache(length)

    @property
    def target_table(self) -> Embedding:
        return self.embedding if self.target_embedding is None else self.target_embedding
