"""Inputs: tokens, image patches or audio frames -> vectors, and which of them are real. One file each; the file's name
is the name in a recipe.
"""

from typing import ClassVar

from torch import Tensor, nn

from heedful.config import PartConfig
from heedful.model.cpu.plan import Plan, Reason


class Input(nn.Module):
    """The contract."""

    def forward(self, source: Tensor, *, valid: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """-> (vectors, valid): batch source width, and which of them are real (None = all). There may be fewer vectors
        than tokens, pixels or frames; the returned `valid` describes the vectors."""
        raise NotImplementedError

    def plan(self) -> Plan | Reason:
        """What our CPU kernels need to run this, or the reason why they cannot. Define this method to use a kernel. A
        class that changes what is computed does not inherit it (see `cpu/door.py`)."""
        return Reason("no kernel yet")


class InputConfig(PartConfig):
    folder: ClassVar[str] = "model/input"
    default: ClassVar[str] = "tokens"

    def width_in(self, width: int) -> int:
        """The width of its vectors in a model of this width."""
        return width

    def build(self, *, width: int, vocab: int) -> Input:
        """`vocab`: the size of the vocabulary, for an input that reads tokens."""
        raise NotImplementedError

    def parameters(self, *, width: int, vocab: int) -> int:
        return 0
