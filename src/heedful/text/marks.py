"""Texts with marks where something is to be filled in: `the <extra_id_0> sat`, `the <mask> sat`."""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate

from heedful.text.tokenizer import ROLES, SENTINEL, Tokenizer

MARK = re.compile("|".join([SENTINEL.pattern.replace("(", "(?:"), *map(re.escape, ROLES["mask"])]))


class Marked(Tokenizer):
    """A tokenizer that reads marks in a text as special tokens, and shows them when it decodes.

    `marks`: the tokens for the first mark of a text, the second, and so on; the last one stands for all further ones.
    How a mark is written does not matter: [MASK], <mask> and <extra_id_7> all are the next one.
    """

    def __init__(self, tokenizer: Tokenizer, marks: Sequence[int]) -> None:
        super().__init__(tokenizer._backend, tokenizer._names)
        self.marks = list(marks)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        # The space before a word belongs to its token, so that before a mark belongs to the mask.
        parts = [MARK.split(text) for text in texts]
        pieces = super().encode([piece for some in parts for piece in (*(p.rstrip(" ") for p in some[:-1]), some[-1])])
        ends = accumulate(map(len, parts))
        return [self._joined(pieces[end - len(some) : end]) for some, end in zip(parts, ends, strict=True)]

    def decode(self, rows: Iterable[Iterable[int]]) -> list[str]:
        silent = self.specials - set(self.marks)
        return self._backend.decode_batch(
            [[int(token) for token in row if token not in silent] for row in rows], skip_special_tokens=False
        )

    @cached_property
    def never(self) -> tuple[int, ...]:
        """A model for spans writes sentinels."""
        return tuple(sorted(self.specials - {self.special("eos"), self.special("unk"), *self.sentinels}))

    def _joined(self, pieces: list[list[int]]) -> list[int]:
        tokens = list(pieces[0])
        for number, piece in enumerate(pieces[1:]):
            tokens += [self.marks[min(number, len(self.marks) - 1)], *piece]
        return tokens
