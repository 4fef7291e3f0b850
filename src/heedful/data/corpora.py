"""The corpora of a mixture as a recipe states them: their files, tasks, languages and shares."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from heedful.config import Config
from heedful.data.languages import Direction

CODE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*")
Metric = Literal["bleu", "chrf", "rouge", "exact", "accuracy"]


class CorpusConfig(Config):
    """One corpus of several that a model is trained on.

    file        TSV, CSV or JSONL with pairs, or a list: two parallel files, or several tables. Paths are relative to
                the recipe's file
    valid       validation files; by default some rows are held out
    test        test files
    name        what scores are called by; by default the direction, the prefix or the file's name
    prefix      text before each source, spaces included, which tells the model the task: "summarize: "
    weight      the corpus's share among the weights of all; by default shares follow the sizes
    metric      of this corpus: bleu, chrf, rouge (ROUGE-L), exact or accuracy (both: % of equal outputs)
    source      language codes, such as en and de: the model gets a token for each language
    target
    both        train target to source as well
    replay      it is data that the model of start_from has learned, mixed in so that it is not forgotten
    fields      names of the files' columns, as --fields gives them
    """

    file: tuple[str, ...] = Field(min_length=1)
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    name: str = ""
    prefix: str = ""
    weight: float | None = Field(None, gt=0)
    metric: Metric = "bleu"
    source: str = ""
    target: str = ""
    both: bool = False
    replay: bool = False
    fields: tuple[str, ...] = ()

    @field_validator("file", "valid", "test", "fields", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fits_together(self) -> "CorpusConfig":
        if self.name and not re.fullmatch(r"[\w.-]+", self.name):
            raise ValueError(f"name {self.name!r} may contain letters, digits, '.', '-' and '_' only")
        if bool(self.source) != bool(self.target):
            raise ValueError("give both source and target, or neither")
        for code in filter(None, (self.source, self.target)):
            if not CODE.fullmatch(code):
                raise ValueError(f"{code!r} is not a language code, such as en or pt-BR")
        if self.both and not self.source:
            raise ValueError("both=true needs the languages: give source and target")
        if self.both and self.source == self.target:
            raise ValueError(f"both=true needs two languages, not {self.source} twice")
        if self.both and self.prefix:
            raise ValueError("a prefix is for one direction; leave out both=true or the prefix")
        return self

    @property
    def directions(self) -> list[Direction]:
        """The directions it is used in, as files order the columns first."""
        if not self.source:
            return []
        first = Direction(self.source, self.target)
        return [first, Direction(*reversed(first))] if self.both else [first]


def with_replay(new: CorpusConfig, old: Sequence[str], share: float) -> list[CorpusConfig]:
    """New data, and old data in the same format that has this share of the rows trained on."""
    if not 0 < share < 1:
        raise ValueError(f"replay share {share:g} is not between 0 and 1; 0.5 = as many old rows as new ones")
    replayed = CorpusConfig(file=tuple(old), weight=share, fields=new.fields, replay=True)
    name = "replay" if _stem(new) == _stem(replayed) else ""
    return [
        new.model_copy(update={"weight": 1 - share}),
        replayed.model_copy(update={"name": name}),
    ]


def names_of(corpora: Sequence[CorpusConfig]) -> list[str]:
    """A name for each corpus. Those that share one get the names of their files as well."""
    own = [
        one.name
        or (str(one.directions[0]) if one.directions else "")
        or re.sub(r"\W+", "-", one.prefix).strip("-")
        or _stem(one)
        for one in corpora
    ]
    found = [
        f"{name}.{_stem(one)}" if own.count(name) > 1 and not one.name else name
        for name, one in zip(own, corpora, strict=True)
    ]
    for name in found:
        if found.count(name) > 1:
            raise ValueError(f"two corpora are called {name!r}; give each a name of its own")
    return found


def part_names(corpora: Sequence[CorpusConfig]) -> list[tuple[str, int, Direction | None]]:
    """(name, number of its corpus, direction) of each part of a mixture: a corpus, or one direction of it."""
    found: list[tuple[str, int, Direction | None]] = []
    for number, (name, one) in enumerate(zip(names_of(corpora), corpora, strict=True)):
        first, back = [*one.directions, None, None][:2]
        found.append((name, number, first))
        if back is not None:
            renamed = name.replace(str(first), str(back))
            found.append((renamed if renamed != name else f"{name}.{back}", number, back))
    return found


def confusable(corpora: Sequence[CorpusConfig]) -> list[str]:
    """What to warn of: different tasks whose sources look the same."""
    groups: dict[tuple[object, ...], list[tuple[str, str]]] = {}
    for name, one in zip(names_of(corpora), corpora, strict=True):
        groups.setdefault((one.prefix, *one.directions[:1]), []).append((name, one.metric))
    prefixed = any(one.prefix for one in corpora)
    return [
        f"the model cannot tell {' and '.join(name for name, _ in same)} apart; if they are different tasks, give "
        "each a prefix"
        for same in groups.values()
        if len(same) > 1 and (prefixed or len({metric for _, metric in same}) > 1)
    ]


def shares(sizes: Sequence[int], weights: Sequence[float | None], temperature: float) -> list[float]:
    """The share of each part. By given weights, or else by size and temperature (Arivazhagan et al. 2019, section 4.2):

    p_i ~ n_i^(1 / T)        T = 1: by size; T -> infinity: equal shares
    """
    if any(weight is not None for weight in weights):
        found = [float(weight or 0) for weight in weights]
    else:
        found = [(size / max(sizes)) ** (1 / temperature) for size in sizes]
    return [one / sum(found) for one in found]


def _stem(one: CorpusConfig) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(one.file[0]).name.partition(".")[0]) or "corpus"
