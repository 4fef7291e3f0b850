"""HTML that is translated: what is text, and what has to come back unchanged.

Elements such as <p> and <li> separate texts. Others, such as <b> and <a>, stand within a sentence: it is translated as
a whole, and `placing.py` puts them back. Whatever is not text is kept byte for byte.
"""

import html
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from heedful.text.placing import Links, Mark, Tagged

START = re.compile(r"<(?:(?P<note>!--)|(?P<end>/)?(?P<name>[a-z][^\s/>]*+)|[/!?])", re.IGNORECASE)
# A ">" within quotes does not end a tag; a quote that never ends is a character like others.
REST = re.compile(r"""(?:[^>=]|=\s*+(?:"[^"]*+"|'[^']*+'|))*+>""")
UNTRANSLATED = re.compile(r"""\stranslate\s*=\s*["']?no\b""", re.IGNORECASE)
CONDITIONAL = re.compile(r"<!--\s*(?:\[if|<!\[)", re.IGNORECASE)
BLANK = re.compile(r"[ \t\r\f]*\n[ \t\r\f]*\n\s*")  # between paragraphs of careless HTML
SPACE = re.compile(r"[ \t\n\r\f]+")  # what HTML shows as one space; a no-break space is none of it
RAW = ("script", "style")  # "<" begins nothing within them
BLOCKS = re.compile(
    "address|article|aside|base|blockquote|body|br|caption|center|col|colgroup|dd|details|dialog|dir|div|dl|dt|fieldset|"
    "figcaption|figure|footer|form|frame|frameset|h[1-6]|head|header|hgroup|hr|html|legend|li|link|main|menu|meta|nav|"
    "noscript|ol|optgroup|option|p|param|pre|section|select|source|summary|table|tbody|td|template|textarea|tfoot|th|"
    "thead|title|tr|track|ul"
)
VOID = ("area", "embed", "img", "input", "wbr")
KEPT = ("pre", "code", "kbd", "samp", "var", "math", "svg")  # nothing within is translated
DEEPEST = 50  # elements within elements; a tag further inside separates


@dataclass(frozen=True)
class Token:
    """A piece of HTML: text; the open or close of an element; a leaf, which stays whole; or what is apart, and
    separates texts. `solid`: a leaf that can be seen."""

    kind: str
    raw: str
    name: str = ""
    solid: bool = False

    @property
    def empty(self) -> bool:
        return self.kind == "leaf" or (self.kind == "text" and not SPACE.sub("", self.raw))


def tokens(text: str) -> list[Token]:
    """Joined again they are the text. What is never closed is text."""
    found: list[Token] = []
    begin = 0
    while (start := START.search(text, begin)) and (end := _end(text, start)):
        found += _texts(text[begin : start.start()])
        found.append(_token(text[start.start() : end], start))
        begin = end
    return [*found, *_texts(text[begin:])]


def _end(text: str, start: "re.Match[str]") -> int:
    """The index after the tag; 0 if it is not closed."""
    if start["note"]:
        return _after(text, "-->", start.end())
    if not start["name"]:
        return _after(text, ">", start.end())
    rest = REST.match(text, start.end())
    if rest is None or start["end"] or start["name"].lower() not in RAW:
        return rest.end() if rest else 0
    closing = re.compile(rf"</{start['name']}\b", re.IGNORECASE).search(text, rest.end())
    return _after(text, ">", closing.end()) if closing else 0


def _after(text: str, mark: str, start: int) -> int:
    place = text.find(mark, start)
    return place + len(mark) if place >= 0 else 0


def _texts(text: str) -> list[Token]:
    pieces, begin = [], 0
    for blank in BLANK.finditer(text):
        pieces += [Token("text", text[begin : blank.start()]), Token("apart", blank.group())]
        begin = blank.end()
    return [one for one in (*pieces, Token("text", text[begin:])) if one.raw]


def _token(raw: str, start: "re.Match[str]") -> Token:
    name = (start["name"] or "").lower()
    if start["note"]:
        return Token("apart" if CONDITIONAL.match(raw) else "leaf", raw)
    if not name or name in RAW:
        return Token("apart", raw)
    if start["end"]:
        return Token("close", raw, name)
    if name in VOID or raw.endswith("/>"):
        return Token("apart" if BLOCKS.fullmatch(name) else "leaf", raw, name, solid=name in ("img", "input", "embed"))
    return Token("open", raw, name)


def _with_leaves(found: Sequence[Token]) -> list[Token]:
    """With each element that is not translated as one token, and blocks as what is apart."""
    made: list[Token] = []
    ends = _ends(found)
    place = 0
    while place < len(found):
        one, end = found[place], ends.get(place)
        if end is not None and (one.name in KEPT or UNTRANSLATED.search(one.raw)):
            inside = found[place : end + 1]
            apart = any(token.kind == "apart" or BLOCKS.fullmatch(token.name) for token in inside)
            made.append(Token("apart" if apart else "leaf", "".join(token.raw for token in inside), solid=True))
            place = end
        else:
            made.append(replace(one, kind="apart") if BLOCKS.fullmatch(one.name) else one)
        place += 1
    return made


def _ends(found: Sequence[Token]) -> dict[int, int]:
    """Where each open tag is closed by the next tag of its name, those between them paired."""
    waiting: dict[str, list[int]] = {}
    ends = {}
    for place, one in enumerate(found):
        if one.kind == "open":
            waiting.setdefault(one.name, []).append(place)
        elif one.kind == "close" and waiting.get(one.name):
            ends[waiting[one.name].pop()] = place
    return ends


