"""What a sentence says, before it is said in any language; and a die that makes up such sentences.

A meaning is a small tree. Each language has a file that puts it into words: english.py, german.py, chinese.py.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from heedful.mini.lexicon import (
    Adjective,
    Noun,
    Place,
    Time,
    Verb,
    adjectives,
    giving,
    going,
    nouns,
    places,
    saying,
    times,
    verbs,
)

PLURALS = ("these", "two", "three", "many", "the+")  # the+ = the, of several
POSSESSIVES = ("my", "his", "her", "our")
MODALS = ("can", "must", "want to")
PRONOUNS = ("I", "he", "she", "we", "they")
QUALITIES = [word for word in adjectives if not word.is_colour]  # what may be too much of


@dataclass(frozen=True)
class Phrase:
    """A noun with what goes with it. `relative`: a clause in which it is the subject, or the object, left out."""

    noun: Noun
    determiner: str
    adjective: Adjective | None = None
    relative: "Clause | None" = None

    @property
    def is_plural(self) -> bool:
        return self.determiner in PLURALS


@dataclass(frozen=True)
class Pronoun:
    """`refers`: the noun that `it`, `he` or `she` stands for, whose gender German wants to know."""

    word: str
    refers: Noun | None = None

    @property
    def is_plural(self) -> bool:
        return self.word in ("we", "they")


Subject = Phrase | Pronoun


@dataclass(frozen=True)
class Clause:
    """Somebody does something; or, with `quality` and no verb, somebody is so. In a relative clause the subject or the
    object is None: it is the noun outside."""

    subject: Subject | None
    verb: Verb | None = None
    object: Phrase | None = None
    recipient: Phrase | None = None
    place: Place | None = None
    toward: bool = False
    time: Time | None = None
    tense: str = "present"
    negated: bool = False
    modal: str = ""
    quality: Adjective | None = None
    degree: str = ""  # "", very, too


@dataclass(frozen=True)
class Sentence:
    """`link`: because, although, that, when; the clause `other` hangs on it. With `when` it comes first."""

    main: Clause
    link: str = ""
    other: Clause | None = None
    question: bool = False

    def has_no_word_twice(self) -> bool:
        found = [phrase.noun.en for clause in (self.main, self.other) for phrase in _phrases(clause)]
        return len(found) == len(set(found))

    def pairs(self) -> Iterator[tuple[str, str]]:
        """The words that belong together: adjective and noun, verb and object. What is new in the test set is these."""
        for clause in (self.main, self.other):
            yield from _pairs(clause)


def _phrases(clause: Clause | None) -> Iterator[Phrase]:
    """Those with a noun, in clauses about them too."""
    for phrase in (clause.subject, clause.object, clause.recipient) if clause is not None else ():
        if isinstance(phrase, Phrase):
            yield phrase
            yield from _phrases(phrase.relative)


def _pairs(clause: Clause | None, about: Noun | None = None) -> Iterator[tuple[str, str]]:
    """`about`: the noun that a relative clause is about."""
    if clause is None:
        return
    if clause.quality is not None and clause.subject is not None:
        noun = clause.subject.noun if isinstance(clause.subject, Phrase) else clause.subject.refers
        if noun is not None:
            yield clause.quality.en, noun.en
    thing = clause.object.noun if clause.object is not None else about if clause.subject is not None else None
    if clause.verb is not None and thing is not None:
        yield clause.verb.en, thing.en
    for phrase in (clause.subject, clause.object, clause.recipient):
        if isinstance(phrase, Phrase):
            if phrase.adjective is not None:
                yield phrase.adjective.en, phrase.noun.en
            yield from _pairs(phrase.relative, phrase.noun)


class Die:
    """Makes up meanings. The same seed makes up the same ones."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def sentence(self) -> Sentence:
        kind = self.chance.choices(
            ("plain", "question", "because", "reference", "although", "that", "when", "relative"),
            (36, 8, 8, 18, 6, 10, 6, 8),
        )[0]
        made: Sentence = getattr(self, f"_{kind}")()
        return made if made.has_no_word_twice() else self.sentence()

    def document(self) -> list[Sentence]:
        """The man has bought a lamp. It is very old: what `it` stands for is said in the sentence before."""
        while True:
            first = Sentence(self.clause(short=True, modal=False))
            things = [phrase for phrase in _phrases(first.main) if phrase.noun.pronoun == "it" and not phrase.is_plural]
            if not things or not first.has_no_word_twice():
                continue
            meant = self.chance.choice(things).noun
            others = frozenset[str]().union(*(phrase.noun.tags for phrase in things if phrase.noun is not meant))
            fitting = [word for word in QUALITIES if word.tags & meant.tags and not word.tags & others]
            fitting = [word for word in fitting if word is not first.main.quality]
            if fitting:
                degree = self.chance.choice(["", "very", "too"])
                return [first, Sentence(self._quality(Pronoun("it", meant), fitting, first.main.tense, degree))]

    def _plain(self) -> Sentence:
        return Sentence(self.clause())

    def _question(self) -> Sentence:
        clause = replace(self.clause(), negated=False)
        return Sentence(clause, question=True) if _is_known(clause.subject) else self._question()

    def _because(self) -> Sentence:
        """The man sleeps because the dog is tired."""
        main = self.clause(short=True)
        return Sentence(main, "because", self._state(self._animate_subject(), main.tense))

    def _reference(self) -> Sentence:
        """The animal did not cross the street because it was too tired, or because it was too wide."""
        about_it = self.chance.random() < 0.7  # both are `it`: only the adjective tells which is meant
        while True:
            verb = self.chance.choice([verb for verb in verbs if verb.objects and not verb.lasting])
            doer, thing = self._one_of(verb.subjects), self._one_of(verb.objects)
            if {"person", "animal"} & thing.tags or thing.is_mass or not doer.pronoun:
                continue
            if about_it == (doer.pronoun == "it"):
                break
        main = Clause(Phrase(doer, "the"), verb, Phrase(thing, "the"), tense="past", negated=True)
        meant = self.chance.choice([doer, thing])
        other = thing if meant is doer else doer
        fitting = [word for word in QUALITIES if word.tags & meant.tags and not word.tags & other.tags]
        if not fitting:
            return self._reference()
        return Sentence(main, "because", self._quality(Pronoun(meant.pronoun, meant), fitting, "past", "too"))

    def _although(self) -> Sentence:
        """The man works although he is tired."""
        main = self.clause(short=True)
        doer = main.subject
        if not isinstance(doer, Phrase) or doer.is_plural or doer.noun.pronoun not in ("he", "she"):
            return self._although()
        fitting = [word for word in QUALITIES if word.tags & doer.noun.tags]
        return Sentence(main, "although", self._quality(Pronoun(doer.noun.pronoun, doer.noun), fitting, main.tense, ""))

    def _that(self) -> Sentence:
        verb = self.chance.choice(saying)
        who = self._subject(verb.subjects)
        return Sentence(Clause(who, verb), "that", self.clause(modal=False))

    def _when(self) -> Sentence:
        quiet = [verb for verb in verbs if not verb.objects]
        first = self.chance.choice(quiet)
        other = Clause(self.phrase(self._one_of(first.subjects)), first)
        return Sentence(self.clause(short=True, tense="present", modal=False), "when", other)

    def _relative(self) -> Sentence:
        """A clause about the subject, or about the object."""
        clause = self.clause(short=True, modal=False)
        about = clause.object if clause.object and not clause.negated and self.chance.random() < 0.5 else clause.subject
        if not isinstance(about, Phrase) or about.determiner in POSSESSIVES or clause.recipient:
            return self._relative()
        about_object = about is clause.object
        if clause.time is not None if about_object else not _is_known(about):
            return self._relative()
        found = replace(about, adjective=None, relative=self._about(about.noun))
        return Sentence(replace(clause, object=found) if about_object else replace(clause, subject=found))

    def _about(self, noun: Noun) -> Clause:
        """... who reads the book; ... that the man reads"""
        clear = [verb for verb in verbs if verb.en_past != verb.en]
        as_subject = [verb for verb in clear if verb.objects and verb.subjects & noun.tags]
        as_object = [verb for verb in clear if verb.objects & noun.tags and not verb.dative and not verb.zh[0]]
        tense = self.chance.choice(["present", "past"])
        if as_subject and (not as_object or self.chance.random() < 0.5):
            verb = self.chance.choice(as_subject)
            thing = self.phrase(self._one_of(verb.objects))
            return Clause(None, verb, thing, tense=_allowed(verb, tense))
        verb = self.chance.choice(as_object)
        who = Phrase(self._one_of(verb.subjects), self.chance.choice(["the", "the", "this", "the+"]))
        return Clause(who, verb, None, tense=_allowed(verb, tense))

    def clause(self, *, short: bool = False, tense: str = "", modal: bool = True) -> Clause:
        kind = self.chance.choices(("doing", "giving", "going", "being"), (60, 10, 14, 16))[0]
        tense = tense or self.chance.choices(("present", "past", "future"), (40, 42, 18))[0]
        if short and tense == "future":
            tense = "present"
        if kind == "being":
            return self._state(self._subject(frozenset({"person", "animal", "object", "way"})), tense)
        verb = self.chance.choice({"doing": verbs, "giving": giving, "going": going}[kind])
        who = self._subject(verb.subjects)
        what = self.phrase(self._one_of(verb.objects)) if verb.objects else None
        to = self.phrase(self._one_of(frozenset({"person"}))) if kind == "giving" else None
        place = self.chance.choice(places) if kind == "going" or self.chance.random() < 0.15 else None
        if short and kind != "going":
            place = None
        found = Clause(who, verb, what, to, place, toward=kind == "going", tense=_allowed(verb, tense))
        if modal and found.tense == "present" and not verb.result and not verb.lasting and self.chance.random() < 0.15:
            found = replace(found, modal=self.chance.choice(MODALS))
        if self.chance.random() < 0.2:
            found = _negated(found)
        timed = not short and not verb.lasting and self.chance.random() < 0.4
        if timed or found.tense == "future" or _needs_time(found):
            found = replace(found, time=self._time(found.tense, found.negated))
        return found

    def _state(self, who: Subject, tense: str) -> Clause:
        tags = who.noun.tags if isinstance(who, Phrase) else frozenset({"person"})
        if isinstance(who, Phrase):
            who = replace(who, adjective=None, determiner=who.determiner if _is_known(who) else "the")
        fitting = [word for word in QUALITIES if word.tags & tags]
        tense = "past" if tense == "past" else "present"
        return self._quality(who, fitting, tense, self.chance.choice(["", "", "very"]))

    def _quality(self, who: Subject, fitting: list[Adjective], tense: str, degree: str) -> Clause:
        return Clause(who, tense=tense, quality=self.chance.choice(fitting), degree=degree)

    def phrase(self, noun: Noun) -> Phrase:
        choices = ["the"] * 8 + (list(POSSESSIVES) if noun.is_owned else [])
        if not noun.is_mass:
            choices += ["a"] * 5 + ["this"] * 3 + ["the+", "these", "two", "three", "many"]
        fitting = [word for word in adjectives if word.tags & noun.tags]
        adjective = self.chance.choice(fitting) if fitting and self.chance.random() < 0.3 else None
        return Phrase(noun, self.chance.choice(choices), adjective)

    def _subject(self, tags: frozenset[str]) -> Subject:
        if tags & {"person", "grown"} and self.chance.random() < 0.15:
            return Pronoun(self.chance.choice(PRONOUNS))
        return self.phrase(self._one_of(tags))

    def _animate_subject(self) -> Subject:
        return self._subject(frozenset({"person", "animal"}))

    def _one_of(self, tags: frozenset[str]) -> Noun:
        return self.chance.choice([noun for noun in nouns if noun.tags & tags])

    def _time(self, tense: str, negated: bool) -> Time:
        """`not every day` and `every day not` are different things, so neither is said."""
        fitting = [time for time in times if time.tense == tense and not (negated and time.en.startswith("every"))]
        return self.chance.choice(fitting)


def _negated(clause: Clause) -> Clause:
    """Where it is said the same way in all three languages."""
    counted = clause.object is not None and clause.object.determiner in ("two", "three", "many")
    here = clause.place is not None and not clause.toward
    if counted or here or clause.modal in ("must", "want to"):
        return clause
    if clause.object is not None and clause.object.determiner == "a" and clause.recipient is not None:
        return clause
    return replace(clause, negated=True)


def _allowed(verb: Verb, tense: str) -> str:
    return "present" if verb.lasting or (verb.result and tense == "future") else tense


def _needs_time(clause: Clause) -> bool:
    """`They read the book`: when?"""
    return clause.verb is not None and clause.verb.en_past == clause.verb.en and not clause.modal


def _is_known(who: Subject | None) -> bool:
    """It is clear which one is meant."""
    return not isinstance(who, Phrase) or who.determiner not in ("a", "two", "three", "many")
