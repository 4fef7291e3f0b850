"""Files to train, validate and test on. No sentence is in two of them, and every test sentence puts words together that
were never together in training: an adjective and its noun, or a verb and its object."""

import random
from collections.abc import Callable
from pathlib import Path

from heedful.files import write_text
from heedful.mini import chinese, english, german
from heedful.mini.lexicon import adjectives, giving, nouns, verbs
from heedful.mini.meaning import Die, Sentence

LANGUAGES: dict[str, Callable[[Sentence], str]] = {"de": german.sentence, "zh": chinese.sentence}
PAIRS = ("en-de", "en-zh")
ONE_OF = 12  # partners of a word are kept for the test; of a word with few of them, none


def make(pair: str, lines: int, *, seed: int = 1) -> dict[str, list[tuple[str, str]]]:
    """`lines` sentences to train on, and a twentieth as many, but at most 1,000, to validate and to test on."""
    found = _drawn(pair, lines, seed, lambda die: [die.sentence()])
    return {split: [row for document in documents for row in document] for split, documents in found.items()}


def make_documents(pair: str, lines: int, *, seed: int = 1) -> dict[str, list[list[tuple[str, str]]]]:
    """The same as documents of two sentences, the second of which has a pronoun for a noun of the first."""
    return _drawn(pair, max(1, lines // 2), seed, Die.document)


def _drawn(
    pair: str, count: int, seed: int, draw: Callable[[Die], list[Sentence]]
) -> dict[str, list[list[tuple[str, str]]]]:
    if pair not in PAIRS:
        raise ValueError(f"there is no pair {pair!r}; known: {', '.join(PAIRS)}")
    if count < 1:
        raise ValueError(f"lines is {count}, but must be at least 1")
    translate, die, new = LANGUAGES[pair.partition("-")[2]], Die(seed), held_back(seed)
    wanted = {"train": count, "valid": max(1, min(1000, count // 20)), "test": max(1, min(1000, count // 20))}
    found: dict[str, list[list[tuple[str, str]]]] = {split: [] for split in wanted}
    seen: set[str] = set()
    while any(len(found[split]) < number for split, number in wanted.items()):
        meanings = draw(die)
        sources = [english.sentence(meaning) for meaning in meanings]
        if "\n".join(sources) in seen:
            continue
        is_new = any(words in new for meaning in meanings for words in meaning.pairs())
        split = "test" if is_new else "valid" if len(found["valid"]) < wanted["valid"] else "train"
        if len(found[split]) < wanted[split]:
            seen.add("\n".join(sources))
            found[split].append(list(zip(sources, map(translate, meanings), strict=True)))
    return found


def write(folder: Path, pair: str, lines: int, *, seed: int = 1, documents: bool = False) -> dict[str, int]:
    """train.tsv, valid.tsv and test.tsv; gives how many pairs each has. Documents are separated by blank lines."""
    if documents:
        found = make_documents(pair, lines, seed=seed)
    else:
        found = {split: [rows] for split, rows in make(pair, lines, seed=seed).items()}
    folder.mkdir(parents=True, exist_ok=True)
    for split, every in found.items():
        texts = ["".join(f"{source}\t{target}\n" for source, target in rows) for rows in every]
        write_text(folder / f"{split}.tsv", "\n".join(texts))
    return {split: sum(map(len, every)) for split, every in found.items()}


def held_back(seed: int) -> set[tuple[str, str]]:
    """Pairs of words that only the test set may put together."""
    chance, found = random.Random(seed), set[tuple[str, str]]()
    words = [(verb.en, verb.objects) for verb in (*verbs, *giving)] + [(word.en, word.tags) for word in adjectives]
    for word, tags in words:
        partners = [noun.en for noun in nouns if noun.tags & tags]
        found |= {(word, noun) for noun in chance.sample(partners, len(partners) // ONE_OF)}
    return found