def _pairs(found: Sequence[Token]) -> dict[int, int]:
    """The ends of elements that are well-formed, as is all within them; every other tag separates."""
    stack: list[int] = []
    waiting: Counter[str] = Counter()
    pairs, bad = {}, [0] * (len(found) + 1)
    for place, one in enumerate(found):
        if one.kind == "apart":
            bad[place] = 1
        elif one.kind == "open":
            bad[place] = int(len(stack) >= DEEPEST)
            stack.append(place)
            waiting[one.name] += 1
        elif one.kind == "close":
            bad[place] = int(not waiting[one.name])
            while waiting[one.name]:
                opened = stack.pop()
                waiting[found[opened].name] -= 1
                if found[opened].name == one.name:
                    pairs[opened] = place
                    break
                bad[opened] = 1
    for opened in stack:
        bad[opened] = 1
    before = list(accumulate(bad, initial=0))
    return {opened: end for opened, end in pairs.items() if before[end + 1] == before[opened]}


class Html:
    """`texts`: what there is to translate. `tagged`: which of them need word alignments to put their elements back."""

    def __init__(self, text: str) -> None:
        self._frame: list[str | int] = []
        self._tagged: list[Tagged] = []
        found = _with_leaves(tokens(text))
        pairs = _pairs(found)
        paired = {place for pair in pairs.items() for place in pair}
        begin = 0
        for place, one in enumerate(found):
            if one.kind == "apart" or (one.kind in ("open", "close") and place not in paired):
                self._add(found, pairs, begin, place)
                self._frame.append(one.raw)
                begin = place + 1
        self._add(found, pairs, begin, len(found))
        self.texts = [one.text for one in self._tagged]
        self.tagged = [bool(one.marks) for one in self._tagged]

    def join(self, translations: Sequence[str], links: Sequence[Links | None]) -> str:
        """The HTML with these translations. `links`: their (source word, target word); None = by position."""
        every = zip(self._tagged, translations, links, strict=True)
        made = [one.place(translation, known) for one, translation, known in every]
        return "".join(piece if isinstance(piece, str) else made[piece] for piece in self._frame)

    def _add(self, found: Sequence[Token], pairs: dict[int, int], begin: int, end: int) -> None:
        """A run of text and inline elements. What surrounds all of its text is part of the frame."""
        closing: list[str] = []
        while begin < end:
            if found[begin].empty:
                self._frame.append(found[begin].raw)
                begin += 1
            elif found[end - 1].empty:
                closing.append(found[end - 1].raw)
                end -= 1
            elif pairs.get(begin) == end - 1:
                self._frame.append(found[begin].raw)
                closing.append(found[end - 1].raw)
                begin, end = begin + 1, end - 1
            else:
                break
        some = found[begin:end]
        if any(one.kind == "text" and any(map(str.isalnum, html.unescape(one.raw))) for one in some):
            before, tagged, after = _tagged(some, {start - begin: stop - begin for start, stop in pairs.items()})
            self._frame += [before, len(self._tagged), after]
            self._tagged.append(tagged)
        else:
            self._frame += [one.raw for one in some]
        self._frame += reversed(closing)


def _tagged(some: Sequence[Token], pairs: dict[int, int]) -> tuple[str, Tagged, str]:
    """(white space before it, the text with its marks, white space after it)"""
    texts = [html.unescape(one.raw) if one.kind == "text" else "" for one in some]
    raw, starts = "".join(texts), list(accumulate(map(len, texts), initial=0))
    before, after = raw[: len(raw) - len(raw.lstrip())], raw[len(raw.rstrip()) :]
    solid = {starts[place] for place, one in enumerate(some) if one.solid}
    text, places = _collapsed(raw, solid)

    def marks(begin: int, end: int) -> tuple[Mark, ...]:
        made: list[Mark] = []
        while begin < end:
            one, place = some[begin], starts[begin]
            if one.kind == "leaf":
                spaced = raw[max(0, place - 1) : place].isspace(), raw[place : place + 1].isspace()
                made.append(Mark(places[place], places[place], one.raw, spaced=spaced, solid=one.solid))
            elif one.kind == "open":
                stop = pairs[begin]
                inner = marks(begin + 1, stop)
                made.append(Mark(places[place], places[starts[stop]], one.raw, some[stop].raw, inner, leaf=False))
                begin = stop
            begin += 1
        return tuple(made)

    return html.escape(before, quote=False), Tagged(text, marks(0, len(some))), html.escape(after, quote=False)


def _collapsed(raw: str, solid: set[int]) -> tuple[str, list[int]]:
    """The text as it is shown, and the new index of each old one. Where something was taken out between a space and a
    full stop, the space goes as well."""
    pieces, size, end, places = list[str](), 0, 0, list[int]()
    for space in SPACE.finditer(raw):
        pieces.append(raw[end : space.start()])
        places += range(size, size + space.start() - end)
        size += space.start() - end
        places += [size] * (space.end() - space.start())
        end = space.end()
        if size and end < len(raw) and not (end in solid and raw[end] in ".,;:!?"):
            pieces.append(" ")
            size += 1
    places += range(size, size + len(raw) - end + 1)
    return "".join([*pieces, raw[end:]]), places
