"""Output heads: from the final states to words, classes or spans.

A head takes states of any leading shape, so that a loss can pass only the positions it needs.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from heedful.config import Config, Probability, Size
from heedful.model.cpu.door import child_plan
from heedful.model.cpu.kernels import fixed_linear
from heedful.model.cpu.plan import HeadPlan, IdentityPlan, Reason, TablePlan
from heedful.model.crf import Crf
from heedful.model.dropout import Dropout
from heedful.model.feedforward import FUNCTIONS
from heedful.model.input.tokens import Tokens
from heedful.model.linear import Linear, linear_parameters
from heedful.model.norm import NormConfig


class VocabularyConfig(Config):
    """`scale` multiplies the states by 1/sqrt(width) first, as T5 does where input and output share a table. `wide`: a
    table of its own is as wide as the model, though the embeddings are narrower (Reformer)."""

    kind: Literal["vocabulary"] = "vocabulary"
    bias: bool = False
    scale: bool = False
    wide: bool = False

    def build(self, *, width: int, table_width: int, vocab: int, tied: bool) -> "Vocabulary":
        table_width = self.width_of_table(width, table_width, tied)
        return Vocabulary(self, width=width, table_width=table_width, vocab=vocab, tied=tied)

    def width_of_table(self, width: int, table_width: int, tied: bool) -> int:
        if self.wide and tied:
            raise ValueError("a tied table is as wide as the embeddings; set head.wide=false, or do not tie the output")
        return width if self.wide else table_width

    def parameters(self, *, width: int, table_width: int, vocab: int, tied: bool) -> int:
        table_width = self.width_of_table(width, table_width, tied)
        own = 0 if tied else vocab * table_width
        lower = linear_parameters(width, table_width, bias=True) if table_width != width else 0
        return own + lower + (vocab if self.bias else 0)

    def flops(self, *, width: int, table_width: int, vocab: int) -> int:
        table_width = width if self.wide else table_width
        lower = 2 * width * table_width if table_width != width else 0
        return lower + 2 * table_width * vocab


class Vocabulary(nn.Module):
    """States -> a score for each word: logits = W h + b.      Press and Wolf 2017 for W = the embedding table

    A tied table is passed in at each call, so that a model owns every weight once.
    """

    def __init__(self, config: VocabularyConfig, *, width: int, table_width: int, vocab: int, tied: bool) -> None:
        super().__init__()
        self.factor = width**-0.5 if config.scale else 1.0
        self.lower = Linear(width, table_width) if table_width != width else nn.Identity()
        self.table = None if tied else Tokens(vocab, table_width, scale=False)
        self.bias = nn.Parameter(torch.zeros(vocab)) if config.bias else None

    def forward(self, states: Tensor, table: Tokens) -> Tensor:
        logits = (self.table or table).project(self._lowered(states))
        return logits if self.bias is None else logits + self.bias

    def linear(self, states: Tensor, table: Tokens) -> tuple[Tensor, Tensor, Tensor | None]:
        """(h, W, b) such that the scores are W h + b: for a loss that computes them in its own way."""
        return self._lowered(states), (self.table or table).matrix(), self.bias

    def narrowed(self, table: Tokens, words: Tensor) -> Callable[[Tensor], Tensor]:
        """A head for these words only; it copies their rows once."""
        rows = (self.table or table).rows(words)
        bias = None if self.bias is None else self.bias[words]
        scores = fixed_linear(rows, bias)
        return lambda states: scores(self._lowered(states))

    def plan(self) -> HeadPlan | Reason:
        lower = child_plan(self, "lower", IdentityPlan)
        if isinstance(lower, Reason):
            return lower
        table = None if self.table is None else child_plan(self, "table", TablePlan)
        return table if isinstance(table, Reason) else HeadPlan(table, self.bias, self.factor)

    def _lowered(self, states: Tensor) -> Tensor:
        states = self.lower(states)
        return states if self.factor == 1.0 else states * self.factor


class MaskedLmConfig(Config):
    kind: Literal["masked_lm"] = "masked_lm"
    activation: Literal["relu", "gelu", "gelu_tanh"] = "gelu"

    def build(self, *, width: int, table_width: int, vocab: int, norm: NormConfig) -> "MaskedLm":
        return MaskedLm(self, width=width, table_width=table_width, vocab=vocab, norm=norm)

    def parameters(self, *, width: int, table_width: int, vocab: int, norm: NormConfig) -> int:
        return linear_parameters(width, table_width, bias=True) + norm.parameters(table_width) + vocab


class MaskedLm(nn.Module):
    """logits = E norm(f(W h + b)) + c, with E the embedding table.      Devlin et al. 2019, as in their code"""

    def __init__(self, config: MaskedLmConfig, *, width: int, table_width: int, vocab: int, norm: NormConfig) -> None:
        super().__init__()
        self.dense = Linear(width, table_width)
        self.function = FUNCTIONS[config.activation]
        self.norm = norm.build(table_width)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, states: Tensor, table: Tokens) -> Tensor:
        return table.project(self.norm(self.function(self.dense(states)))) + self.bias


class PoolerConfig(Config):
    kind: Literal["pooler"] = "pooler"

    def build(self, *, width: int) -> "Pooler":
        return Pooler(width)

    def parameters(self, *, width: int) -> int:
        return linear_parameters(width, width, bias=True)


class Pooler(nn.Module):
    """A text as one vector: tanh(W h_0 + b), h_0 the state of its first token.      Devlin et al. 2019"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = Linear(width, width)

    def forward(self, states: Tensor) -> Tensor:
        return torch.tanh(self.dense(states[:, 0]))


