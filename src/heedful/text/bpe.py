"""Byte-pair encoding in thirty lines: a reference for the fast implementation, and for BPE-dropout."""

import random
from itertools import pairwise

from heedful.text.tokenizer import Tokenizer


class MergingBpe:
    """Applies a tokenizer's merges one by one.      Sennrich et al. 2016; with `dropout` Provilkov et al. 2020

    At each step the applicable merge of lowest rank is applied. With dropout, each applicable merge is skipped with
    that probability at each step, so that a word is segmented in different ways.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ids = tokenizer.token_ids()
        self.unknown = tokenizer.unk or 0
        self.rank = {pair: rank for rank, pair in enumerate(tokenizer.merges())}

    def encode(self, text: str, *, dropout: float = 0.0, chance: random.Random | None = None) -> list[int]:
        return [token for word in self.tokenizer.split_words(text) for token in self._word(word, dropout, chance)]

    def _word(self, word: str, dropout: float, chance: random.Random | None) -> list[int]:
        pieces = [piece for character in word for piece in self._known(character)]
        while True:
            found = [
                (self.rank[pair], place)
                for place, pair in enumerate(pairwise(pieces))
                if pair in self.rank and not (dropout and chance and chance.random() < dropout)
            ]
            if not found:
                return [self.ids.get(piece, self.unknown) for piece in pieces]
            _, place = min(found)
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]

    def _known(self, character: str) -> list[str]:
        """A character that is not in the vocabulary is spelled in bytes."""
        if character in self.ids:
            return [character]
        return [f"<0x{byte:02X}>" for byte in character.encode()]
