"""Length tokens: a summariser is told how long its summary is to be.      Fan et al. 2018, section 2.1

    <length_2> source </s>        of the training summaries, the k-th part by length has the token <length_k>

Differs: lengths are counted in tokens, and without a wish the middle length is asked for.
"""

from collections.abc import Sequence

import numpy as np

NAMES = ("short", "medium", "long")


def length_token(number: int) -> str:
    """The token of a length, counted from 1, in a tokenizer that is trained here."""
    return f"<length_{number}>"


def number_of(length: str, count: int) -> int:
    """Which of so many lengths: by name or number; the middle one, if none is said."""
    middle = (count + 1) // 2
    numbers = {"": middle, **dict(zip(NAMES, (1, middle, count), strict=True))}
    numbers |= {str(number): number for number in range(1, count + 1)}
    if length not in numbers:
        raise ValueError(f"length {length!r} is not one of {', '.join(NAMES)}, or a number from 1 to {count}")
    return numbers[length]


def bounds(lengths: np.ndarray, count: int) -> np.ndarray:
    """The longest of each part but the last, such that the parts are about equally large."""
    values, held = np.unique(lengths, return_counts=True)
    shares = held.cumsum() / held.sum()
    places = [int(np.abs(shares - number / count).argmin()) for number in range(1, count)]
    if len({*places}) < len(places) or places[-1] == len(values) - 1:
        raise ValueError(
            f"task.length_tokens={count}, but the training summaries do not have so many different lengths (there are "
            f"{len(values)}); choose fewer, or task.length_tokens=0"
        )
    found: np.ndarray = values[places]
    return found


def numbers_of(rows: Sequence[Sequence[int] | np.ndarray], longest: np.ndarray) -> list[int]:
    """The length, counted from 1, of each row of tokens."""
    found: list[int] = (1 + np.searchsorted(longest, [len(row) for row in rows])).tolist()
    return found
