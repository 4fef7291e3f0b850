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
    if pair not in PAIRS:
        raise ValueError(f"there is no pair {pair!r}; known: {', '.join(PAIRS)}")
    if lines < 1:
        raise ValueError(f"lines is {lines}, but must be at least 1")
    translate, die, new = LANGUAGES[pair.partition("-")[2]], Die(seed), held_back(seed)
    wanted = {"train": lines, "valid": max(1, min(1000, lines // 20)), "test": max(1, min(1000, lines // 20))}
    found: dict[str, list[tuple[str, str]]] = {split: [] for split in wanted}
    seen: set[str] = set()
    while any(len(found[split]) < count for split, count in wanted.items()):
        meaning = die.sentence()
        source = english.sentence(meaning)
        if source in seen:
            continue
        is_new = any(words in new for words in meaning.pairs())
        split = "test" if is_new else "valid" if len(found["valid"]) < wanted["valid"] else "train"
        if len(found[split]) < wanted[split]:
            seen.add(source)
            found[split].append((source, translate(meaning)))
    return found


def write(folder: Path, pair: str, lines: int, *, seed: int = 1) -> dict[str, int]:
    """train.tsv, valid.tsv and test.tsv; gives how many lines each has."""
    found = make(pair, lines, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in found.items():
        write_text(folder / f"{split}.tsv", "".join(f"{source}\t{target}\n" for source, target in pairs))
    return {split: len(pairs) for split, pairs in found.items()}


def held_back(seed: int) -> set[tuple[str, str]]:
    """Pairs of words that only the test set may put together."""
    chance, found = random.Random(seed), set[tuple[str, str]]()
    words = [(verb.en, verb.objects) for verb in (*verbs, *giving)] + [(word.en, word.tags) for word in adjectives]
    for word, tags in words:
        partners = [noun.en for noun in nouns if noun.tags & tags]
        found |= {(word, noun) for noun in chance.sample(partners, len(partners) // ONE_OF)}
    return found