class SequenceConfig(Config):
    """A class for the whole text, or (next_sentence) whether the second text follows the first: two classes."""

    kind: Literal["sequence_classification", "next_sentence"] = "sequence_classification"
    classes: Size = 2
    dropout: Probability = 0.1

    def build(self, *, width: int) -> "Sequence":
        return Sequence(self, width)

    def parameters(self, *, width: int) -> int:
        return linear_parameters(width, width, bias=True) + linear_parameters(width, self.classes, bias=True)


class Sequence(nn.Module):
    """batch query width -> batch classes"""

    def __init__(self, config: SequenceConfig, width: int) -> None:
        super().__init__()
        self.pooler = Pooler(width)
        self.dropout = Dropout(config.dropout)
        self.output = Linear(width, config.classes)

    def forward(self, states: Tensor) -> Tensor:
        return self.output(self.dropout(self.pooler(states)))


class TokenConfig(Config):
    """A class for each token, or (answer_span) two numbers: does the answer start here, does it end here. `crf`: the
    classes of neighbours depend on each other: see `Crf`."""

    kind: Literal["token_classification", "answer_span"] = "token_classification"
    classes: Size = 2
    dropout: Probability = 0.1
    crf: bool = False

    @model_validator(mode="after")
    def _crf_needs_classes(self) -> "TokenConfig":
        if self.crf and self.kind == "answer_span":
            raise ValueError("crf is for token_classification; an answer_span has no classes, so set crf to false")
        return self

    def build(self, *, width: int) -> "Token":
        return Token(self, width)

    def parameters(self, *, width: int) -> int:
        between = self.classes * (self.classes + 2) if self.crf else 0
        return linear_parameters(width, self.classes, bias=True) + between


class Token(nn.Module):
    """batch query width -> batch query classes; with a CRF, these are its scores of each token alone"""

    def __init__(self, config: TokenConfig, width: int) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.output = Linear(width, config.classes)
        self.crf = Crf(config.classes) if config.crf else None

    def forward(self, states: Tensor) -> Tensor:
        return self.output(self.dropout(states))


class ScalarConfig(Config):
    """A number for each token, from all that its state has seen: the reward of a text that ends there."""

    kind: Literal["reward"] = "reward"

    def build(self, *, width: int) -> "Scalar":
        return Scalar(width)

    def parameters(self, *, width: int) -> int:
        return linear_parameters(width, 1, bias=True)


class Scalar(nn.Module):
    """... width -> ...: w h + b"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.output = Linear(width, 1)

    def forward(self, states: Tensor) -> Tensor:
        return self.output(states)[..., 0]


HeadConfig = Annotated[
    MaskedLmConfig | PoolerConfig | SequenceConfig | TokenConfig,
    Field(discriminator="kind"),
]
