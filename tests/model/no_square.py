"""A watch for matrices of all queries and all keys: every tensor that torch makes, forwards and backwards, is seen."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class NoSquare(TorchDispatchMode):
    """Within the block, no operation may give a tensor of `length` x `length` numbers or more.

    with NoSquare(2048):
        model(text).sum().backward()
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, torch.Tensor):
                # What is only repeated (expand) takes no room.
                room = min(one.numel(), one.untyped_storage().nbytes() // one.element_size())
                self.largest = max(self.largest, room)
                assert room < self.length**2, f"{function} made {tuple(one.shape)}, with {self.length} tokens"
        return made
