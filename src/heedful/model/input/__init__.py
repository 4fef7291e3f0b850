"""What comes in: tokens, patches of a picture, frames of sound -> vectors, and which of them are real. One file each;
the file's name is the name in a recipe.
"""

from typing import ClassVar

from torch import Tensor, nn

from heedful.config import PartConfig
from heedful.model.cpu.plan import Plan, Reason


class Input(nn.Module):
    """The contract."""

    def forward(self, source: Tensor, *, valid: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """-> (vectors, valid): batch source width, and which of them are real (None = all). There may be fewer vectors
        than there were tokens, pixels or frames; `valid` then says it of the vectors."""
        raise NotImplementedError

    def plan(self) -> Plan | Reason:
        """What our CPU kernels need to run this, or why they cannot: a kernel is asked for by defining this method. It
        is not inherited by a class that changes what is computed (see `cpu/door.py`)."""
        return Reason("no kernel yet")


class InputConfig(PartConfig):
    folder: ClassVar[str] = "model/input"
    default: ClassVar[str] = "tokens"

    def width_in(self, width: int) -> int:
        """The width of the vectors it gives in a model of this width."""
        return width

    def build(self, *, width: int, vocab: int) -> Input:
        """`vocab`: how many tokens there are, for an input that reads tokens."""
        raise NotImplementedError

    def parameters(self, *, width: int, vocab: int) -> int:
        return 0
