"""Masked language modelling: which tokens of a row are to be predicted, and what is shown in their place."""

from dataclasses import dataclass

import numpy as np

from heedful.text.tokenizer import Tokenizer
from heedful.text.whole_words import WholeWords, blank_tokens

MASKED, REPLACED = 0.8, 0.1  # of the chosen tokens; the rest is shown as it is


@dataclass(frozen=True)
class Masking:
    """A share of the tokens is chosen; of these, 80 % are shown as the mask token, 10 % as a random token, and 10 % as
    they are.      Devlin et al. 2019, section 3.1

    Special tokens and blanks (spaces, line breaks) are never chosen. With `words`, words are chosen rather than tokens,
    all tokens of a word together (whole word masking); each token still draws by itself what is shown in its place.

    Differs: so many tokens (or words) are chosen that each has exactly the probability `share`: n * share, rounded up
    or down at random, where BERT's code takes at least one, and transformers decides about each token by itself. Random
    tokens are ordinary ones, which may be chosen too; transformers draws from the whole vocabulary, special tokens
    included.
    """

    share: float
    mask: int
    never: np.ndarray  # vocab: whether it is a special token or a blank
    ordinary: np.ndarray  # the other tokens
    words: WholeWords | None = None

    def __call__(self, tokens: np.ndarray, chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """(what is shown, the places of the tokens to predict, ascending)"""
        places = self.choose(tokens, chance)
        fate = chance.random(len(places))
        others = self.ordinary[chance.integers(len(self.ordinary), size=len(places))]
        shown = tokens.copy()
        kept = np.where(fate < MASKED + REPLACED, others, tokens[places])
        shown[places] = np.where(fate < MASKED, self.mask, kept)
        return shown, places

    def choose(self, tokens: np.ndarray, chance: np.random.Generator) -> np.ndarray:
        maskable = ~self.never[tokens]
        if self.words is None:
            return np.sort(_some(np.flatnonzero(maskable), self.share, chance))
        word = np.cumsum(self.words.starts(tokens))  # the number of each token's word
        chosen = _some(np.unique(word[maskable]), self.share, chance)
        return np.flatnonzero(np.isin(word, chosen) & maskable)


def masking_for(tokenizer: Tokenizer, share: float, *, whole_words: bool) -> Masking:
    never = is_special(tokenizer) | blank_tokens(tokenizer)
    known = np.array(sorted(tokenizer.token_ids().values()))
    words = WholeWords(tokenizer) if whole_words else None
    return Masking(share, tokenizer.mask, never, known[~never[known]], words)


def is_special(tokenizer: Tokenizer) -> np.ndarray:
    """For each token, whether it is a special one."""
    found = np.zeros(tokenizer.vocab, dtype=bool)
    found[list(tokenizer.specials)] = True
    return found


def inner_blanks(tokens: np.ndarray, special: np.ndarray, blank: np.ndarray) -> np.ndarray:
    """Which tokens of a framed row to keep: all but the blanks beside a special token. The line break that ends a
    document is not part of its last sentence, and a person who asks for a word does not write it."""
    solid = ~blank[tokens]
    places = np.arange(len(tokens))
    before = np.maximum.accumulate(np.where(solid, places, 0))
    after = np.minimum.accumulate(np.where(solid, places, len(tokens) - 1)[::-1])[::-1]
    kept: np.ndarray = solid | ~(special[tokens[before]] | special[tokens[after]])
    return kept


def _some(items: np.ndarray, share: float, chance: np.random.Generator) -> np.ndarray:
    """A share of the items, on average exactly."""
    count = int(len(items) * share + chance.random())
    return chance.choice(items, size=min(count, len(items)), replace=False)
