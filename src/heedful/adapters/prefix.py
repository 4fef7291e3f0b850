"""Trained keys and values before those of the text, in every layer.      Li and Liang 2021

    softmax(scale q [P_k; K]') [P_v; V]

Every query sees the prefix. Its keys have no position of their own: they are not rotated, and no bias is added to their
scores. With `shift` the positions of the text are counted from behind the prefix, as PEFT does it.

`network`: keys and values come from a network of so many hidden units while training (Li and Liang, section 4.3), which
makes training steadier. Differs: each layer has a network of its own, where the paper has one for all.
"""

from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from heedful.adapters import Adapted, AdapterConfig
from heedful.config import Size
from heedful.model.architecture import Model
from heedful.model.attention.reference import share, weights_of
from heedful.model.attention.softmax import Softmax
from heedful.model.cache import KeyValueCache, LayerCache
from heedful.model.multihead import CrossAttention, SelfAttention
from heedful.model.sight import Sight
from heedful.model.stack import Cache, Memory
from heedful.model.stack.transformer import LayersCache, SegmentMemory, Transformer
from heedful.model.surgery import adopted

Where = Literal["encoder", "decoder", "cross"]


class PrefixConfig(AdapterConfig):
    """`length`: how many keys and values. `attentions`: which ones get them: those of the encoder, of the decoder, or
    from the decoder to the source (cross); by default the decoder's, or the encoder's where there is no decoder."""

    neutral: ClassVar[bool] = False
    length: Size = 16
    network: int = Field(0, ge=0)
    attentions: tuple[Where, ...] = ()
    shift: bool = True

    def install(self, model: Model) -> set[str]:
        stacks = [name for name, _ in model.named_children() if name in ("encoder", "decoder")]
        wanted: tuple[str, ...] = self.attentions or tuple(stacks[-1:])
        for where in wanted:
            if (where if where != "cross" else "decoder") not in stacks:
                raise ValueError(f"adapter.attentions: this model has no {where}; it has {', '.join(stacks)}")
        for where in wanted:
            found = 0
            for attention in model.get_submodule("decoder" if where == "cross" else where).modules():
                if isinstance(attention, CrossAttention if where == "cross" else SelfAttention):
                    attention.mix = _with_prefix(attention, self)
                    found += 1
            if not found:
                raise ValueError(f"adapter prefix: the {where} has no multi-head attention; choose lora")
        if self.shift and "decoder" in wanted:
            _shift(model, self.length)
        return {name for name, _ in model.named_parameters() if ".prefix." in name}


class Prefix(nn.Module):
    """Keys and values (length, kv_heads head) of one attention, or the network that they come from."""

    def __init__(self, size: int, config: PrefixConfig, like: Tensor) -> None:
        super().__init__()
        self.network = config.network
        if not config.network:
            self.key = nn.Parameter(like.new_empty(config.length, size).uniform_(-1, 1))
            self.value = nn.Parameter(like.new_empty(config.length, size).uniform_(-1, 1))
            return
        self.start = nn.Parameter(like.new_empty(config.length, config.network).uniform_(-1, 1))
        self.hidden = nn.Linear(config.network, config.network, device=like.device)
        self.last = nn.Linear(config.network, 2 * size, device=like.device)

    def forward(self) -> tuple[Tensor, Tensor]:
        if not self.network:
            return self.key, self.value
        key, value = self.last(torch.tanh(self.hidden(self.start))).chunk(2, dim=-1)
        return key, value


