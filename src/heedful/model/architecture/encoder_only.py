"""The encoder-only model: encodes a text, with heads that make predictions about it.      Devlin et al. 2019 (BERT)"""

from typing import ClassVar

import torch
from pydantic import Field, SerializeAsAny, model_validator
from torch import Tensor, nn

from heedful.config import Size
from heedful.model.architecture import ArchitectureConfig, Model, Reader, checked, stack_limits
from heedful.model.cpu.door import child_plan
from heedful.model.cpu.plan import ReaderPlan, Reason, StackPlan, TablePlan, first_reason
from heedful.model.heads import HeadConfig, MaskedLmConfig
from heedful.model.input import InputConfig
from heedful.model.input.tokens import TokensConfig, new_table
from heedful.model.norm import NormConfig
from heedful.model.position.learned import LearnedConfig
from heedful.model.stack import StackConfig, StackShape
from heedful.model.stack.transformer import TransformerConfig


class EncoderOnlyConfig(ArchitectureConfig):
    """`token_types`: the number of learned vectors that distinguish the texts of a pair (BERT); 0 = none."""

    gives: ClassVar[type[Model]] = Reader
    vocab: Size = 32000
    token_types: int = Field(0, ge=0)
    embedding: SerializeAsAny[InputConfig] = TokensConfig(scale=False)
    encoder: SerializeAsAny[StackConfig] = Field(default_factory=lambda: TransformerConfig(position=LearnedConfig()))
    heads: list[HeadConfig] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits_together(self) -> "EncoderOnlyConfig":
        checked("encoder", self.encoder, self.shape)
        names = [head.kind for head in self.heads]
        if len(set(names)) < len(names):
            raise ValueError(f"heads {names} contain a duplicate; a model can have each head only once")
        if not isinstance(self.embedding, TokensConfig) and (self.token_types or "masked_lm" in names):
            raise ValueError(
                f"token types and the masked_lm head need an embedding table, but the input is {self.embedding.kind}; "
                "omit them"
            )
        return self

    @property
    def supports(self) -> frozenset[str]:
        return self.encoder.supports & frozenset({"segments", "global_tokens"})

    def limits(self) -> dict[str, int]:
        return stack_limits(encoder=self.encoder)

    @property
    def shape(self) -> StackShape:
        return StackShape(self.width, self.embedding.width_in(self.width))

    @property
    def norm(self) -> NormConfig:
        """The norm of the masked_lm head: as in the layers, if they have one."""
        found = getattr(self.encoder, "norm", None)
        return found if isinstance(found, NormConfig) else NormConfig()

    def build(self) -> "EncoderOnly":
        return EncoderOnly(self)

    def parameters(self) -> dict[str, int]:
        counts = {"embedding": self.embedding.parameters(width=self.width, vocab=self.vocab)}
        if self.token_types:
            counts["token_types"] = self.token_types * self.shape.input_width
        counts |= {f"encoder.{part}": count for part, count in self.encoder.parameters(self.shape).items()}
        for head in self.heads:
            counts[f"heads.{head.kind}"] = (
                head.parameters(width=self.width, table_width=self.shape.input_width, vocab=self.vocab, norm=self.norm)
                if isinstance(head, MaskedLmConfig)
                else head.parameters(width=self.width)
            )
        return counts

    def flops(self, length: int) -> dict[str, int]:
        return {"token": self.encoder.flops(self.shape, length)}


class EncoderOnly(Reader):
    """A state for each token, computed from the whole text, and heads on top."""

    config: EncoderOnlyConfig

    def __init__(self, config: EncoderOnlyConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = config.embedding.build(width=config.width, vocab=config.vocab)
        self.token_types = new_table(config.token_types, config.shape.input_width) if config.token_types else None
        self.encoder = config.encoder.build(config.shape)
        self.limit = self.encoder.limit
        self.heads = nn.ModuleDict({head.kind: _build_head(head, config) for head in config.heads})

    def forward(
        self,
        source: Tensor,
        *,
        token_types: Tensor | None = None,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        global_tokens: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Token ids (batch query), or other input -> states (batch query width), for `predict`."""
        x, valid = self.embedding(source, valid=valid)
        if self.token_types is not None:
            x = x + self.token_types[torch.zeros_like(source) if token_types is None else token_types]
        return self.encoder(x, valid=valid, segments=segments, global_tokens=global_tokens, positions=positions)

    def plan(self) -> ReaderPlan | Reason:
        table, encoder = child_plan(self, "embedding", TablePlan), child_plan(self, "encoder", StackPlan)
        if not (table and encoder):
            return first_reason(table, encoder)
        return ReaderPlan(encoder, table, self.token_types, tuple(self.heads.values()))

    def predict(self, head: str, states: Tensor) -> Tensor:
        """The output of a head: logits, or the pooled vector."""
        if head not in self.heads:
            raise ValueError(f"this model has no head {head!r}; it has {', '.join(self.heads) or 'none'}")
        if head == "masked_lm":
            return self.heads[head](states, self.embedding)
        return self.heads[head](states)


def _build_head(head: HeadConfig, config: EncoderOnlyConfig) -> nn.Module:
    if isinstance(head, MaskedLmConfig):
        return head.build(
            width=config.width, table_width=config.shape.input_width, vocab=config.vocab, norm=config.norm
        )
    return head.build(width=config.width)
