"""The non-autoregressive translator: all words of the target at once.      Gu et al. 2018; Ghazvininejad et al. 2019"""

from typing import ClassVar, Literal

import torch
from pydantic import Field, SerializeAsAny, model_validator
from torch import Tensor

from heedful.config import Size
from heedful.model.architecture import (
    ArchitectureConfig,
    Encoded,
    Model,
    ParallelSequenceToSequence,
    checked,
    stack_limits,
)
from heedful.model.cpu.door import child_plan
from heedful.model.cpu.plan import HeadPlan, LinearPlan, ParallelPlan, Reason, StackPlan, TablePlan, first_reason
from heedful.model.heads import VocabularyConfig
from heedful.model.input.tokens import Tokens, TokensConfig, new_table
from heedful.model.linear import Linear, linear_parameters
from heedful.model.stack import StackConfig, StackShape
from heedful.model.stack.transformer import TransformerConfig


class NonAutoregressiveConfig(ArchitectureConfig):
    """`method` is what the decoder reads:

    fertility       the source's embeddings, each copied as often as its fertility says, or left out if that is 0. The
                    decoder's layers hide each position from itself and have positional attention (Gu et al. 2018).
    mask_predict    the target with some words masked (Ghazvininejad et al. 2019). Its length is the sum of the
                    fertilities; the layers are those of an ordinary decoder without a causal mask.

    A fertility is at most `max_fertility`. tie `all`: source, target and output matrix share one table; `output`: the
    source has its own.
    """

    gives: ClassVar[type[Model]] = ParallelSequenceToSequence
    method: Literal["fertility", "mask_predict"] = "fertility"
    max_fertility: Size = 50
    vocab: Size = 32000
    source_vocab: Size | None = None
    tie: Literal["all", "output"] = "all"
    embedding: TokensConfig = Field(default_factory=TokensConfig)
    encoder: SerializeAsAny[StackConfig] = Field(default_factory=TransformerConfig)
    decoder: TransformerConfig = Field(default_factory=TransformerConfig)
    head: VocabularyConfig = Field(default_factory=VocabularyConfig)

    @model_validator(mode="after")
    def _fits_together(self) -> "NonAutoregressiveConfig":
        if self.tie == "all" and self.source_vocab not in (None, self.vocab):
            raise ValueError(
                f"tie 'all' shares one table, but source_vocab {self.source_vocab} is not vocab {self.vocab}; "
                "choose tie 'output', or one vocabulary"
            )
        checked("encoder", self.encoder, self.encoder_shape)
        checked("decoder", self.decoder, self.decoder_shape)
        return self

    def limits(self) -> dict[str, int]:
        return stack_limits(encoder=self.encoder, decoder=self.decoder)

    @property
    def encoder_shape(self) -> StackShape:
        return StackShape(self.width, self.embedding.width_in(self.width))

    @property
    def decoder_shape(self) -> StackShape:
        table = self.embedding.width_in(self.width)
        return StackShape(self.width, table, cross=True, source_width=table, parallel=self.method == "fertility")

    def build(self) -> "NonAutoregressive":
        return NonAutoregressive(self)

    def parameters(self) -> dict[str, int]:
        width, table = self.width, self.embedding.width_in(self.width)
        counts = {"embedding": self.embedding.parameters(width=width, vocab=self.source_vocab or self.vocab)}
        if self.tie == "output":
            counts["target_embedding"] = self.embedding.parameters(width=width, vocab=self.vocab)
        counts |= {f"encoder.{part}": count for part, count in self.encoder.parameters(self.encoder_shape).items()}
        counts["fertility"] = linear_parameters(width, self.max_fertility + 1, bias=True)
        if self.method == "mask_predict":
            counts["mask"] = table
        counts |= {f"decoder.{part}": count for part, count in self.decoder.parameters(self.decoder_shape).items()}
        counts["head"] = self.head.parameters(width=width, table_width=table, vocab=self.vocab, tied=True)
        return counts

    def flops(self, length: int) -> dict[str, int]:
        read, _ = self.decoder.reading(self.decoder_shape)
        head = self.head.flops(width=self.width, table_width=self.embedding.width_in(self.width), vocab=self.vocab)
        fertility = 2 * self.width * (self.max_fertility + 1)
        return {
            "source token": self.encoder.flops(self.encoder_shape, length) + read + fertility,
            "target token": self.decoder.flops(self.decoder_shape, length) + head,
        }


