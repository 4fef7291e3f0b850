"""Where words begin in a row of tokens, known from the tokens alone: text that was tokenised once is never decoded."""

import re
import unicodedata

import numpy as np

from heedful.text.tokenizer import Tokenizer
from heedful.text.words import UNSPACED

SPACES = " Ġ▁"  # what marks a token that begins with a space: ours, byte-level BPE's, SentencePiece's
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
BLANK_BYTES = "ĠĊĉč"  # space, line feed, tab and carriage return in byte-level BPE
BLANKS = range(0x100, 0x122)  # the characters by which byte-level BPE writes control characters and the space


class WholeWords:
    """A token begins a word if it is marked so (a space before it; in WordPiece, no ##), or if it or the token before
    it is no letter: punctuation and digits are words of their own, as is each character of a script without spaces.
    Byte tokens of one character stay together. Special tokens are words of their own. In byte-level BPE, which does not
    show characters, everything beyond ASCII counts as letters: Chinese between two spaces is one word.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        size = tokenizer.vocab
        self.begins = np.zeros(size, dtype=bool)  # whatever comes before
        self.continues = np.zeros(size, dtype=bool)  # whatever comes before
        self.joins_left = np.zeros(size, dtype=bool)  # its first character is a letter
        self.joins_right = np.zeros(size, dtype=bool)  # its last character is a letter
        self.opens = np.zeros(size, dtype=bool)  # the space before a word, which is a token of its own where it is rare
        prefix, tokens = tokenizer.continuation, tokenizer.token_ids()
        bytewise = "Ġ" in tokens
        for token, index in tokens.items():
            if index in tokenizer.specials:
                self.begins[index] = True
            elif prefix:
                self.continues[index] = token.startswith(prefix)
                self.begins[index] = not token.startswith(prefix)
            elif byte := BYTE.fullmatch(token):
                value = int(byte[1], 16)
                self.continues[index] = 0x80 <= value < 0xC0  # inside a character of UTF-8
                self.joins_left[index] = self.joins_right[index] = value >= 0x80
            else:
                bare = token.lstrip(SPACES)
                self.opens[index] = token in SPACES
                self.begins[index] = bare != token or bool(UNSPACED.match(bare))
                self.joins_left[index], self.joins_right[index] = (
                    _is_letter(end, bytewise) for end in (bare[:1], bare[-1:])
                )

    def starts(self, tokens: np.ndarray) -> np.ndarray:
        """True where a word begins; the first token always begins one."""
        joined = self.joins_left[tokens]
        joined[1:] &= self.joins_right[tokens[:-1]]
        joined[1:] |= self.opens[tokens[:-1]]
        found: np.ndarray = ~self.continues[tokens] & (self.begins[tokens] | ~joined)
        found[:1] = True
        return found


def _is_letter(character: str, bytewise: bool) -> bool:
    if bytewise and character > "\x7f":
        return ord(character) not in BLANKS
    return character != "" and unicodedata.category(character)[0] in "LM"


def blank_tokens(tokenizer: Tokenizer) -> np.ndarray:
    """For each token, whether it is nothing but spaces and line breaks."""
    found = np.zeros(tokenizer.vocab, dtype=bool)
    tokens = tokenizer.token_ids()
    bytewise = "Ġ" in tokens
    for token, index in tokens.items():
        if byte := BYTE.fullmatch(token):
            found[index] = chr(int(byte[1], 16)) in " \t\n\r"
        else:
            rest = token.strip(SPACES + (BLANK_BYTES if bytewise else "")).strip()
            found[index] = not rest and index not in tokenizer.specials
    return found
