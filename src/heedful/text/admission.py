"""What a tokenizer.json may contain, checked before the library reads it, which trusts its files.

ids         of tokens: whole numbers below a bound, so that no table becomes gigantic
patterns    regular expressions that take time in proportion to the text, or at worst to its square
rules       replacements that do not let a text grow without bound
"""

import re
from collections.abc import Iterator
from typing import Any

MOST_IDS = 1 << 22
LONGEST_PATTERN = 200_000  # characters; alternatives of many symbols make long ones
MOST_REPEATED = 2  # parts without end in one alternative: \s*[\r\n]+ has two, and takes the square of a text's length
MOST_OPTIONAL = 8
REPEATS = 100  # of one character: a{100}
GROWTH = 1000  # times that all replacements together may lengthen a text
TOKEN = re.compile(
    r"(?P<refused>\\[1-9]|\\[kgcCM]|\(\?[PR&(0-9#~]|\(\?[ims-]*x)"
    r"|(?P<atom>\\[pPx]\{[^}]*\}|\\.|\(\?[imsx-]+\)|\[)"
    r"|(?P<open>\((?:\?(?:[:=!>]|<[=!]|[imsx-]+:|<\w+>))?)"
    r"|(?P<close>\))|(?P<bar>\|)|(?P<times>[*+?][?+]?|\{\d*,?\d*\}[?+]?)|(?P<character>.)",
    re.DOTALL,
)


def admitted(data: Any) -> dict[str, Any]:
    """The content of a tokenizer.json, without its settings for padding and truncation, which are not the tokenizer's
    business; ValueError if it is one that could hang or exhaust the machine."""
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise ValueError("it has no model")
    _check_ids(data["model"].get("vocab"), data.get("added_tokens") or [])
    growth = 1
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        for rule in _rules(data.get(part)):
            if isinstance(pattern := rule.get("Regex"), str):
                refuse_explosive(pattern)
            growth *= _growth(rule)
            if growth > GROWTH:
                raise ValueError(f"its {part} can make a text more than {GROWTH:,} times as long")
    return {**data, "padding": None, "truncation": None}


def refuse_explosive(pattern: str) -> None:
    """ValueError for a regular expression that may take exponential time, or more than the square of a text's length:
    repeated groups with repeats or alternatives inside, many repeats in a row, references to what was matched."""
    if len(pattern) > LONGEST_PATTERN:
        raise ValueError(f"a regular expression of {len(pattern):,} characters is too long")
    shown = f"the regular expression {pattern[:60]!r} may take too long"
    branches: list[_Branch] = [_Branch()]
    place, last = 0, _Branch()
    while place < len(pattern):
        found = TOKEN.match(pattern, place)
        assert found is not None
        kind, place = found.lastgroup, found.end()
        branch = branches[-1]
        if kind == "refused":
            raise ValueError(shown)
        if kind == "open":
            branches.append(_Branch())
        elif kind == "close":
            if len(branches) == 1:
                raise ValueError(f"{shown}: it has an unmatched parenthesis")
            last = branches.pop().closed()
            branches[-1].add(last)
        elif kind == "bar":
            branch.next()
        elif kind == "times":
            branch.repeat(found[0], last)
        else:
            place = _after_class(pattern, found.start()) if found[0] == "[" else place
            last = _Branch()
        if branches[-1].repeated > MOST_REPEATED or branches[-1].optional > MOST_OPTIONAL:
            raise ValueError(shown)
    if len(branches) > 1:
        raise ValueError(f"{shown}: it has an unmatched parenthesis")


class _Branch:
    """One alternative of a group: how many parts repeat without end, how many may be missing, and whether the group
    is plain, that is without either and without alternatives. `most`: of the alternatives before; `is_character`: it
    is no group."""

    def __init__(self) -> None:
        self.repeated = self.optional = 0
        self.most = (0, 0)
        self.plain = self.is_character = True

    def next(self) -> None:
        self.most = (max(self.most[0], self.repeated), max(self.most[1], self.optional))
        self.repeated = self.optional = 0
        self.plain = False

    def closed(self) -> "_Branch":
        plain = self.plain
        self.next()
        self.repeated, self.optional = self.most
        self.plain, self.is_character = plain, False
        return self

    def add(self, group: "_Branch") -> None:
        self.repeated += group.repeated
        self.optional += group.optional
        self.plain = self.plain and group.plain

    def repeat(self, times: str, what: "_Branch") -> None:
        numbers = [int(number[:9]) for number in re.findall(r"\d+", times)]
        if len(numbers) == 1 and "," not in times and numbers[0] <= REPEATS and what.is_character:
            return  # \d{3}
        self.plain = False
        if times.startswith("?") or (numbers and max(numbers) <= 1):
            self.optional += 1
        elif times[0] == "{" and not times.rstrip("?+").endswith(",}") and max(numbers, default=0) <= REPEATS:
            self.optional += 1 if what.plain else MOST_OPTIONAL + 1
        else:
            self.repeated += 1 if what.plain and max(numbers, default=0) <= REPEATS else MOST_REPEATED + 1


def _after_class(pattern: str, start: int) -> int:
    """Where a character class that begins here ends; classes may hold classes."""
    depth, place = 0, start
    while place < len(pattern):
        character = pattern[place]
        if character == "\\":
            place += 1
        elif character == "[":
            depth += 1
            place += pattern[place + 1 : place + 2] == "^"
            place += pattern[place + 1 : place + 2] == "]"  # the first one is a character
        elif character == "]":
            depth -= 1
            if not depth:
                return place + 1
        place += 1
    raise ValueError(f"the regular expression {pattern[:60]!r} has a character class without an end")


def _check_ids(vocabulary: Any, added: Any) -> None:
    if isinstance(vocabulary, dict):
        ids = list(vocabulary.values())
        if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= MOST_IDS):
            raise ValueError(f"its tokens must be numbered from 0 to at most {MOST_IDS - 1:,}")
        if len(set(ids)) < len(ids):
            raise ValueError("two of its tokens have the same number")
    elif vocabulary is not None and not isinstance(vocabulary, list):
        raise ValueError("its vocabulary is neither an object nor a list")
    if not isinstance(added, list):
        raise ValueError("its added_tokens are no list")
    for token in added:
        index = token.get("id") if isinstance(token, dict) else None
        if type(index) is not int or not 0 <= index < MOST_IDS:
            raise ValueError(f"its added tokens must be numbered from 0 to at most {MOST_IDS - 1:,}, not {index!r:.40}")


def _rules(part: Any) -> Iterator[dict[str, Any]]:
    """Every object within a part."""
    left = [part]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
            left += one.values()
        elif isinstance(one, list):
            left += one


def _growth(rule: dict[str, Any]) -> int:
    """How many times as long a rule can make a text of some length."""
    content = rule.get("prepend", rule.get("content", ""))
    if not isinstance(content, str):
        return 1
    pattern = rule.get("pattern")
    replaced = pattern.get("String") if isinstance(pattern, dict) else ""
    return 1 if len(content) <= len(replaced or "") else 1 + len(content) if content else 1
