"""Word alignment from cross-attention.

Few of a model's heads align words. The best one is chosen once, at the end of training: the one whose links join words
that often co-occur in sentence pairs.
"""

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from heedful.bounded import read_object, whole_number
from heedful.data.languages import Framing, plain
from heedful.data.padding import Row, pad
from heedful.files import write_text
from heedful.model.architecture import Model, SequenceToSequence
from heedful.model.multihead import MemoryAttention
from heedful.model.record import Recorded, recorded
from heedful.text.tokenizer import Tokenizer
from heedful.text.words import word_spans, words

Tokenizers = Sequence[Tokenizer]  # for source and target
Links = list[tuple[int, int]]  # (source word, target word), from 0
LONGEST = 512  # words of a text that heads are tried on: token by word, that grows with the square
BATCH = 64
MOST = 1 << 20  # a bound for layers and heads


@dataclass(frozen=True)
class Aligner:
    """A layer and a head; `score` is the mean association of the words it links."""

    layer: int
    head: int
    score: float = 0.0

    def align(
        self,
        model: SequenceToSequence,
        tokenizers: Tokenizers,
        pairs: Sequence[tuple[str, str]],
        framings: Sequence[Framing] | None = None,
    ) -> list[Links]:
        """For each pair, the source word that each target word attends to most. `framings`: the special tokens of each
        pair; by default no language tokens."""
        return _aligned(model, tokenizers, pairs, framings, lambda seen: seen[self.layer].shown_weights()[:, self.head])

    def weights(
        self,
        model: SequenceToSequence,
        tokenizers: Tokenizers,
        source: list[int],
        target: list[int],
        framing: Framing | None = None,
    ) -> Tensor:
        """How much each target token, when it is generated, attends to each source token: target source. `target`: as
        the model wrote it."""
        framing = framing or plain(tokenizers)
        seen = _attentions(model, [framing.source(source)], [[framing.start, *target]])[self.layer]
        return seen.shown_weights()[0, self.head, :, len(framing.before) :]

    def places(
        self, model: SequenceToSequence, tokenizers: Tokenizers, sources: list[list[int]], targets: list[list[int]]
    ) -> list[list[int]]:
        """For each pair, the place of the source token that each target token attends to most; the last one is </s>."""
        framing = plain(tokenizers)
        read, written = [framing.source(row) for row in sources], [framing.read(row) for row in targets]
        weights = _attentions(model, read, written)[self.layer].shown_weights()[:, self.head]
        chosen = weights.argmax(-1).tolist()
        return [row[: len(target)] for row, target in zip(chosen, targets, strict=True)]

    def save(self, folder: Path) -> None:
        write_text(folder / "alignment.json", json.dumps(asdict(self), indent=2))

    @classmethod
    def load(cls, folder: Path) -> "Aligner":
        path = folder / "alignment.json"
        if not path.is_file():
            raise ValueError(f"{folder} has no alignment.json: no alignment head has been chosen")
        data = read_object(path)
        layer, head = (whole_number(data, name, least=0, most=MOST, place=path) for name in ("layer", "head"))
        score = data.get("score", 0.0)
        if not isinstance(score, int | float) or not math.isfinite(score):
            raise ValueError(f"{path}: score must be a number, not {score!r:.100}")
        return cls(layer, head, score)

    def refuse_misfit(self, model: Model, folder: Path) -> None:
        """ValueError if the model does not have this head."""
        looks = [module.heads for module in model.modules() if isinstance(module, MemoryAttention)]
        depth = getattr(getattr(model.config, "decoder", None), "layers", 0)  # layers may share one
        layers = max(len(looks), depth)
        if looks and (self.layer >= layers or self.head >= max(looks)):
            raise ValueError(f"{folder / 'alignment.json'} names head {self.head} of layer {self.layer}, but the model "
                             f"has {max(looks)} heads in {layers} layers")  # fmt: skip


def align_by_average(
    model: SequenceToSequence,
    tokenizers: Tokenizers,
    pairs: Sequence[tuple[str, str]],
    framings: Sequence[Framing] | None = None,
) -> list[Links]:
    """The same without a chosen head: by the mean of all heads of the layer before the last, which Garg et al. 2019
    (section 4.1) found to align best."""
    return _aligned(model, tokenizers, pairs, framings, lambda seen: seen[-2:][0].shown_weights().mean(1))


