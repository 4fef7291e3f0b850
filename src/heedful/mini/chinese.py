"""Meanings in Chinese: measure words, the time before the verb, what describes a noun before it."""

from heedful.mini.meaning import Clause, Phrase, Pronoun, Sentence, Subject

COUNT = {"a": "一", "this": "这", "two": "两", "three": "三"}
SOME = {"the+": "那些", "these": "这些", "many": "很多"}
OWN = {"my": "我的", "his": "他的", "her": "她的", "our": "我们的"}
PEOPLE = {"I": "我", "he": "他", "she": "她", "it": "它", "we": "我们", "they": "他们"}
LINKS = {"because": "因为", "although": "尽管"}
NEW = ("a", "two", "three", "many")  # determiners of what was not spoken of before
MODAL = {"can": "能", "must": "必须", "want to": "想"}


def sentence(meaning: Sentence) -> str:
    main = clause(meaning.main, asked=meaning.question)
    if meaning.question:
        return main + "吗？"
    if meaning.other is None:
        return main + "。"
    other = clause(meaning.other)
    if meaning.link == "when":
        return f"{other}的时候，{main}。"
    if meaning.link == "that":
        return f"{main}{other}。"
    return f"{main}，{LINKS[meaning.link]}{other}。"


def clause(meaning: Clause, *, asked: bool = False) -> str:
    """`asked`: a question, in which 很 would be stressed."""
    who = subject(meaning.subject) if meaning.subject is not None else ""
    said = _predicate(meaning)
    return who + (said.removeprefix("很") if asked and meaning.quality is not None else said)


def subject(meaning: Subject) -> str:
    """One that is new is brought in by 有, unless a clause that stands before it does so."""
    if isinstance(meaning, Pronoun):
        return PEOPLE[meaning.word]
    introduced = meaning.relative is not None and meaning.relative.subject is not None
    return ("有" if meaning.determiner in ("a", "two", "three") and not introduced else "") + phrase(meaning)


def phrase(meaning: Phrase, *, denied: bool = False) -> str:
    """Determiner and measure word, what describes it, the noun: 一本红色的书, 这个读书的男人.

    A clause with a subject of its own stands before all that, or its subject would be taken for what is counted:
    男人买的这本书. `denied`: there is none of it, so it is not counted.
    """
    noun, adjective = meaning.noun, meaning.adjective
    described = adjective.zh + ("的" if adjective.linked else "") if adjective is not None else ""
    clause_before = ""
    if meaning.relative is not None and meaning.relative.subject is not None:
        clause_before = _about_object(meaning.relative) + "的"
    elif meaning.relative is not None:
        described = _predicate(meaning.relative) + "的"
    determiner = meaning.determiner
    if denied and determiner == "a":
        first = ""
    elif determiner in COUNT:
        first = COUNT[determiner] + noun.measure
    else:
        first = SOME.get(determiner, "") or OWN.get(determiner, "")
    return clause_before + first + described + noun.zh


def _about_object(meaning: Clause) -> str:
    """男人买 in 男人买的书: the object has gone, and with it the sign of the past."""
    assert meaning.verb is not None and meaning.subject is not None
    return subject(meaning.subject) + "".join(meaning.verb.zh)


def _predicate(meaning: Clause) -> str:
    if meaning.quality is not None:
        word = meaning.quality.zh
        return f"太{word}了" if meaning.degree == "too" else ("非常" if meaning.degree == "very" else "很") + word
    verb = meaning.verb
    assert verb is not None
    time = meaning.time.zh if meaning.time else ""
    place = f"在{meaning.place.zh}" if meaning.place and not meaning.toward else ""
    before, word, after = verb.zh
    past = meaning.tense == "past" and not meaning.negated
    denied, split = "", False
    if meaning.negated:
        split = verb.result and meaning.tense != "past"
        denied = "" if split else "没" if meaning.tense == "past" else "不"
    helping = MODAL[meaning.modal] if meaning.modal else "会" if meaning.tense == "future" else ""
    if split:
        word = f"{word[0]}不{word[1]}"
    thing = phrase(meaning.object, denied=meaning.negated) if meaning.object is not None else ""
    to = phrase(meaning.recipient) if meaning.recipient is not None else ""
    if meaning.toward:
        assert meaning.place is not None
        return f"{time}{denied}{helping}{word}{'了' if past else ''}{meaning.place.zh_to}"
    sign = "了" if past else ""
    if before:
        return f"{time}{denied}{helping}{place}{before}{thing}{word}{sign}{after}"
    if to and meaning.object is not None and meaning.object.determiner not in NEW:
        return f"{time}{denied}{helping}{place}把{thing}{word}{sign}{to}"  # what is known already comes first
    return f"{time}{denied}{helping}{place}{word}{sign}{to}{thing}"
