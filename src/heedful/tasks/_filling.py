"""Models that fill in masked words, ready to use."""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.data.corpus import Line, read_texts
from heedful.data.masking import is_special
from heedful.data.padding import pad
from heedful.data.pieces import Texts
from heedful.tasks._labelled import Opened
from heedful.tasks._reading import by_length, framed
from heedful.text.tokenizer import ROLES
from heedful.text.whole_words import SPACES

BEST = 5  # candidates for each mask
BUDGET = 2048  # tokens of a batch


class Filler:
    """Fills in the masks of texts. Each mask is predicted by itself: of two in a text, neither knows the other's
    word."""

    def __init__(self, held: Opened, measure: Callable[[Texts], dict[str, float]]) -> None:
        self.opened, self.model, self.tokenizer = held, held.model, held.tokenizer
        self._measure = measure
        names = {self.tokenizer.token(self.tokenizer.mask), *ROLES["mask"]}
        self.masks = re.compile("|".join(re.escape(name) for name in sorted(names)))

    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """`text`: with the best words filled in; `masks`: for each mask the best five tokens, with their
        probabilities. A mask is written [MASK], <mask>, or as in the tokenizer."""
        rows = [self._row(number, text) for number, text in enumerate(texts, start=1)]
        found: list[dict[str, Any]] = [{}] * len(rows)
        for batch in by_length([len(row) for row in rows], BUDGET):
            scores = self._log_probs([rows[index] for index in batch])
            for index, each in zip(batch, scores, strict=True):
                best = [self._best(one) for one in each]
                found[index] = {"text": self._filled(texts[index], [one[0]["token"] for one in best]), "masks": best}
        return found

    def show(self, found: dict[str, Any]) -> str:
        """The candidates for each mask, for a person: `cat 0.31  dog 0.12  ... | mat 0.52  ...`"""
        lists = [
            [f"{one['text'].strip() or repr(one['text'])} {one['score']:.2f}" for one in b] for b in found["masks"]
        ]
        return " | ".join(map("  ".join, lists))

    def evaluate(self, test: Path) -> dict[str, Any]:
        """Loss, accuracy and perplexity of masked tokens of a text file, with the masks of validation."""
        lines = [line.texts[0] for line in read_texts([test]) if isinstance(line, Line)]
        rows = self.tokenizer.encode(lines)
        if sum(map(len, rows)) < 2:
            raise ValueError(f"{test} is too short to score")
        return {"documents": len(rows), "tokens": sum(map(len, rows)), **self._measure(Texts.from_rows(rows))}

    def _row(self, number: int, text: str) -> list[int]:
        """The tokens of a text, framed."""
        parts = self.masks.split(text.strip())
        if len(parts) < 2:
            raise ValueError(
                f"line {number} has no mask: {text.strip()[:40]!r}; write [MASK] where a word is to be found"
            )
        # The space before a word belongs to its token, so that before a mask belongs to the mask.
        encoded = self.tokenizer.encode([part.rstrip(" ") for part in parts[:-1]] + parts[-1:])
        row = list(encoded[0])
        for part in encoded[1:]:
            row += [self.tokenizer.mask, *part]
        framed_row, _ = framed([row], self.tokenizer.frame)
        if len(framed_row) > self.opened.length:
            raise ValueError(
                f"line {number} has {len(framed_row)} tokens, but the model reads {self.opened.length}; shorten it"
            )
        return framed_row

    @torch.inference_mode()
    def _log_probs(self, rows: Sequence[Sequence[int]]) -> list[Tensor]:
        """For each row, masks vocab; tokens that cannot be written are impossible."""
        tokens, valid = (part.to(self.model.device) for part in pad(rows, fill=self.tokenizer.pad))
        states = self.model(tokens, valid=valid)
        masked = (tokens == self.tokenizer.mask) & valid
        log_probs = self.model.predict("masked_lm", states[masked]).float().log_softmax(-1)
        log_probs = log_probs.cpu().masked_fill(self._impossible(log_probs.shape[-1]), float("-inf"))
        return list(log_probs.split(masked.sum(1).tolist()))

    def _impossible(self, vocab: int) -> Tensor:
        """Special tokens, and rows of the table that have no token."""
        found = torch.ones(vocab, dtype=torch.bool)
        found[self._known] = False
        return found

    @cached_property
    def _known(self) -> Tensor:
        special = is_special(self.tokenizer)
        return torch.tensor([index for index in self.tokenizer.token_ids().values() if not special[index]])

    def _best(self, log_probs: Tensor) -> list[dict[str, Any]]:
        values, tokens = log_probs.topk(min(BEST, len(self._known)))
        return [
            {"token": self.tokenizer.token(token), "text": self._written(self.tokenizer.token(token)), "score": score}
            for token, score in zip(tokens.tolist(), values.exp().tolist(), strict=True)
        ]

    def _written(self, token: str) -> str:
        """A token as text: with the space that it begins with, without the mark of one that continues a word."""
        prefix = self.tokenizer.continuation
        if prefix:
            return token.removeprefix(prefix)
        (text,) = self.tokenizer.decode([[self.tokenizer.token_ids()[token]]])
        return " " + text.lstrip() if token[:1] in SPACES and text.strip() else text

    def _filled(self, text: str, tokens: Sequence[str]) -> str:
        """The text with these tokens in place of its masks."""
        first, *rest = self.masks.split(text.strip())
        filled, prefix = first, self.tokenizer.continuation
        for token, part in zip(tokens, rest, strict=True):
            if not prefix:
                filled = filled.rstrip(" ")
            elif token.startswith(prefix):
                filled = filled.rstrip()
            written = self._written(token)
            filled += (written if filled else written.lstrip(" ")) + part
        return filled
