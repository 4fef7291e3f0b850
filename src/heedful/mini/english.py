"""Meanings in English."""

from heedful.mini.meaning import Clause, Phrase, Pronoun, Sentence, Subject


def sentence(meaning: Sentence) -> str:
    if meaning.question:
        return _finished(_question(meaning.main), "?")
    main = clause(meaning.main)
    if meaning.other is None:
        return _finished(main, ".")
    other = clause(meaning.other)
    if meaning.link == "when":
        return _finished(f"when {other}, {main}", ".")
    return _finished(f"{main} {meaning.link} {other}", ".")


def clause(meaning: Clause) -> str:
    who = subject(meaning.subject) if meaning.subject is not None else ""
    return " ".join(part for part in (who, *_predicate(meaning, _agrees(meaning))) if part)


def subject(meaning: Subject) -> str:
    return meaning.word if isinstance(meaning, Pronoun) else phrase(meaning)


def phrase(meaning: Phrase) -> str:
    noun = meaning.noun.en_plural if meaning.is_plural else meaning.noun.en
    words = ([meaning.adjective.en] if meaning.adjective else []) + [noun]
    determiner = meaning.determiner.rstrip("+")
    if determiner == "a" and words[0][0] in "aeiou":
        determiner = "an"
    text = " ".join([determiner, *words])
    if meaning.relative is None:
        return text
    inner = meaning.relative
    if inner.subject is None:
        link = "who" if "person" in meaning.noun.tags else "that"
        return f"{text} {link} {' '.join(_predicate(inner, 'they' if meaning.is_plural else 'he'))}"
    return f"{text} that {clause(inner)}"


def _predicate(meaning: Clause, agrees: str) -> list[str]:
    if meaning.quality is not None:
        return [_be(meaning.tense, agrees), meaning.degree, meaning.quality.en]
    assert meaning.verb is not None
    words = [_verb(meaning, agrees)]
    if meaning.recipient is not None:
        words.append(phrase(meaning.recipient))
    if meaning.object is not None:
        words.append(phrase(meaning.object))
    if meaning.place is not None:
        words.append(meaning.place.en_to if meaning.toward else meaning.place.en)
    if meaning.time is not None:
        words.append(meaning.time.en)
    return words


def _verb(meaning: Clause, agrees: str) -> str:
    verb, negated = meaning.verb, meaning.negated
    assert verb is not None
    if meaning.modal == "want to":
        return f"{'wants' if agrees == 'he' else 'want'} to {verb.en}"
    if meaning.modal:
        return f"{meaning.modal}{'not' if negated else ''} {verb.en}"
    if meaning.tense == "future":
        return f"will {'not ' if negated else ''}{verb.en}"
    if meaning.tense == "past":
        return f"did not {verb.en}" if negated else verb.en_past
    if negated:
        return f"{'does' if agrees == 'he' else 'do'} not {verb.en}"
    return verb.en_s if agrees == "he" else verb.en


def _question(meaning: Clause) -> str:
    agrees = _agrees(meaning)
    assert meaning.subject is not None
    who = subject(meaning.subject)
    if meaning.quality is not None:
        be, *rest = _predicate(meaning, agrees)
        return " ".join(part for part in (be, who, *rest) if part)
    assert meaning.verb is not None
    _, *rest = _predicate(meaning, agrees)
    if meaning.modal in ("can", "must"):
        return " ".join([meaning.modal, who, meaning.verb.en, *rest])
    helping = {"past": "did", "future": "will"}.get(meaning.tense, "does" if agrees == "he" else "do")
    return " ".join([helping, who, "want to" if meaning.modal else "", meaning.verb.en, *rest]).replace("  ", " ")


def _agrees(meaning: Clause) -> str:
    """he, they or I: whom the verb goes with."""
    if isinstance(meaning.subject, Pronoun) and meaning.subject.word == "I":
        return "I"
    return "they" if meaning.subject is not None and meaning.subject.is_plural else "he"


def _be(tense: str, agrees: str) -> str:
    if tense == "past":
        return "were" if agrees == "they" else "was"
    return {"I": "am", "he": "is", "they": "are"}[agrees]


def _finished(text: str, end: str) -> str:
    return text[0].upper() + text[1:] + end
