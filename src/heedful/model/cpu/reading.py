"""Models that read (encoder-only), on a CPU, when they are not being trained: the same states, by our own kernels.

Padding is not computed: the tokens of all texts stand one after the other, and only attention needs to know where each
ends. The weights are packed once, so a reader keeps those that the model had when the reader was made.
"""

from copy import deepcopy
from typing import Literal

import torch
from torch import Tensor

from heedful.model.architecture import Reader
from heedful.model.cpu import door
from heedful.model.cpu.kernels import PANEL
from heedful.model.cpu.plan import ReaderPlan, Reason
from heedful.model.cpu.stack import Stack
from heedful.model.int8 import quantize_int8

Quantize = Literal[False, "int8"]


def reader(model: Reader, quantize: Quantize = False) -> "FastReader":
    """`int8` rounds the weights of a copy; the model itself is not changed."""
    if quantize not in (False, "int8"):
        raise ValueError(f"quantize is {quantize!r}; choose False or 'int8'")
    if model.training:
        raise ValueError("the model is in training mode, where dropout changes its states; call model.eval() first")
    if quantize:
        model = deepcopy(model)
        quantize_int8(model)
    return FastReader(model)


class FastReader:
    """Called like the model; `predict` is the model's too.

    `reason`: why the model itself does everything, None = it does not. Differs: states of padding are zeros.
    """

    def __init__(self, model: Reader) -> None:
        self.model, self.token_types, self.device = model, getattr(model, "token_types", None), model.device
        plan = _plan(model)
        self.reason = plan if isinstance(plan, Reason) else None
        self.packed = _Packed(plan) if isinstance(plan, ReaderPlan) else None

    @torch.no_grad()
    def __call__(self, source: Tensor, *, token_types: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """Token ids (batch query) -> states (batch query width)."""
        if self.packed is None or source.device.type != "cpu":
            states: Tensor = self.model(source, token_types=token_types, valid=valid)
            return states
        if valid is None:
            valid = torch.ones(source.shape, dtype=torch.bool)
        return self.packed.read(source, token_types, valid)

    def predict(self, head: str, states: Tensor) -> Tensor:
        """The output of a head: logits, or the pooled vector."""
        with torch.no_grad():
            found = self.model.predict(head, states)
        if not found.isfinite().all():
            raise ValueError("the model computes NaN or infinite numbers: its weights are damaged or too large")
        return found


def _plan(model: Reader) -> ReaderPlan | Reason:
    missing = door.no_kernels()
    if missing is not None:
        return missing
    plan = door.plan_of(model)
    if not isinstance(plan, ReaderPlan):
        return plan if isinstance(plan, Reason) else Reason(f"{type(model).__name__}: no kernel yet")
    if plan.encoder.causal:
        return Reason("causal: no kernel yet", "encoder")
    if (reason := plan.encoder.only_steps()) is not None:
        return reason.at("encoder")
    head = plan.encoder.layers[0].attention.head
    return Reason(f"head {head} is not a multiple of {PANEL}", "encoder") if head % PANEL else plan


class _Packed:
    def __init__(self, plan: ReaderPlan) -> None:
        self.stack = Stack(plan.encoder, plan.table)
        self.token_types = None if plan.token_types is None else plan.token_types.detach().clone()

    def read(self, source: Tensor, token_types: Tensor | None, valid: Tensor) -> Tensor:
        stack, (batch, length) = self.stack, source.shape
        known = stack.positions(length)
        if len(known) < length:
            raise ValueError(f"{length} tokens, but this model learned {len(known)} positions; shorten the input")
        states = torch.zeros(batch * length, stack.width)
        places = valid.flatten().nonzero().flatten()  # of the real tokens
        if not len(places):
            return states.view(batch, length, -1)
        added = known[places % length]
        if self.token_types is not None:
            kinds = 0 if token_types is None else token_types.flatten()[places]
            added = added + self.token_types[kinds]
        x = stack.embed(source.flatten()[places], added)
        stack.layers.encode_packed(x, valid.sum(1))
        return states.index_copy_(0, places, stack.finished(x)).view(batch, length, -1)
