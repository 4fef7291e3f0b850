"""The decoder-only model: continues a text.      Radford et al. 2018; the right half of Vaswani's figure 1"""

from typing import ClassVar, Literal

from pydantic import Field, SerializeAsAny, model_validator
from torch import Tensor, nn

from heedful.config import Size
from heedful.model.architecture import ArchitectureConfig, LanguageModel, Model, checked, stack_limits
from heedful.model.cpu.door import child_plan
from heedful.model.cpu.plan import DecoderOnlyPlan, HeadPlan, Reason, StackPlan, TablePlan, first_reason
from heedful.model.heads import ScalarConfig, VocabularyConfig
from heedful.model.input.tokens import TokensConfig
from heedful.model.position.learned import LearnedConfig
from heedful.model.stack import Cache, StackConfig, StackShape
from heedful.model.stack.transformer import TransformerConfig


class DecoderOnlyConfig(ArchitectureConfig):
    """`heads`: what is read off the states besides the next word: a reward."""

    gives: ClassVar[type[Model]] = LanguageModel
    vocab: Size = 32000
    tie: Literal["all", "none"] = "all"
    embedding: TokensConfig = TokensConfig(scale=False)
    decoder: SerializeAsAny[StackConfig] = Field(
        default_factory=lambda: TransformerConfig(placement="pre", position=LearnedConfig())
    )
    head: VocabularyConfig = Field(default_factory=VocabularyConfig)
    heads: list[ScalarConfig] = Field(default_factory=list, max_length=1)

    @model_validator(mode="after")
    def _fits_together(self) -> "DecoderOnlyConfig":
        checked("decoder", self.decoder, self.shape)
        return self

    @property
    def supports(self) -> frozenset[str]:
        return self.decoder.supports & frozenset({"segments", "prefix", "recurrence"})

    def limits(self) -> dict[str, int]:
        return stack_limits(decoder=self.decoder)

    @property
    def table_width(self) -> int:
        return self.embedding.width_in(self.width)

    @property
    def shape(self) -> StackShape:
        return StackShape(self.width, self.table_width, causal=True)

    def build(self) -> "DecoderOnly":
        return DecoderOnly(self)

    def parameters(self) -> dict[str, int]:
        return {
            "embedding": self.embedding.parameters(width=self.width, vocab=self.vocab),
            **{f"decoder.{part}": count for part, count in self.decoder.parameters(self.shape).items()},
            "head": self.head.parameters(
                width=self.width, table_width=self.table_width, vocab=self.vocab, tied=self.tie == "all"
            ),
            **{f"heads.{head.kind}": head.parameters(width=self.width) for head in self.heads},
        }

    def flops(self, length: int) -> dict[str, int]:
        head = self.head.flops(width=self.width, table_width=self.table_width, vocab=self.vocab)
        return {"token": self.decoder.flops(self.shape, length) + head}

    def remembered(self) -> dict[str, int]:
        return {"token": self.decoder.remembered(self.shape)}


class DecoderOnly(LanguageModel):
    config: DecoderOnlyConfig

    def __init__(self, config: DecoderOnlyConfig) -> None:
        super().__init__()
        self.config, self.vocab = config, config.vocab
        self.embedding = config.embedding.build(width=config.width, vocab=config.vocab)
        self.decoder = config.decoder.build(config.shape)
        self.limit = self.decoder.limit
        self.head = config.head.build(
            width=config.width, table_width=config.table_width, vocab=config.vocab, tied=config.tie == "all"
        )
        self.heads = nn.ModuleDict({head.kind: head.build(width=config.width) for head in config.heads})

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
        x = self.embedding.embed(tokens)
        return self.decoder(x, valid=valid, segments=segments, prefix=prefix, positions=positions, cache=cache)

    def logits(self, states: Tensor) -> Tensor:
        return self.head(states, self.embedding)

    def last_linear(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.head.linear(states, self.embedding)

    def plan(self) -> DecoderOnlyPlan | Reason:
        decoder, table = child_plan(self, "decoder", StackPlan), child_plan(self, "embedding", TablePlan)
        if not (decoder and table):
            return first_reason(decoder, table)
        if not decoder.causal or decoder.layers[0].cross is not None:
            return Reason("not causal, or with attention to a source: no kernel yet", "decoder")
        head = child_plan(self, "head", HeadPlan)
        left = (self.heads, *(getattr(self, name) for name in self.aside), *(() if head else (self.head,)))
        return DecoderOnlyPlan(decoder, table, head, self.logits, left)

    def new_cache(self, length: int) -> Cache:
        return self.decoder.new_cache(length)

    def new_memory(self, length: int, *, states: bool = True) -> Cache:
        return self.decoder.new_memory(length, states=states)
