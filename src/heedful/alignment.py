"""Word alignment from cross-attention.

Few of a model's heads align words. The best one is chosen once, at the end of training: the one whose links join words
that often co-occur in sentence pairs.
"""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from heedful.data.padding import pad
from heedful.files import write_text
from heedful.model.architecture import SequenceToSequence
from heedful.model.multihead import MemoryAttention
from heedful.model.record import Recorded, recorded
from heedful.text.tokenizer import Tokenizer
from heedful.text.words import word_spans, words

Tokenizers = Sequence[Tokenizer]  # for source and target
Links = list[tuple[int, int]]  # (source word, target word), from 0
LONGEST = 512  # words of a text that heads are tried on: token by word, that grows with the square
BATCH = 64


@dataclass(frozen=True)
class Aligner:
    """A layer and a head; `score` is the mean association of the words it links."""

    layer: int
    head: int
    score: float = 0.0

    def align(self, model: SequenceToSequence, tokenizers: Tokenizers, pairs: Sequence[tuple[str, str]]) -> list[Links]:
        """For each pair, the source word that each target word attends to most."""
        found: list[Links] = []
        for start in range(0, len(pairs), BATCH):
            chunk = pairs[start : start + BATCH]
            weights = _attentions(model, tokenizers, *_encoded(tokenizers, chunk))[self.layer].shown_weights()[
                :, self.head
            ]
            found += [_links(_memberships(tokenizers, pair), weights[row]) for row, pair in enumerate(chunk)]
        return found

    def weights(
        self, model: SequenceToSequence, tokenizers: Tokenizers, source: list[int], target: list[int]
    ) -> Tensor:
        """How much each target token, when it is generated, attends to each source token: target source."""
        return _attentions(model, tokenizers, [source], [target])[self.layer].shown_weights()[0, self.head]

    def places(
        self, model: SequenceToSequence, tokenizers: Tokenizers, sources: list[list[int]], targets: list[list[int]]
    ) -> list[list[int]]:
        """For each pair, the place of the source token that each target token attends to most; the last one is </s>."""
        weights = _attentions(model, tokenizers, sources, targets)[self.layer].shown_weights()[:, self.head]
        chosen = weights.argmax(-1).tolist()
        return [row[: len(target)] for row, target in zip(chosen, targets, strict=True)]

    def save(self, folder: Path) -> None:
        write_text(folder / "alignment.json", json.dumps(asdict(self), indent=2))

    @classmethod
    def load(cls, folder: Path) -> "Aligner":
        path = folder / "alignment.json"
        if not path.is_file():
            raise ValueError(f"{folder} has no alignment.json: no alignment head has been chosen")
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def choose(
    model: SequenceToSequence,
    tokenizers: Tokenizers,
    pairs: Sequence[tuple[str, str]],
    *,
    lexicon: Sequence[tuple[str, str]],
) -> Aligner | None:
    """The head that aligns these pairs best, judged by co-occurrences in the pairs of `lexicon`. None if the model has
    no cross-attention, or one without weights, or if all pairs are too long to try."""
    given = [pair for pair in pairs if words(pair[0]) and words(pair[1])]
    pairs = [pair for pair in given if max(len(words(text)) for text in pair) <= LONGEST]
    if given and not pairs:
        return None
    association = _association(pairs, [*lexicon, *pairs])
    totals: dict[tuple[int, int], float] = {}
    count = 0
    for start in range(0, len(pairs), BATCH):
        chunk = pairs[start : start + BATCH]
        both = [(words(source), words(target)) for source, target in chunk]
        memberships = [_memberships(tokenizers, pair) for pair in chunk]
        for layer, attention in enumerate(_attentions(model, tokenizers, *_encoded(tokenizers, chunk))):
            weights = attention.weights()
            if weights is None:
                continue
            for head in range(weights.shape[1]):
                value = sum(
                    association(sources[s], targets[t])
                    for row, (sources, targets) in enumerate(both)
                    for s, t in _links(memberships[row], weights[row, head])
                )
                totals[layer, head] = totals.get((layer, head), 0.0) + value
        count += sum(len(targets) for _, targets in both)
    if not totals:
        return None if pairs else Aligner(0, 0)
    (layer, head), total = max(totals.items(), key=lambda item: item[1])
    return Aligner(layer, head, total / max(1, count))


def _encoded(tokenizers: Tokenizers, pairs: Sequence[tuple[str, str]]) -> tuple[list[list[int]], list[list[int]]]:
    return tokenizers[0].encode([s for s, _ in pairs]), tokenizers[-1].encode([t for _, t in pairs])


@torch.inference_mode()
def _attentions(
    model: SequenceToSequence, tokenizers: Tokenizers, sources: list[list[int]], targets: list[list[int]]
) -> list[Recorded]:
    """The cross-attention of each layer, given the target; its weights are batch heads target source."""
    device = model.device
    source, valid = pad(sources, last=tokenizers[0].eos)
    target, _ = pad(targets, first=tokenizers[-1].start)
    with recorded(model, MemoryAttention) as seen:
        model(source.to(device), target.to(device), source_valid=valid.to(device))
    return seen


def _links(memberships: tuple[Tensor, Tensor], weights: Tensor) -> Links:
    """Link each target word to the source word with most of its weight. weights: target source"""
    sources, targets = memberships
    if not sources.numel() or not targets.numel():
        return []
    between = targets.T @ weights[: len(targets), : len(sources)].cpu().float() @ sources
    return [(source, word) for word, source in enumerate(between.argmax(1).tolist())]


def _memberships(tokenizers: Tokenizers, pair: tuple[str, str]) -> tuple[Tensor, Tensor]:
    return _membership(tokenizers[0], pair[0]), _membership(tokenizers[-1], pair[1])


def _membership(tokenizer: Tokenizer, text: str) -> Tensor:
    """token word: how much of each token is in each word. Without spaces, a token may contain several words."""
    starts, pieces = [start for start, _ in word_spans(text)], tokenizer.pieces(text)
    found = [[0.0] * len(starts) for _ in pieces]
    for row, (_, start, end) in enumerate(pieces):
        inside = [bisect_right(starts, place) - 1 for place in range(start, end) if not text[place].isspace()]
        for word in inside:
            found[row][word] += 1 / len(inside)
    return torch.tensor(found).view(len(pieces), len(starts))


def _association(asked: Sequence[tuple[str, str]], lexicon: Sequence[tuple[str, str]]) -> Callable[[str, str], float]:
    """Dice's coefficient of a source and a target word: how often they co-occur, relative to how often they occur.
    Only words that co-occur in `asked` are counted: all co-occurrences of a lexicon would fill the memory."""
    wanted: dict[str, set[str]] = {}
    for source, target in asked:
        for word in words(source):
            wanted.setdefault(word, set()).update(words(target))
    first: Counter[str] = Counter()
    second: Counter[str] = Counter()
    both: Counter[tuple[str, str]] = Counter()
    for source, target in lexicon:
        sources, targets = set(words(source)) & wanted.keys(), set(words(target))
        first.update(sources)
        second.update(targets)
        both.update((s, t) for s in sources for t in targets & wanted[s])
    return lambda source, target: 2 * both[source, target] / (first[source] + second[target])
