"""Meanings in German: gender, case and their endings; the verb second, first or last; verbs that come apart."""

from dataclasses import dataclass

from heedful.mini.meaning import PLURALS, POSSESSIVES, Clause, Phrase, Pronoun, Sentence, Subject

# by case: masculine, feminine, neuter, plural
DER = {"nom": ("der", "die", "das", "die"), "acc": ("den", "die", "das", "die"), "dat": ("dem", "der", "dem", "den")}
DIESER = {"nom": ("er", "e", "es", "e"), "acc": ("en", "e", "es", "e"), "dat": ("em", "er", "em", "en")}
EIN = {"nom": ("", "e", "", "e"), "acc": ("en", "e", "", "e"), "dat": ("em", "er", "em", "en")}
WHICH = DER | {"dat": ("dem", "der", "dem", "denen")}
AFTER_DER = {"nom": ("e", "e", "e", "en"), "acc": ("en", "e", "e", "en"), "dat": ("en", "en", "en", "en")}
AFTER_EIN = {"nom": ("er", "e", "es", "en"), "acc": ("en", "e", "es", "en"), "dat": ("en", "en", "en", "en")}
ALONE = {"nom": ("er", "e", "es", "e"), "acc": ("en", "e", "es", "e"), "dat": ("em", "er", "em", "en")}
OWN = {"my": "mein", "his": "sein", "her": "ihr", "our": "unser"}
COUNT = {"two": "zwei", "three": "drei"}
HE = {"m": "er", "f": "sie", "n": "es"}
PEOPLE = {"I": "ich", "he": "er", "she": "sie", "we": "wir", "they": "sie"}
MODAL = {"can": ("kann", "können"), "must": ("muss", "müssen"), "want to": ("will", "wollen")}
LINKS = {"because": "weil", "although": "obwohl", "that": "dass", "when": "wenn"}


@dataclass(frozen=True)
class Parts:
    """A clause before its verb has found its place. `tail`: what closes it; `after`: what follows even that."""

    subject: str
    finite: str
    middle: str
    tail: str
    after: str
    joined: str  # the finite verb where it stands last, with its prefix

    def second(self) -> str:
        return _words(self.subject, self.finite, self.middle, self.tail) + self.after

    def first(self) -> str:
        return _words(self.finite, self.subject, self.middle, self.tail) + self.after

    def last(self) -> str:
        tail = "" if self.joined != self.finite else self.tail
        return _words(self.subject, self.middle, tail, self.joined) + self.after


def sentence(meaning: Sentence) -> str:
    main = parts(meaning.main)
    if meaning.question:
        return _finished(main.first(), "?")
    if meaning.other is None:
        return _finished(main.second(), ".")
    other = f"{LINKS[meaning.link]} {parts(meaning.other).last()}"
    if meaning.link == "when":
        return _finished(f"{other}, {main.first()}", ".")
    return _finished(f"{main.second()}, {other}", ".")


def parts(meaning: Clause, left_out: str = "", plural: bool = False) -> Parts:
    """`left_out`: the relative pronoun in a relative clause; `plural`: the number of the subject it stands for."""
    who = meaning.subject
    people = _people(who) if who is not None else "they" if plural else "he"
    subject = left_out if who is None else _words(left_out, _subject(who))
    if meaning.quality is not None:
        finite = _be(meaning.tense, people)
        degree = {"very": "sehr", "too": "zu"}.get(meaning.degree, "")
        return Parts(subject, finite, "", _words(degree, meaning.quality.de), "", finite)
    verb = meaning.verb
    assert verb is not None
    middle, after = _middle(meaning)
    if meaning.modal:
        finite, tail = MODAL[meaning.modal][people in ("they", "we")], verb.prefix + verb.infinitive
        return Parts(subject, finite, middle, tail, after, finite)
    if meaning.tense == "past":
        finite = _have(people) if not verb.moves else _be("present", people)
        return Parts(subject, finite, middle, verb.participle, after, finite)
    finite = {"he": verb.de_s, "I": _first_person(verb.infinitive, verb.de_s)}.get(people, verb.infinitive)
    return Parts(subject, finite, middle, verb.prefix, after, verb.prefix + finite)


