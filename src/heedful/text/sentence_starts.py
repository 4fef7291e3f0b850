"""Where sentences begin in a row of tokens, known from the tokens alone."""

import re
from collections.abc import Sequence

import numpy as np

from heedful.text.tokenizer import Tokenizer
from heedful.text.whole_words import SPACES, blank_tokens

CLOSING = "\"'”’»)]」』）"
END = re.compile(rf"[.!?…。！？][{re.escape(CLOSING)}]*$")
UNSPACED_END = re.compile(rf"[。！？][{re.escape(CLOSING)}]*$")


class SentenceStarts:
    """A sentence begins after a full stop, question or exclamation mark, closing quotes and brackets included, if a
    space or line break follows, or at once after those of Chinese and Japanese; and where a document begins. An
    abbreviation ends a sentence too."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        size = tokenizer.vocab
        self.blank = blank_tokens(tokenizer)
        self.spaced = self.blank.copy()  # begins with a space
        self.closes = np.zeros(size, dtype=bool)  # nothing but closing quotes and brackets, or nothing
        self.ends, self.ends_at_once = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        names = tokenizer.token_ids()
        texts = tokenizer.decode([index] for index in names.values())
        for (name, index), text in zip(names.items(), texts, strict=True):
            bare = text.strip()
            self.spaced[index] |= name[:1] in SPACES
            self.closes[index] = bool(bare) and not self.spaced[index] and not bare.strip(CLOSING)
            self.ends[index] = bool(END.search(bare))
            self.ends_at_once[index] = bool(UNSPACED_END.search(bare))

    def __call__(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """For each token of these parts of documents, joined: whether a sentence begins there."""
        return np.concatenate([self._of(part) for part in parts])

    def _of(self, tokens: np.ndarray) -> np.ndarray:
        places = np.arange(len(tokens))
        solid = ~self.blank[tokens] & ~self.closes[tokens]
        # The last solid token before each place, and whether there is a blank since.
        before = np.maximum.accumulate(np.where(solid, places, -1))
        before = np.concatenate([[-1], before[:-1]])
        blank = np.maximum.accumulate(np.where(self.blank[tokens], places, -1))
        apart = self.spaced[tokens] | (blank > before)
        ended = np.where(apart, self.ends[tokens[before]], self.ends_at_once[tokens[before]])
        found: np.ndarray = solid & (before >= 0) & ended
        found[:1] = True
        return found