class PrefixSoftmax(Adapted, Softmax):
    prefix: Prefix
    head: int

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        sight: Sight,
        cache: LayerCache | None = None,
        others: tuple[Tensor, ...] = (),
    ) -> Tensor:
        if not self.active:
            return super().forward(query, key, value, sight=sight, cache=cache, others=others)
        if cache is not None:
            assert isinstance(cache, KeyValueCache)
            key, value = cache.append(key, value)
        visible = self._bias(query, key, sight)
        if visible is None:
            visible = sight.mask.dense(query.shape[2], key.shape[2], query.device)
        if visible is not None:  # bool: may see; float: added to the scores
            visible = F.pad(visible, (self.prefix_length, 0), value=visible.dtype is torch.bool)
        first = [self._split(one, len(key)) for one in self.prefix()]
        return F.scaled_dot_product_attention(
            query,
            torch.cat([first[0], key], dim=2),
            torch.cat([first[1], value], dim=2),
            attn_mask=visible if visible is None or visible.dtype is torch.bool else visible.to(query.dtype),
            dropout_p=self.dropout if self.training else 0.0,
            scale=self.scale,
            enable_gqa=bool(key.shape[1] != query.shape[1]),
        )

    def weights(self, query: Tensor, key: Tensor, *, sight: Sight, others: tuple[Tensor, ...] = ()) -> Tensor:
        """Those of the text's keys; what is missing to 1 goes to the prefix."""
        found = weights_of(query, key, sight=sight, scale=self.scale)
        if not self.active:
            return found
        first = share(self._split(self.prefix()[0], len(key)), query.shape[1])
        ours = (self.scale * query @ first.transpose(-2, -1)).logsumexp(-1, keepdim=True)  # batch heads query 1
        bias = sight.bias()
        scores = self.scale * query @ share(key, query.shape[1]).transpose(-2, -1)
        scores = scores if bias is None else scores + bias.to(scores.dtype)
        term = sight.score(query, key)
        scores = scores if term is None else scores + self.scale * term.to(scores.dtype)
        visible = sight.mask.dense(query.shape[2], key.shape[2], query.device)
        scores = scores if visible is None else scores.masked_fill(~visible, -torch.inf)
        theirs = scores.logsumexp(-1, keepdim=True)
        return found * torch.sigmoid(theirs - ours)

    @property
    def prefix_length(self) -> int:
        return len(self.prefix.start if self.prefix.network else self.prefix.key)

    def _split(self, x: Tensor, rows: int) -> Tensor:
        """length (kv_heads head) -> rows kv_heads length head"""
        return x.unflatten(-1, (-1, self.head)).transpose(0, 1).expand(rows, -1, -1, -1)


class ShiftedTransformer(Adapted, Transformer):
    """Its positions begin at `shift`."""

    shift: int

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        segments: Tensor | None = None,
        prefix: Tensor | None = None,
        global_tokens: Tensor | None = None,
        positions: Tensor | None = None,
        memory: Memory | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        assert cache is None or isinstance(cache, LayersCache | SegmentMemory)
        if self.active:
            positions = self._next_positions(x, segments, cache) if positions is None else positions
            positions = positions + self.shift
        facts = {"valid": valid, "segments": segments, "prefix": prefix, "global_tokens": global_tokens}
        return super().forward(x, positions=positions, memory=memory, cache=cache, **facts)


def _with_prefix(attention: SelfAttention | CrossAttention, config: PrefixConfig) -> PrefixSoftmax:
    if type(attention.mix) is not Softmax:
        kind = type(attention.mix).__module__.rpartition(".")[2]
        raise ValueError(f"adapter prefix needs attention softmax, not {kind}; choose lora")
    found = adopted(attention.mix, PrefixSoftmax)
    fused = attention.query_key_value if isinstance(attention, SelfAttention) else attention.key_value
    found.head = attention.head
    found.prefix = Prefix(fused.parts[-1], config, attention.output.weight.detach())
    return found


def _shift(model: Model, length: int) -> None:
    """Let the positions of the decoder begin behind the prefix."""
    stack = model.get_submodule("decoder")
    if type(stack) is not Transformer:
        raise ValueError("adapter.shift needs stack transformer; set adapter.shift=false")
    found = adopted(stack, ShiftedTransformer)
    found.shift = length
    if stack.limit is not None:
        if stack.limit <= length:
            raise ValueError(f"adapter.length {length} leaves none of the model's {stack.limit} positions")
        model.limit = cast(int, model.limit) - length
    model.decoder = found