def phrase(meaning: Phrase, case: str, *, denied: bool = False) -> str:
    """Without its relative clause. `denied`: kein."""
    which, determiner = 3 if meaning.is_plural else "mfn".index(meaning.noun.gender), meaning.determiner
    if determiner in ("the", "the+"):
        first, endings = DER[case][which], AFTER_DER
    elif determiner in ("this", "these"):
        first, endings = "dies" + DIESER[case][which], AFTER_DER
    elif determiner == "a" or determiner in POSSESSIVES:
        stem = ("kein" if denied else "ein") if determiner == "a" else OWN[determiner]
        first, endings = stem + EIN[case][which], AFTER_EIN
    elif determiner == "many":
        first, endings = "viele" + ("n" if case == "dat" else ""), ALONE
    else:
        first, endings = COUNT[determiner], ALONE
    adjective = meaning.adjective.stem + endings[case][which] if meaning.adjective else ""
    return _words(first, adjective, _noun(meaning, case))


def relative(meaning: Phrase) -> str:
    """The clause about it, between commas; none, nothing."""
    inner = meaning.relative
    if inner is None:
        return ""
    which = 3 if meaning.is_plural else "mfn".index(meaning.noun.gender)
    word = WHICH["nom" if inner.subject is None else "acc"][which]
    return f", {parts(inner, word, meaning.is_plural).last()}"


def _noun(meaning: Phrase, case: str) -> str:
    noun = meaning.noun
    if meaning.is_plural:
        return noun.de_plural + ("n" if case == "dat" and noun.de_plural[-1] not in "ns" else "")
    return noun.de_plural if noun.weak and case != "nom" else noun.de


def _subject(meaning: Subject) -> str:
    if isinstance(meaning, Pronoun):
        return HE[meaning.refers.gender] if meaning.refers is not None else PEOPLE[meaning.word]
    clause = relative(meaning)
    return phrase(meaning, "nom") + clause + ("," if clause else "")


def _middle(meaning: Clause) -> tuple[str, str]:
    """What stands between the two parts of the verb, and the clause about the object, which comes after both."""
    verb, thing = meaning.verb, meaning.object
    assert verb is not None
    denied = meaning.negated and thing is not None and thing.determiner == "a"
    words = []
    if meaning.recipient is not None:
        words.append(phrase(meaning.recipient, "dat"))
    if thing is not None:
        words.append(phrase(thing, "dat" if verb.dative else "acc", denied=denied))
    when = meaning.time.de if meaning.time else ""
    words = [*words, when, "nicht"] if meaning.negated and not denied else [when, *words]
    if meaning.place is not None:
        words.append(meaning.place.de_to if meaning.toward else meaning.place.de)
    return _words(*words), relative(thing) if thing is not None else ""


def _people(who: Subject) -> str:
    if isinstance(who, Pronoun):
        return who.word if who.word in ("I", "we", "they") else "he"
    return "they" if who.determiner in PLURALS else "he"


def _first_person(infinitive: str, third: str) -> str:
    if third == "weiß":
        return third
    return infinitive[:-1] if infinitive.endswith("en") else infinitive[:-1] + "e"


def _be(tense: str, people: str) -> str:
    if tense == "past":
        return "war" if people in ("I", "he") else "waren"
    return {"I": "bin", "he": "ist"}.get(people, "sind")


def _have(people: str) -> str:
    return {"I": "habe", "he": "hat"}.get(people, "haben")


def _words(*words: str) -> str:
    return " ".join(word for word in words if word)


def _finished(text: str, end: str) -> str:
    return text[0].upper() + text[1:] + end
