"""Decoding in the context of the sentences before: see `data/context.py`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from heedful.decoding.beam import Hypothesis
from heedful.decoding.from_source import FromSource
from heedful.decoding.runner import Request

Pair = tuple[str, str]
Steps = Iterator[list[tuple[int, list[Hypothesis]]]]  # after each step, what is finished


@dataclass(frozen=True)
class Before:
    """What a model that reads `context` sentences before sees of them; `limit`: tokens of a side."""

    starter: FromSource
    context: int
    limit: int

    def read(self, request: Request, row: list[int], pairs: Sequence[Pair]) -> tuple[Request, list[int]]:
        """The request with the last of these pairs as its context, and its tokens after theirs. Of a context that is
        too long, the oldest sentences are left out; a translation is taken to be as long as its source."""
        pairs = [pair for pair in pairs if row][-self.context :]
        tokenizers = (self.starter.source, self.starter.target)
        sides = [one.encode([pair[side] for pair in pairs]) for side, one in enumerate(tokenizers)]
        while pairs and max(sum(len(some) + 1 for some in side) for side in sides) + len(row) >= self.limit:
            pairs, sides = pairs[1:], [side[1:] for side in sides]
        tokens = [token for some in sides[0] for token in (*some, self.starter.source.sentence_break)]
        return replace(request, context=tuple(pairs)), [*tokens, *row]

    def steps(
        self,
        run: Callable[[Sequence[list[int]], Sequence[Request]], Steps],
        rows: Sequence[list[int]],
        requests: Sequence[Request],
        owners: Sequence[int],
    ) -> Steps:
        """The parts of a text one after the other, each with the pairs before it; the texts side by side. `owners`: the
        text of each part."""
        before: dict[int, list[Pair]] = {owner: [] for owner in owners}
        left = list(range(len(rows)))
        while left:
            now = list({owners[number]: number for number in reversed(left)}.values())  # the first part of each text
            left = sorted({*left} - {*now})
            asked, given = list(requests), [list[int]() for _ in rows]
            for number in now:
                before[owners[number]] += requests[number].context
                asked[number], given[number] = self.read(requests[number], rows[number], before[owners[number]])
            for found in run(given, asked):
                for number, hypotheses in found:
                    best = [one.tokens for one in hypotheses[:1]] or [[]]  # none, if it was cancelled
                    text = self.starter.target.decode(best)[0].strip()
                    before[owners[number]].append((requests[number].text, text))
                yield found
