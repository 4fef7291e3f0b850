"""Language tokens: how one model is told which language it reads and which one it writes.

    layout    source                 read by the decoder      written
    prefix    <2de> source </s>      <s> target               target </s>          Johnson et al. 2017, section 3
    m2m       <2en> source </s>      <s> <2de> target         <2de> target </s>    Fan et al. 2021: the first token is
                                                                                   forced when translating
    mbart     source </s> <2en>      <2de> target             target </s>          Liu et al. 2020, section 2.2

Differs from mBART: no language token is trained after the target's </s>, since none is ever written there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from heedful.data.lengths import number_of
from heedful.data.padding import Row
from heedful.text.tokenizer import Tokenizer

Layout = Literal["", "prefix", "m2m", "mbart"]  # "" = no language tokens


class Direction(NamedTuple):
    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


@dataclass(frozen=True)
class Framing:
    """The special tokens around a source and a target. `forced`: what every target begins with."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    start: int
    forced: tuple[int, ...]
    eos: int

    def source(self, tokens: Row) -> np.ndarray:
        return _joined(self.before, tokens, self.after)

    def read(self, tokens: Row) -> np.ndarray:
        """What the decoder reads."""
        return _joined((self.start, *self.forced), tokens)

    def wanted(self, tokens: Row) -> np.ndarray:
        """What the decoder must write: at each place the token that it reads next."""
        return _joined(self.forced, tokens, (self.eos,))


def plain(tokenizers: Sequence[Tokenizer]) -> Framing:
    """Without language tokens."""
    source, target = tokenizers[0], tokenizers[-1]
    return Framing((), (source.eos,), target.start, (), target.eos)


def _joined(*pieces: Row) -> np.ndarray:
    return np.concatenate([np.asarray(piece, dtype=np.int64) for piece in pieces])


class Languages:
    """The languages of a model. `directions`: those it was trained for, where they are known."""

    def __init__(
        self, tokenizers: Sequence[Tokenizer], layout: Layout = "", directions: Sequence[Direction] = ()
    ) -> None:
        self.source, self.target = tokenizers[0], tokenizers[-1]
        self.layout = layout
        self.directions = tuple(dict.fromkeys(directions))
        self._plain = plain(tokenizers)
        if layout:
            for code in self.codes:
                token_of(self.source, code)
                token_of(self.target, code)

    @property
    def codes(self) -> list[str]:
        trained = {code for direction in self.directions for code in direction}
        return sorted(trained or self.target.languages)

    @property
    def untrained(self) -> list[Direction]:
        """The directions between these languages that were not trained: zero-shot (Johnson et al. 2017)."""
        sources = sorted({direction.source for direction in self.directions})
        targets = sorted({direction.target for direction in self.directions})
        every = (Direction(source, target) for source in sources for target in targets if source != target)
        return [direction for direction in every if direction not in self.directions]

    @property
    def every(self) -> tuple[Direction, ...]:
        """The trained directions; where they are not known, all."""
        codes = self.codes
        return self.directions or tuple(Direction(one, other) for one in codes for other in codes if one != other)

    def trained(self, direction: Direction) -> bool:
        return not self.layout or not self.directions or direction in self.directions

    def direction(self, source: str = "", target: str = "") -> Direction:
        """The direction asked for; a side that is left out follows if there is only one choice."""
        if not self.layout:
            return self._only(source, target)
        source, target = (code and self._known(code) for code in (source, target))
        if source and target:
            found = Direction(source, target)
            if self.directions and not (found in self.directions or found in self.untrained):
                raise ValueError(f"this model does not translate from {source} to {target}; {self._listed()}")
            return found
        fitting = [one for one in self.directions if source in ("", one.source) and target in ("", one.target)]
        if len(fitting) == 1:
            return fitting[0]
        if target and self.layout == "prefix":  # the source language is not needed
            return Direction("", target)
        missing = " and ".join(name for name, code in (("source", source), ("target", target)) if not code)
        raise ValueError(f"this model knows several directions; name the {missing} language; {self._listed()}")

    def framing(self, source: str = "", target: str = "", length: str = "") -> Framing:
        """`length`: how long the target is to be, for a model with length tokens: see `lengths.py`."""
        found, known = self._between(source, target), self.source.lengths
        if known:
            return replace(found, before=(known[number_of(length, len(known))], *found.before))
        if length:
            raise ValueError("this model was not trained with task.length_tokens; leave out the length")
        return found

    def _between(self, source: str, target: str) -> Framing:
        if not self.layout:
            self._only(source, target)
            return self._plain
        direction = self.direction(source, target)
        plain = self._plain
        written = token_of(self.target, direction.target)
        if self.layout == "prefix":
            before = (token_of(self.source, direction.target),)
            return Framing(before, plain.after, plain.start, (), plain.eos)
        read = token_of(self.source, direction.source)
        if self.layout == "m2m":
            return Framing((read,), plain.after, plain.start, (written,), plain.eos)
        return Framing((), (*plain.after, read), written, (), plain.eos)

    def _only(self, source: str, target: str) -> Direction:
        """The one direction of a model without language tokens."""
        known = self.directions[0] if self.directions else Direction("", "")
        for asked, has in zip((source, target), known, strict=True):
            if asked and asked != has:
                what = f"from {known.source or '?'} to {known.target or '?'}" if any(known) else "in one direction"
                raise ValueError(f"this model translates {what} only; leave out the languages or choose another model")
        return known

    def _known(self, code: str) -> str:
        """The model's own code: `de` also finds `de_DE`, and `pt-BR` finds `pt`."""
        if code in self.codes:
            return code
        near = [own for own in self.codes if own.replace("_", "-").partition("-")[0] == code.partition("-")[0]]
        if len(near) == 1:
            return near[0]
        raise ValueError(f"this model does not know the language {code!r}; {self._listed()}")

    def _listed(self) -> str:
        if not self.directions:
            return f"its languages: {', '.join(self.codes)}"
        more = self.untrained
        return f"trained directions: {', '.join(map(str, self.directions))}" + (
            f"; not trained, but possible: {', '.join(map(str, more))}" if more else ""
        )


def language_token(code: str) -> str:
    """The token of a language in a tokenizer that is trained here."""
    return f"<2{code}>"


def token_of(tokenizer: Tokenizer, code: str) -> int:
    """The token of a language: `en` also finds mBART's en_XX."""
    known = tokenizer.languages
    found = [code] if code in known else [one for one in known if one.partition("_")[0] == code]
    if len(found) != 1:
        some = ", ".join(sorted(known)[:12]) or "none"
        raise ValueError(f"the tokenizer has no token for the language {code!r}; it has tokens for: {some}")
    return known[found[0]]
