"""A sequence-to-sequence model in forty lines: one embedding table, any stack as encoder, a Transformer as decoder."""

from pydantic import Field, SerializeAsAny
from torch import Tensor

from heedful.config import Size
from heedful.model.architecture import ArchitectureConfig, SequenceToSequence, checked
from heedful.model.input.tokens import TokensConfig
from heedful.model.stack import Cache, Memory, StackConfig, StackShape
from heedful.model.stack.transformer import TransformerConfig


class SmallPairConfig(ArchitectureConfig):
    gives = SequenceToSequence
    vocab: Size = 1000
    encoder: SerializeAsAny[StackConfig] = Field(default_factory=TransformerConfig)
    decoder: TransformerConfig = Field(default_factory=TransformerConfig)

    def model_post_init(self, context: object) -> None:
        checked("encoder", self.encoder, StackShape(self.width, self.width))
        checked("decoder", self.decoder, StackShape(self.width, self.width, causal=True, cross=True))

    def build(self) -> "SmallPair":
        return SmallPair(self)


class SmallPair(SequenceToSequence):
    def __init__(self, config: SmallPairConfig) -> None:
        super().__init__()
        self.config, self.vocab = config, config.vocab
        self.table = TokensConfig().build(width=config.width, vocab=config.vocab)
        self.encoder = config.encoder.build(StackShape(config.width, config.width))
        self.decoder = config.decoder.build(StackShape(config.width, config.width, causal=True, cross=True))
        self.source_limit, self.limit = self.encoder.limit, self.decoder.limit

    def encode(self, source: Tensor, *, valid: Tensor | None = None) -> Memory:
        return self.decoder.read(self.encoder(self.table.embed(source), valid=valid), valid)

    def decode(
        self, target: Tensor, memory: Memory, *, valid: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        return self.decoder(self.table.embed(target), valid=valid, memory=memory, cache=cache)

    def logits(self, states: Tensor) -> Tensor:
        return self.table.project(states)

    def last_linear(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return states, self.table.weight, None

    def new_cache(self, length: int) -> Cache:
        return self.decoder.new_cache(length)
