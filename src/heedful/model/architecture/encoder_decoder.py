"""The encoder-decoder: reads a source, writes a target.      Vaswani et al. 2017, figure 1"""

from collections.abc import Callable
from typing import ClassVar, Literal

from pydantic import Field, SerializeAsAny, model_validator
from torch import Tensor, nn

from heedful.config import Size
from heedful.model.architecture import ArchitectureConfig, Model, SequenceToSequence, checked, stack_limits
from heedful.model.cpu.door import child_plan
from heedful.model.cpu.plan import EncoderDecoderPlan, HeadPlan, Reason, StackPlan, TablePlan, first_reason
from heedful.model.heads import ScalarConfig, VocabularyConfig
from heedful.model.input import InputConfig
from heedful.model.input.tokens import Tokens, TokensConfig
from heedful.model.stack import Cache, Memory, StackConfig, StackShape
from heedful.model.stack.transformer import TransformerConfig


class EncoderDecoderConfig(ArchitectureConfig):
    """`vocab` is the target's and, unless `source_vocab` is given, the source's too. `embedding` is the input of the
    encoder; `target_embedding` the target's embedding table, if it differs (None = like `embedding`). `heads`: what is
    read off the decoder's states besides the next word: a reward.

    tie      the source table is   the target table is   the output matrix is
    all      shared                shared                shared                   (the paper)
    output   its own               shared                shared
    inputs   shared                shared                its own                  (T5 v1.1)
    none     its own               its own               its own
    """

    gives: ClassVar[type[Model]] = SequenceToSequence
    vocab: Size = 32000
    source_vocab: Size | None = None
    tie: Literal["all", "output", "inputs", "none"] = "all"
    embedding: SerializeAsAny[InputConfig] = Field(default_factory=TokensConfig)
    target_embedding: TokensConfig | None = None
    encoder: SerializeAsAny[StackConfig] = Field(default_factory=TransformerConfig)
    decoder: SerializeAsAny[StackConfig] = Field(default_factory=TransformerConfig)
    head: VocabularyConfig = Field(default_factory=VocabularyConfig)
    heads: list[ScalarConfig] = Field(default_factory=list, max_length=1)

    @model_validator(mode="after")
    def _fits_together(self) -> "EncoderDecoderConfig":
        if self.source_vocab not in (None, self.vocab) and self.tie in ("all", "inputs"):
            raise ValueError(
                f"tie {self.tie!r} shares one table, but source_vocab {self.source_vocab} is not vocab {self.vocab}; "
                "choose tie 'output' or 'none', or one vocabulary"
            )
        if self.ties_inputs and not isinstance(self.embedding, TokensConfig):
            raise ValueError(
                f"tie {self.tie!r} shares the source's embedding table, but {self.embedding.kind} has none; "
                "choose tie 'output' or 'none'"
            )
        checked("encoder", self.encoder, self.encoder_shape)
        checked("decoder", self.decoder, self.decoder_shape)
        return self

    @property
    def supports(self) -> frozenset[str]:
        return self.encoder.supports & frozenset({"global_tokens"})

    def limits(self) -> dict[str, int]:
        limits = stack_limits(encoder=self.encoder, decoder=self.decoder)
        return {**limits, "encoder": self.source_limit} if self.source_limit is not None else limits

    @property
    def source_limit(self) -> int | None:
        """How many tokens a source may have: what the encoder reads and the decoder can attend to."""
        limits = (self.encoder.limit, self.decoder.source_limit)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def table(self) -> TokensConfig:
        """The config of the target's embedding table."""
        if self.target_embedding is not None:
            return self.target_embedding
        return self.embedding if isinstance(self.embedding, TokensConfig) else TokensConfig()

    @property
    def encoder_shape(self) -> StackShape:
        return StackShape(self.width, self.embedding.width_in(self.width))

    @property
    def decoder_shape(self) -> StackShape:
        source_width = self.embedding.width_in(self.width)
        return StackShape(
            self.width, self.table.width_in(self.width), causal=True, cross=True, source_width=source_width
        )

    @property
    def ties_inputs(self) -> bool:
        return self.tie in ("all", "inputs")

    @property
    def ties_output(self) -> bool:
        return self.tie in ("all", "output")

    def build(self) -> "EncoderDecoder":
        return EncoderDecoder(self)

    def parameters(self) -> dict[str, int]:
        counts = {"embedding": self.embedding.parameters(width=self.width, vocab=self.source_vocab or self.vocab)}
        if not self.ties_inputs:
            counts["target_embedding"] = self.table.parameters(width=self.width, vocab=self.vocab)
        counts |= {f"encoder.{part}": count for part, count in self.encoder.parameters(self.encoder_shape).items()}
        counts |= {f"decoder.{part}": count for part, count in self.decoder.parameters(self.decoder_shape).items()}
        counts["head"] = self.head.parameters(
            width=self.width, table_width=self.table.width_in(self.width), vocab=self.vocab, tied=self.ties_output
        )
        return counts | {f"heads.{head.kind}": head.parameters(width=self.width) for head in self.heads}

    def flops(self, length: int) -> dict[str, int]:
        read, _ = self.decoder.reading(self.decoder_shape)
        head = self.head.flops(width=self.width, table_width=self.table.width_in(self.width), vocab=self.vocab)
        return {
            "source token": self.encoder.flops(self.encoder_shape, length) + read,
            "target token": self.decoder.flops(self.decoder_shape, length) + head,
        }

    def remembered(self) -> dict[str, int]:
        _, kept = self.decoder.reading(self.decoder_shape)
        return {"source token": kept, "target token": self.decoder.remembered(self.decoder_shape)}


