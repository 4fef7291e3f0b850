"""Several corpora for one model: each has files and stores of its own, all share one tokenizer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from heedful.data.build import split_for, usable
from heedful.data.check import Report
from heedful.data.columns import PAIR, Columns
from heedful.data.corpora import CorpusConfig, confusable, names_of, part_names, shares
from heedful.data.corpus import table_start
from heedful.data.inputs import SPLITS, DataConfig, Inputs, look_over
from heedful.data.languages import language_token, token_of
from heedful.data.prepare import (
    TOKENIZER_LINES,
    Notify,
    Part,
    Prepared,
    cache_key,
    cached_tokenizers,
    keep_tokenizers,
    prepare,
    refuse_missing,
)
from heedful.text.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer, vocab_for


@dataclass(frozen=True)
class Mixture:
    """The files of a mixture, a set of inputs for each corpus."""

    corpora: tuple[CorpusConfig, ...]
    inputs: tuple[Inputs, ...]
    columns: Columns = PAIR

    @property
    def notes(self) -> list[str]:
        return confusable(self.corpora)

    def digests(self, cache: Path) -> dict[str, list[str]]:
        """Content digests of the files of each split, corpus by corpus."""
        each = [inputs.digests(cache) for inputs in self.inputs]
        return {split: [digest for one in each for digest in one[split]] for split in SPLITS}


def open_mixture(corpora: Sequence[CorpusConfig]) -> Mixture:
    found = []
    for name, one in zip(names_of(corpora), corpora, strict=True):
        with naming(name):
            train, valid, test = (tuple(map(Path, files)) for files in (one.file, one.valid, one.test))
            found.append(Inputs(train, valid, test, fields=one.fields, prefix=one.prefix))
    _refuse_different(corpora, found)
    return Mixture(tuple(corpora), tuple(found))


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Errors begin with the name of the corpus that they are about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"corpus {name}: {error}") from None


def _refuse_different(corpora: Sequence[CorpusConfig], inputs: Sequence[Inputs]) -> None:
    """Tables of different widths are probably not of the same kind, unless their columns are named."""
    widths = {}
    for one, each in zip(corpora, inputs, strict=True):
        start = table_start(each.train[0], 1) if not one.fields else []
        if start:
            widths[each.train[0].name] = len(start[0])
    if len(set(widths.values())) > 1:
        listed = ", ".join(f"{name} has {width} columns" for name, width in widths.items())
        raise ValueError(f"the corpora have different columns: {listed}; name those of each with fields, such as "
                         "[id, source, target]")  # fmt: skip


def prepare_mixture(
    mixture: Mixture,
    data: DataConfig,
    config: TokenizerConfig,
    *,
    cache: Path,
    given: list[Tokenizer] | None = None,
    words: int = 0,
    specials: Sequence[str] = (),
    notify: Notify = lambda message: None,
) -> Prepared:
    """As `prepare`, for several corpora. Their rows follow each other, in the order of `Prepared.parts`."""
    cache.mkdir(parents=True, exist_ok=True)
    if given is None and config.file:
        given = [Tokenizer.load(Path(config.file))] * 2
    codes = sorted({code for direction in data.directions for code in direction})
    if given is None:
        if not config.joint:
            raise ValueError("the corpora of a mixture share one tokenizer; set tokenizer.joint=true")
        given = _trained(mixture, data, config, cache, words, [*specials, *map(language_token, codes)], notify)
    refuse_missing(specials, given)
    for tokenizer in given:
        for code in codes:
            token_of(tokenizer, code)
    if given[0].digest() != given[-1].digest() and any(corpus.both for corpus in mixture.corpora):
        raise ValueError("both=true needs one tokenizer for source and target, but these differ")
    each = []
    for number, (name, inputs) in enumerate(zip(names_of(mixture.corpora), mixture.inputs, strict=True)):
        others = [*mixture.inputs[:number], *mixture.inputs[number + 1 :]]
        with naming(name):
            say = partial(_say, notify, name)
            each.append(prepare(inputs, data, config, cache=cache, given=given, others=others, notify=say))
    return joined(mixture.corpora, each, data)


def _say(notify: Notify, name: str, message: str) -> None:
    notify(f"{name}: {message}")


def joined(corpora: Sequence[CorpusConfig], each: Sequence[Prepared], data: DataConfig) -> Prepared:
    """The mixture of corpora that are prepared."""
    named = part_names(corpora)
    sizes = [each[number].facts["rows"]["train"] for _, number, _ in named]
    parts = tuple(
        Part(name, each[number], share, direction, direction not in (None, *corpora[number].directions[:1]),
             corpora[number].metric)
        for (name, number, direction), share in zip(named, shares(sizes, _weights(corpora), data.temperature),
                                                    strict=True)
    )  # fmt: skip
    rows = {split: sum(part.prepared.facts["rows"][split] for part in parts) for split in SPLITS}
    files: dict[str, dict[str, str]] = {}
    for one in each:
        for split, found in one.facts["files"].items():
            files.setdefault(split, {}).update(found)
    facts = {
        "rows": rows,
        "tokens": [round(sum(rows["train"] * part.share * part.tokens[column] for part in parts)) for column in (0, 1)],
        "too_long": sum(one.facts["too_long"] for one in each),
        "held_out_elsewhere": sum(one.facts.get("held_out_elsewhere", 0) for one in each),
        "labels": {},
        "unknown_labels": 0,
        "files": files,
    }
    extra = (int(data.layout != ""), int(data.layout == "m2m"))
    return Prepared(each[0].folder, each[0].tokenizers, facts, parts=parts, extra=extra)


def _weights(corpora: Sequence[CorpusConfig]) -> list[float | None]:
    """The weight of each part: both directions of a corpus share its weight."""
    return [
        None if corpora[number].weight is None else (corpora[number].weight or 0) / (1 + corpora[number].both)
        for _, number, _ in part_names(corpora)
    ]


def _trained(
    mixture: Mixture, data: DataConfig, config: TokenizerConfig, cache: Path, words: int, specials: Sequence[str],
    notify: Notify,
) -> list[Tokenizer]:  # fmt: skip
    """One tokenizer, trained on the corpora in the shares in which the model will see them."""
    weights = [corpus.weight for corpus in mixture.corpora]
    each = [[inputs.digests(cache), inputs.prefix, list(inputs.fields)] for inputs in mixture.inputs]
    key = cache_key(each, weights, data.temperature, [corpus.both for corpus in mixture.corpora],
                    config.model_dump(exclude={"dropout", "file"}), data.held_out, words, list(specials))  # fmt: skip
    found = cached_tokenizers(cache / "tokenizers" / key, 2)
    if found is not None:
        return found
    notify("checking the corpora")
    reports = []
    for name, inputs in zip(names_of(mixture.corpora), mixture.inputs, strict=True):
        with naming(name):
            reports.append(look_over(inputs))
    notify("training the tokenizer")
    total = sum(report.words for report in reports)
    total = min(total, words) if words else total
    vocab = config.vocab or (0 if config.kind == "character" else vocab_for(total))
    texts = _sampled(mixture, reports, data)
    found = [train_tokenizer(texts, config, vocab=vocab, extra=specials)] * 2
    keep_tokenizers(cache / "tokenizers" / key, found)
    return found


def _sampled(mixture: Mixture, reports: Sequence[Report], data: DataConfig) -> Iterator[str]:
    """Both sides of rows of all corpora, in their shares: row n of a corpus comes as often as the rounded sum of the
    shares up to n grows."""
    sizes = [report.usable for report in reports]
    corpora = mixture.corpora
    # Both directions of a corpus have the same texts, so it counts twice.
    places = [number for _, number, _ in part_names(corpora)]
    parts = shares([sizes[number] for number in places], _weights(corpora), data.temperature)
    total = min(TOKENIZER_LINES, sum(sizes))
    for number, inputs in enumerate(mixture.inputs):
        share = sum(part for part, place in zip(parts, places, strict=True) if place == number)
        wanted, size = round(total * share), sizes[number]
        split = split_for(inputs, data, reports[number])
        for row, line in enumerate(usable(inputs.read("train"))):
            count = (row + 1) * wanted // size - row * wanted // size
            for _ in range(count if split.deal(line)[0][0] == "train" else 0):
                yield from line.texts
