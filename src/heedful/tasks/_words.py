"""Words in windows of tokens: where the first token of each word stands, once for each word."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from heedful.data.padding import Row
from heedful.tasks._reading import Windows, windows
from heedful.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Words:
    """Texts in windows, and the place of the first token of each word, text after text. A word in several windows is
    read in the one that shows most around it."""

    texts: Windows
    window: Tensor  # words
    place: Tensor  # words
    counts: Tensor  # texts: how many words each has

    def to(self, device: torch.device) -> "Words":
        return Words(self.texts.to(device), self.window.to(device), self.place.to(device), self.counts.to(device))

    def states(self, states: Tensor) -> Tensor:
        """States of tokens (windows length width) -> of the first token of each word (words width)."""
        return states[self.window, self.place]

    @property
    def valid(self) -> Tensor:
        """Where `padded` has words: texts longest."""
        return torch.arange(int(self.counts.max()), device=self.counts.device) < self.counts[:, None]

    def padded(self, values: Tensor) -> Tensor:
        """Values of words (words ...) -> texts longest ..., zeros after the last word of each text."""
        valid = self.valid
        found = values.new_zeros((*valid.shape, *values.shape[1:]))
        return found.masked_scatter(valid.reshape(*valid.shape, *[1] * (values.ndim - 1)), values)


def find_words(rows: Sequence[Row], firsts: Sequence[np.ndarray], tokenizer: Tokenizer, *, length: int) -> Words:
    """Texts as tokens, and which tokens of each are the first of a word."""
    texts = windows([(row,) for row in rows], tokenizer, length=length)
    owner, start = texts.owner.numpy(), texts.start.numpy()
    sizes = texts.valid.sum(1).numpy() - tokenizer.frame.size(1)
    found, places = [], []
    for text, tokens in enumerate(firsts):
        shown = np.flatnonzero(owner == text)
        best = most_context(tokens, start[shown], sizes[shown])
        found.append(shown[best])
        places.append(tokens - start[shown[best]] + texts.offset.numpy()[shown[best]])
    counts = torch.tensor([len(tokens) for tokens in firsts])
    return Words(texts, torch.from_numpy(np.concatenate(found)), torch.from_numpy(np.concatenate(places)), counts)


def most_context(tokens: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The window, by its start and size, in which each token has the most tokens on its poorer side.      Devlin et al.
    2019, as in their code for SQuAD"""
    before = tokens[:, None] - starts  # tokens windows
    after = starts + sizes - 1 - tokens[:, None]
    inside = (before >= 0) & (after >= 0)
    found: np.ndarray = np.where(inside, np.minimum(before, after), -1).argmax(1)
    return found