class NonAutoregressive(ParallelSequenceToSequence):
    """The encoder, p(fertility | source) for each of its positions, and a decoder without a causal mask. </s> of the
    source has a fertility too: it stands for target words that no source word accounts for, like the NULL word of Brown
    et al. 1993."""

    config: NonAutoregressiveConfig

    def __init__(self, config: NonAutoregressiveConfig) -> None:
        super().__init__()
        self.config, self.vocab, self.method = config, config.vocab, config.method
        self.embedding = config.embedding.build(width=config.width, vocab=config.source_vocab or config.vocab)
        self.target_embedding = (
            None if config.tie == "all" else config.embedding.build(width=config.width, vocab=config.vocab)
        )
        self.encoder = config.encoder.build(config.encoder_shape)
        self.fertility = Linear(config.width, config.max_fertility + 1)
        self.decoder = config.decoder.build(config.decoder_shape)
        table_width = config.embedding.width_in(config.width)
        self.mask = new_table(1, table_width) if config.method == "mask_predict" else None
        self.source_limit, self.limit = config.encoder.limit, self.decoder.limit
        self.head = config.head.build(width=config.width, table_width=table_width, vocab=config.vocab, tied=True)

    def encode(self, source: Tensor, *, valid: Tensor | None = None) -> Encoded:
        inputs, valid = self.embedding(source, valid=valid)
        states = self.encoder(inputs, valid=valid)
        memory = self.decoder.read(states, valid, inputs=inputs)
        return Encoded(inputs, valid, memory, self.fertility(states))

    def copied(self, encoded: Encoded, fertilities: Tensor) -> tuple[Tensor, Tensor]:
        return copies(encoded.inputs, fertilities)

    def masked(self, target: Tensor, hidden: Tensor) -> Tensor:
        assert self.mask is not None, "only a model with method mask_predict reads masked words"
        return torch.where(hidden[..., None], self.mask[0], self.target_table.embed(target))

    def decode(self, inputs: Tensor, encoded: Encoded, *, valid: Tensor | None = None) -> Tensor:
        return self.decoder(inputs, valid=valid, memory=encoded.memory)

    def logits(self, states: Tensor) -> Tensor:
        return self.head(states, self.target_table)

    def last_linear(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.head.linear(states, self.target_table)

    @property
    def target_table(self) -> Tokens:
        return self.embedding if self.target_embedding is None else self.target_embedding

    def plan(self) -> ParallelPlan | Reason:
        encoder, decoder = child_plan(self, "encoder", StackPlan), child_plan(self, "decoder", StackPlan)
        table, head = child_plan(self, "embedding", TablePlan), child_plan(self, "head", HeadPlan)
        fertility = child_plan(self, "fertility", LinearPlan)
        if not (encoder and decoder and table and head and fertility):
            return first_reason(encoder, decoder, table, head, fertility)
        target = table if self.target_embedding is None else child_plan(self, "target_embedding", TablePlan)
        if isinstance(target, Reason):
            return target
        return ParallelPlan(encoder, table, decoder, target, head, fertility, self.mask)


def copies(inputs: Tensor, fertilities: Tensor) -> tuple[Tensor, Tensor]:
    """Each vector as often as its fertility says.      Gu et al. 2018, section 3.2

    inputs: batch source width; fertilities: rows source, with rows = batch x candidates -> (rows target width, valid)
    """
    ends = fertilities.cumsum(1)
    places = torch.arange(int(ends[:, -1].max()), device=ends.device)
    valid = places < ends[:, -1:]
    origins = torch.searchsorted(ends, places.expand(len(ends), -1).contiguous(), right=True)
    origins = origins.clamp(max=inputs.shape[1] - 1)  # padding repeats the last one
    rows = torch.arange(len(ends), device=ends.device)[:, None] // (len(ends) // len(inputs))
    return inputs[rows, origins], valid
