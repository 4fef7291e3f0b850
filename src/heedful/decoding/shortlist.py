"""Lexical shortlist: the likely target tokens of each source token, so that a step need not score the whole vocabulary.

Learned from the training pairs by IBM model 1 (Brown et al. 1993), starting from a uniform distribution. A sentence may
use the lists of its tokens, the most frequent target tokens and, with a joint vocabulary, its own tokens (names are
copied). It costs a little quality: a token outside the list cannot be generated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from heedful.bounded import header
from heedful.files import in_place

Rows = Sequence[np.ndarray] | Sequence[Sequence[int]]
EACH, COMMON = 50, 500
ENTRIES = 2_000_000  # co-occurrences of a source and a target token; more would take time and add little
ROUNDS = 3
NAME = "shortlist.safetensors"


@dataclass(frozen=True)
class Shortlist:
    """`table`: source_vocab each, the most likely first, padded with a token that is always allowed; `common`: tokens
    that are always allowed; `joint`: source and target share a vocabulary."""

    table: Tensor
    common: Tensor
    joint: bool

    def allowed(self, source: Tensor, vocab: int) -> Tensor:
        """Which tokens a translation may use: sentences vocab."""
        found = torch.zeros(len(source), vocab, dtype=torch.bool, device=source.device)
        found[:, self.common.to(source.device)] = True
        found.scatter_(1, self.table.to(source.device)[source].flatten(1), True)
        return found.scatter_(1, source, True) if self.joint else found

    def save(self, folder: Path) -> None:
        tensors = {"table": self.table.int(), "common": self.common.int(), "joint": torch.tensor(self.joint)}
        with in_place(folder / NAME) as temporary:
            save_file(tensors, temporary)

    @classmethod
    def load(cls, folder: Path) -> "Shortlist":
        if not (folder / NAME).is_file():
            raise ValueError(f"{folder} has no {NAME}; it is written at the end of training")
        path = folder / NAME
        held = header(path)
        shapes = [held[name].shape if name in held else None for name in ("table", "common", "joint")]
        table, common, joint = shapes
        if table is None or common is None or joint != () or (len(table), len(common)) != (2, 1) or not common[0]:
            raise ValueError(f"{path} does not hold a shortlist: it needs a table, a list of common tokens, and joint")
        if not {held["table"].dtype, held["common"].dtype} <= {"I32", "I64"}:
            raise ValueError(f"{path} holds no whole numbers")
        tensors = load_file(path)
        return cls(tensors["table"].long(), tensors["common"].long(), bool(tensors["joint"]))

    def refuse_misfit(self, folder: Path, *, source_vocab: int, vocab: int) -> None:
        """ValueError unless it has a row for each source token, and only tokens of the target's vocabulary."""
        rows, each = self.table.shape
        if rows < source_vocab or (self.joint and source_vocab > vocab) or max(each, len(self.common)) > vocab:
            raise ValueError(f"{folder / NAME} has {rows:,} rows of {each:,} tokens, which does not fit vocabularies "
                             f"of {source_vocab:,} and {vocab:,}")  # fmt: skip
        for ids in (self.table, self.common):
            if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
                raise ValueError(f"{folder / NAME} holds tokens outside the vocabulary of {vocab:,}")


def learn(
    sources: Rows, targets: Rows, *, source_vocab: int, vocab: int, always: Sequence[int], joint: bool
) -> Shortlist:
    """From pairs of token rows. `always`: tokens that are allowed whatever the source, such as </s>."""
    frequency = np.bincount(np.concatenate([np.asarray(row) for row in targets]), minlength=vocab)
    common = np.unique([*always, *np.argsort(-frequency, kind="stable")[:COMMON]])
    keys, entry, places = _cooccurrences(sources, targets, vocab, np.isin(np.arange(vocab), common))
    source_of, chance = keys // vocab, np.ones(len(keys))
    for _ in range(ROUNDS):
        shares = chance[entry]
        shares /= np.bincount(places, shares)[places]
        counts = np.bincount(entry, shares, minlength=len(keys))
        chance = counts / np.bincount(source_of, counts, minlength=source_vocab)[source_of]
    table = np.full((source_vocab, EACH), always[0])
    order = np.lexsort((-chance, source_of))
    starts = np.searchsorted(source_of[order], np.arange(source_vocab))
    rank = np.arange(len(order)) - starts[source_of[order]]
    within = rank < EACH
    table[source_of[order][within], rank[within]] = keys[order][within] % vocab
    return Shortlist(torch.from_numpy(table), torch.from_numpy(common), joint)


def _cooccurrences(
    sources: Rows, targets: Rows, vocab: int, left_out: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every target token with every source token of its sentence: the distinct pairs, each as one number; for each
    co-occurrence, which pair it is; and which target token of the corpus."""
    found: list[np.ndarray] = []
    places: list[np.ndarray] = []
    count = total = 0
    for source, target in zip(sources, targets, strict=True):
        distinct, written = np.array(sorted(set(source)), dtype=np.int64), np.asarray(target, dtype=np.int64)
        written = written[~left_out[written]]
        found.append((distinct[None] * vocab + written[:, None]).ravel())
        places.append(np.repeat(np.arange(count, count + len(written), dtype=np.int32), len(distinct)))
        count, total = count + len(written), total + len(found[-1])
        if total > ENTRIES:
            break
    every = np.concatenate(found)
    order = np.argsort(every, kind="stable")
    ordered = every[order]
    new = np.diff(ordered, prepend=-1) > 0
    entry = np.empty(len(order), dtype=np.int32)
    entry[order] = np.cumsum(new) - 1
    return ordered[new], entry, np.concatenate(places)