def _aligned(
    model: SequenceToSequence,
    tokenizers: Tokenizers,
    pairs: Sequence[tuple[str, str]],
    framings: Sequence[Framing] | None,
    weigh: Callable[[list[Recorded]], Tensor],
) -> list[Links]:
    """`weigh`: how much each target token looks at each source token: batch target source."""
    found: list[Links] = []
    framings = framings or [plain(tokenizers)] * len(pairs)
    for start in range(0, len(pairs), BATCH):
        chunk, some = pairs[start : start + BATCH], framings[start : start + BATCH]
        weights = weigh(_attentions(model, *_encoded(tokenizers, chunk, some)))
        weights = _of_texts(weights[:, None], some[0])[:, 0]
        found += [_links(_memberships(tokenizers, pair), weights[row]) for row, pair in enumerate(chunk)]
    return found


def choose(
    model: SequenceToSequence,
    tokenizers: Tokenizers,
    pairs: Sequence[tuple[str, str]],
    *,
    lexicon: Sequence[tuple[str, str]],
    framings: Sequence[Framing] | None = None,
) -> Aligner | None:
    """The head that aligns these pairs best, judged by co-occurrences in the pairs of `lexicon`. None if the model has
    no cross-attention, or one without weights, or if all pairs are too long to try. For `framings` see `align`."""
    both = zip(pairs, framings or [plain(tokenizers)] * len(pairs), strict=True)
    given = [(pair, framing) for pair, framing in both if words(pair[0]) and words(pair[1])]
    short = [(pair, framing) for pair, framing in given if max(len(words(text)) for text in pair) <= LONGEST]
    if given and not short:
        return None
    pairs, framings = [pair for pair, _ in short], [framing for _, framing in short]
    association = _association(pairs, [*lexicon, *pairs])
    totals: dict[tuple[int, int], float] = {}
    count = 0
    for start in range(0, len(pairs), BATCH):
        chunk, some = pairs[start : start + BATCH], framings[start : start + BATCH]
        sides = [(words(source), words(target)) for source, target in chunk]
        memberships = [_memberships(tokenizers, pair) for pair in chunk]
        for layer, attention in enumerate(_attentions(model, *_encoded(tokenizers, chunk, some))):
            weights = attention.weights()
            if weights is None:
                continue
            weights = _of_texts(weights, some[0])
            for head in range(weights.shape[1]):
                value = sum(
                    association(sources[s], targets[t])
                    for row, (sources, targets) in enumerate(sides)
                    for s, t in _links(memberships[row], weights[row, head])
                )
                totals[layer, head] = totals.get((layer, head), 0.0) + value
        count += sum(len(targets) for _, targets in sides)
    if not totals:
        return None if pairs else Aligner(0, 0)
    (layer, head), total = max(totals.items(), key=lambda item: item[1])
    return Aligner(layer, head, total / max(1, count))


def _encoded(
    tokenizers: Tokenizers, pairs: Sequence[tuple[str, str]], framings: Sequence[Framing]
) -> tuple[list[Row], list[Row]]:
    """Sources and targets as the encoder and the decoder read them."""
    sources, targets = tokenizers[0].encode([s for s, _ in pairs]), tokenizers[-1].encode([t for _, t in pairs])
    return (
        [framing.source(row) for framing, row in zip(framings, sources, strict=True)],
        [framing.read(row) for framing, row in zip(framings, targets, strict=True)],
    )


def _of_texts(weights: Tensor, framing: Framing) -> Tensor:
    """batch heads target source, without the language tokens, which are in the same places of all rows."""
    return weights[:, :, len(framing.forced) :, len(framing.before) :]


@torch.inference_mode()
def _attentions(model: SequenceToSequence, sources: Sequence[Row], targets: Sequence[Row]) -> list[Recorded]:
    """The cross-attention of each layer, given the target; its weights are batch heads target source."""
    device = model.device
    source, valid = pad(sources)
    target, _ = pad(targets)
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
