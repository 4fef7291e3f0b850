"""How many target tokens each source token stands for, for every pair of a corpus: found once, then read from disk.

The targets of training (Gu et al. 2018, section 3.3) are counts of an alignment: each target token belongs to one
source token, or to the </s> after them, so that a row's fertilities always sum to the length of its target.

    the  cat  sleeps  </s>          la  chatte  dort  bien
     1    1     2      0             0    1      2     2        source token of each target token
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from heedful.alignment import Aligner
from heedful.checkpoint import load_model
from heedful.data.batches import cut
from heedful.data.digest import file_digest
from heedful.data.prepare import Prepared, load_tokenizers
from heedful.data.store import Store
from heedful.files import in_place
from heedful.model.architecture import SequenceToSequence
from heedful.text.tokenizer import Tokenizer

TOKENS = 4096  # aligned at once
Counter = Callable[[list[np.ndarray], list[np.ndarray]], list[np.ndarray]]  # sources, targets -> fertilities


class Teacher:
    """A translator of ours that writes word by word: it aligns the corpus, and may teach its probabilities."""

    def __init__(self, folder: Path, tokenizers: Sequence[Tokenizer]) -> None:
        model = load_model(folder)
        if not isinstance(model, SequenceToSequence):
            raise ValueError(f"task.teacher: {folder} holds a {model.config.kind} model; give a translator's folder")
        if [one.digest() for one in load_tokenizers(folder, columns=2)] != [one.digest() for one in tokenizers]:
            raise ValueError(
                f"task.teacher: {folder} has another tokenizer than the model that is trained, and would read its "
                "words as others; leave out tokenizer.file and start_from, or give their teacher"
            )
        self.folder, self.model, self.tokenizers = folder, model, tokenizers
        self.aligner = Aligner.load(folder)

    @property
    def name(self) -> str:
        """Changes with anything that its alignments depend on."""
        return " ".join(file_digest(self.folder / file) for file in ("model.safetensors", "alignment.json"))

    def count(self, sources: list[np.ndarray], targets: list[np.ndarray]) -> list[np.ndarray]:
        """The fertilities of each pair: how many target tokens attend most to each source token."""
        given = [row.tolist() for row in sources], [row.tolist() for row in targets]
        places = self.aligner.places(self.model, self.tokenizers, *given)
        return [np.bincount(some, minlength=len(row) + 1) for some, row in zip(places, sources, strict=True)]


def count_evenly(sources: list[np.ndarray], targets: list[np.ndarray]) -> list[np.ndarray]:
    """Without a teacher: the target is spread evenly, token t of T to source token floor(t S / T) of S."""
    return [
        np.bincount(np.arange(len(target)) * len(source) // max(1, len(target)), minlength=len(source) + 1)
        for source, target in zip(sources, targets, strict=True)
    ]


def limited(counts: np.ndarray, most: int) -> np.ndarray:
    """The same sum with no number above `most`: what is too much goes to the nearest places with room."""
    if counts.max(initial=0) <= most:
        return counts
    counts = counts.copy()
    for place in np.flatnonzero(counts > most):
        surplus, counts[place] = counts[place] - most, most
        for other in np.argsort(np.abs(np.arange(len(counts)) - place), kind="stable"):
            moved = min(surplus, max(0, most - counts[other]))
            counts[other] += moved
            surplus -= moved
    return counts


def needed(prepared: Prepared) -> int:
    """The highest fertility that some pair cannot do without."""
    found = 1
    for split in ("train", "valid"):
        if prepared.has(split):
            store = prepared.store(split)
            found = max(found, int(np.max(-(-store.lengths(1) // (store.lengths(0) + 1)), initial=1)))
    return found


class Fertilities:
    """The fertilities of a split, in a file beside its tokens: a number for each source token and its </s>."""

    def __init__(self, prepared: Prepared, split: str, teacher: Teacher | None, *, most: int) -> None:
        store = prepared.store(split)
        name = "even" if teacher is None else blake2b(teacher.name.encode(), digest_size=8).hexdigest()
        path = prepared.folder / f"{split}.{name}.{most}.fertilities"
        self.starts = store.offsets[0].astype(np.int64) + np.arange(len(store) + 1)
        if not path.exists():
            with in_place(path) as place:
                _write(place, store, self.starts, count_evenly if teacher is None else teacher.count, most)
        self.counts = np.memmap(path, dtype=np.uint16, mode="r")

    def rows(self, indices: np.ndarray) -> list[np.ndarray]:
        return [self.counts[self.starts[index] : self.starts[index + 1]] for index in indices]


def _write(path: Path, store: Store, starts: np.ndarray, count: Counter, most: int) -> None:
    counts = np.memmap(path, dtype=np.uint16, mode="w+", shape=(int(starts[-1]),))
    lengths = np.stack([store.lengths(0), store.lengths(1)], axis=1) + 1
    for rows in cut(np.arange(len(store)), lengths, TOKENS):
        for row, found in zip(rows, count(store.rows(0, rows), store.rows(1, rows)), strict=True):
            counts[starts[row] : starts[row + 1]] = limited(found, most)
    counts.flush()
