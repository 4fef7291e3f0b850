"""A language model with a second head, which classifies the text."""

from pydantic import Field, SerializeAsAny
from torch import Tensor

from heedful.config import Size
from heedful.model.architecture import ArchitectureConfig, LanguageModel, checked
from heedful.model.input.tokens import TokensConfig
from heedful.model.linear import Linear, linear_parameters
from heedful.model.stack import Cache, StackConfig, StackShape
from heedful.model.stack.transformer import TransformerConfig


class JudgeAndWriter(LanguageModel):
    def __init__(self, config: "JudgeAndWriterConfig") -> None:
        super().__init__()
        self.config, self.vocab = config, config.vocab
        self.embedding = TokensConfig().build(width=config.width, vocab=config.vocab)
        self.decoder = config.decoder.build(config.shape)
        self.limit = self.decoder.limit
        self.head = Linear(config.width, config.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.decode(tokens))

    def decode(self, tokens: Tensor, *, valid=None, segments=None, prefix=None, positions=None,
               cache: Cache | None = None) -> Tensor:  # fmt: skip
        x = self.embedding.embed(tokens)
        return self.decoder(x, valid=valid, segments=segments, prefix=prefix, positions=positions, cache=cache)

    def judge(self, states: Tensor) -> Tensor:
        """States of last tokens (rows width) -> rows classes"""
        return self.head(states)

    def logits(self, states: Tensor) -> Tensor:
        return self.embedding.project(states)

    def last_linear(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return states, self.embedding.weight, None

    def new_cache(self, length: int) -> Cache:
        return self.decoder.new_cache(length)


class JudgeAndWriterConfig(ArchitectureConfig):
    gives = JudgeAndWriter
    vocab: Size = 1000
    classes: Size = 2
    decoder: SerializeAsAny[StackConfig] = Field(default_factory=TransformerConfig)

    def model_post_init(self, context: object) -> None:
        checked("decoder", self.decoder, self.shape)

    @property
    def shape(self) -> StackShape:
        return StackShape(self.width, self.width, causal=True)

    @property
    def supports(self) -> frozenset[str]:
        return self.decoder.supports

    def build(self) -> JudgeAndWriter:
        return JudgeAndWriter(self)

    def parameters(self) -> dict[str, int]:
        return {
            "embedding": self.vocab * self.width,
            **{f"decoder.{name}": count for name, count in self.decoder.parameters(self.shape).items()},
            "head": linear_parameters(self.width, self.classes, bias=True),
        }

    def flops(self, length: int) -> dict[str, int]:
        return {"token": self.decoder.flops(self.shape, length) + 2 * self.width * self.vocab}

    def remembered(self) -> dict[str, int]:
        return {"token": self.decoder.remembered(self.shape)}