class EncoderDecoder(SequenceToSequence):
    """Every weight is owned once: tied weights are referenced, not copied."""

    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config, self.vocab = config, config.vocab
        self.embedding = config.embedding.build(width=config.width, vocab=config.source_vocab or config.vocab)
        self.target_embedding = (
            None if config.ties_inputs else config.table.build(width=config.width, vocab=config.vocab)
        )
        self.encoder = config.encoder.build(config.encoder_shape)
        self.decoder = config.decoder.build(config.decoder_shape)
        self.source_limit, self.limit = config.source_limit, self.decoder.limit
        self.head = config.head.build(
            width=config.width,
            table_width=config.table.width_in(config.width),
            vocab=config.vocab,
            tied=config.ties_output,
        )
        self.heads = nn.ModuleDict({head.kind: head.build(width=config.width) for head in config.heads})

    def encode(
        self,
        source: Tensor,
        *,
        valid: Tensor | None = None,
        positions: Tensor | None = None,
        global_tokens: Tensor | None = None,
    ) -> Memory:
        x, valid = self.embedding(source, valid=valid)
        states = self.encoder(x, valid=valid, positions=positions, global_tokens=global_tokens)
        return self.decoder.read(states, valid, inputs=x)

    def decode(
        self,
        target: Tensor,
        memory: Memory,
        *,
        valid: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        x = self.target_table.embed(target)
        return self.decoder(x, valid=valid, positions=positions, memory=memory, cache=cache)

    def logits(self, states: Tensor) -> Tensor:
        return self.head(states, self.target_table)

    def last_linear(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.head.linear(states, self.target_table)

    def narrowed(self, words: Tensor) -> Callable[[Tensor], Tensor]:
        return self.head.narrowed(self.target_table, words)

    def new_cache(self, length: int) -> Cache:
        return self.decoder.new_cache(length)

    def plan(self) -> EncoderDecoderPlan | Reason:
        decoder = child_plan(self, "decoder", StackPlan)
        table = child_plan(self, "embedding" if self.target_embedding is None else "target_embedding", TablePlan)
        if not (decoder and table):
            return first_reason(decoder, table)
        if not decoder.causal or decoder.layers[0].cross is None:
            return Reason("not causal, or without attention to a source: no kernel yet", "decoder")
        encoder, source_table = child_plan(self, "encoder", StackPlan), child_plan(self, "embedding", TablePlan)
        if encoder and (encoder.causal or encoder.layers[0].cross is not None):
            encoder = Reason("causal, or with attention to a source: no kernel yet", "encoder")
        if encoder and (reason := encoder.only_steps()) is not None:
            encoder = reason.at("encoder")
        head = child_plan(self, "head", HeadPlan)
        left: list[nn.Module] = [] if head else [self.head]
        left += [self.heads, *(getattr(self, name) for name in self.aside)]  # decoding needs none of them
        if not (encoder and source_table):
            left += [self.encoder, self.embedding]
        return EncoderDecoderPlan(
            encoder=encoder if source_table else first_reason(source_table),
            source_table=source_table,
            decoder=decoder,
            target_table=table,
            head=head,
            read=self._read_states,
            logits=self.logits,
            left=tuple(left),
        )

    def _read_states(self, source: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | None]:
        x, valid = self.embedding(source, valid=valid)
        return self.encoder(x, valid=valid), valid

    @property
    def target_table(self) -> Tokens:
        return self.embedding if self.target_embedding is None else self.target_embedding  # type: ignore[return-value]
