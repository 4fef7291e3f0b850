"""No positions: the model knows the order from the causal mask alone, or not at all."""

from heedful.model.cpu.plan import PositionPlan
from heedful.model.position import Position, PositionConfig


class NoneConfig(PositionConfig):
    def build(self, *, width: int, heads: int, head_width: int, causal: bool) -> "NoPosition":
        return NoPosition()


class NoPosition(Position):
    def plan(self) -> PositionPlan:
        return PositionPlan(self.embed, self.limit)
