"""Padding rows of tokens into one tensor."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

Row = Sequence[int] | np.ndarray


def pad(
    rows: Sequence[Row], *, first: int | None = None, last: int | None = None, fill: int = 0
) -> tuple[Tensor, Tensor]:
    """Rows of different lengths -> (tokens, valid), with a first or last token added, padded on the right with
    `fill`."""
    before, after = int(first is not None), int(last is not None)
    lengths = np.array([len(row) for row in rows]) + before + after
    tokens = np.full((len(rows), int(lengths.max())), fill, dtype=np.int64)
    for place, row in enumerate(rows):
        tokens[place, before : before + len(row)] = row
    if first is not None:
        tokens[:, 0] = first
    if last is not None:
        tokens[np.arange(len(rows)), lengths - 1] = last
    return torch.from_numpy(tokens), torch.from_numpy(np.arange(tokens.shape[1]) < lengths[:, None])
