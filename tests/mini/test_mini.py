"""The grammar: every language by its rules, and files that do not leak into each other."""

import re
from collections import Counter
from dataclasses import replace

import pytest

from heedful.mini import chinese, english, german
from heedful.mini.corpus import held_back, make, make_documents, write
from heedful.mini.lexicon import adjectives, giving, going, nouns, places, saying, times, verbs
from heedful.mini.meaning import Clause, Die, Phrase, Pronoun, Sentence

NOUN = {noun.en: noun for noun in nouns}
VERB = {verb.en: verb for verb in (*verbs, *going)}
GIVE = {verb.en: verb for verb in giving}
SAY = {verb.en: verb for verb in saying}
ADJECTIVE = {word.en: word for word in adjectives}
TIME = {time.en: time for time in times}
PLACE = {place.en: place for place in places}


def phrase(text):
    """`a red book`: determiner, adjective, noun, all in the singular form of the lexicon."""
    determiner, *middle, noun = text.split()
    return Phrase(NOUN[noun], determiner, ADJECTIVE[middle[0]] if middle else None)


def clause(subject, verb, thing=None, **more):
    who = phrase(subject) if " " in subject else Pronoun(subject)
    return Clause(who, VERB[verb], phrase(thing) if thing else None, **more)


def said(meaning):
    meaning = meaning if isinstance(meaning, Sentence) else Sentence(meaning)
    return english.sentence(meaning), german.sentence(meaning), chinese.sentence(meaning)


def too(noun, quality, tense="past"):
    return Clause(Pronoun(NOUN[noun].pronoun, NOUN[noun]), tense=tense, quality=ADJECTIVE[quality], degree="too")


CROSS = clause("the animal", "cross", "the street", tense="past", negated=True)


@pytest.mark.parametrize(
    ("meaning", "expected"),
    [
        (
            Sentence(CROSS, "because", too("animal", "tired")),
            ("The animal did not cross the street because it was too tired.",
             "Das Tier hat die Straße nicht überquert, weil es zu müde war.", "动物没穿过马路，因为它太累了。"),
        ),
        (
            Sentence(CROSS, "because", too("street", "wide")),
            ("The animal did not cross the street because it was too wide.",
             "Das Tier hat die Straße nicht überquert, weil sie zu breit war.", "动物没穿过马路，因为它太宽了。"),
        ),
        (
            clause("the boy", "open", "a heavy box", time=TIME["today"], tense="present"),
            ("The boy opens a heavy box today.", "Der Junge macht heute eine schwere Kiste auf.",
             "男孩今天打开一个重的箱子。"),
        ),
        (
            clause("three boy", "get up", time=TIME["yesterday"], tense="past"),
            ("Three boys got up yesterday.", "Drei Jungen sind gestern aufgestanden.", "有三个男孩昨天起床了。"),
        ),
        (
            clause("I", "tidy up", "the dirty kitchen", modal="must"),
            ("I must tidy up the dirty kitchen.", "Ich muss die schmutzige Küche aufräumen.", "我必须收拾脏的厨房。"),
        ),
        (
            clause("the student", "see", "the horse", negated=True),
            ("The student does not see the horse.", "Der Student sieht das Pferd nicht.", "学生看不见马。"),
        ),
        (
            clause("a man", "feed", "the young monkey".replace("young", "big"), negated=True, time=TIME["tomorrow"],
                   tense="future"),
            ("A man will not feed the big monkey tomorrow.", "Ein Mann füttert den großen Affen morgen nicht.",
             "有一个男人明天不会喂大猴子。"),
        ),
        (
            clause("she", "buy", "a expensive coat", negated=True, tense="past"),
            ("She did not buy an expensive coat.", "Sie hat keinen teuren Mantel gekauft.", "她没买贵的大衣。"),
        ),
        (
            clause("my sister", "help", "these child", tense="past"),
            ("My sister helped these children.", "Meine Schwester hat diesen Kindern geholfen.",
             "我的姐姐帮助了这些孩子。"),
        ),
        (
            replace(clause("the queen", "go"), place=PLACE["in the library"], toward=True, tense="past"),
            ("The queen went to the library.", "Die Königin ist in die Bibliothek gegangen.", "女王去了图书馆。"),
        ),
        (
            Sentence(Clause(Pronoun("we"), SAY["know"]), "that", clause("he", "call", "the soldier", tense="past")),
            ("We know that he called the soldier.", "Wir wissen, dass er den Soldaten angerufen hat.",
             "我们知道他给士兵打了电话。"),
        ),
        (
            Sentence(clause("the cat", "sleep"), "when", clause("the woman", "work")),
            ("When the woman works, the cat sleeps.", "Wenn die Frau arbeitet, schläft die Katze.",
             "女人工作的时候，猫睡觉。"),
        ),
        (
            Sentence(clause("they", "wake up", tense="past"), question=True),
            ("Did they wake up?", "Sind sie aufgewacht?", "他们醒来了吗？"),
        ),
    ],
)  # fmt: skip
def test_sentences_known_to_be_right(meaning, expected):
    assert said(meaning) == expected


def test_giving_wants_a_dative_and_an_accusative():
    meaning = Clause(
        phrase("the farmer"), GIVE["give"], phrase("a ripe apple".replace("ripe", "sour")), phrase("the dog")
    )
    assert said(meaning) == ("The farmer gives the dog a sour apple.", "Der Bauer gibt dem Hund einen sauren Apfel.",
                             "农民给狗一个酸的苹果。")  # fmt: skip
    known = replace(meaning, object=phrase("this sour apple"), tense="past")
    assert said(known)[2] == "农民把这个酸的苹果给了狗。"


def test_clauses_about_a_noun_come_after_it_in_german_and_before_it_in_chinese():
    reads = Clause(None, VERB["read"], phrase("the letter"), tense="past")
    meaning = replace(clause("the man", "laugh"), subject=replace(phrase("the man"), relative=reads))
    assert said(meaning) == ("The man who read the letter laughs.", "Der Mann, der den Brief gelesen hat, lacht.",
                             "读了信的男人笑。")  # fmt: skip
    buys = Clause(phrase("the woman"), VERB["buy"], None, tense="past")
    thing = replace(phrase("this book"), relative=buys)
    meaning = replace(clause("the man", "read", "this book", tense="past"), object=thing)
    assert said(meaning) == ("The man read this book that the woman bought.",
                             "Der Mann hat dieses Buch gelesen, das die Frau gekauft hat.",
                             "男人读了女人买的这本书。")  # fmt: skip


@pytest.mark.parametrize(
    ("text", "nominative", "accusative", "dative"),
    [
        ("the old dog", "der kleine Hund", "den kleinen Hund", "dem kleinen Hund"),
        ("a old dog", "ein kleiner Hund", "einen kleinen Hund", "einem kleinen Hund"),
        ("my old cat", "meine kleine Katze", "meine kleine Katze", "meiner kleinen Katze"),
        ("this old horse", "dieses kleine Pferd", "dieses kleine Pferd", "diesem kleinen Pferd"),
        ("a old horse", "ein kleines Pferd", "ein kleines Pferd", "einem kleinen Pferd"),
        ("two old dog", "zwei kleine Hunde", "zwei kleine Hunde", "zwei kleinen Hunden"),
        ("the+ old bear", "die kleinen Bären", "die kleinen Bären", "den kleinen Bären"),
        ("many old car", "viele kleine Autos", "viele kleine Autos", "vielen kleinen Autos"),
        ("our old monkey", "unser kleiner Affe", "unseren kleinen Affen", "unserem kleinen Affen"),
    ],
)
def test_german_endings(text, nominative, accusative, dative):
    found = phrase(text.replace("old", "small"))
    assert [german.phrase(found, case) for case in ("nom", "acc", "dat")] == [nominative, accusative, dative]


def test_a_sentence_means_one_thing():
    """The same English never stands beside different translations: else nobody could learn it."""
    die, known = Die(3), {}
    for _ in range(20_000):
        first, *others = said(die.sentence())
        assert known.setdefault(first, others) == others


def test_every_sentence_is_whole():
    die = Die(4)
    words = {"en": r"[A-Z][a-z ,]+[.?]", "de": r"[A-ZÄÖÜ][A-Za-zäöüßÄÖÜ ,]+[.?]", "zh": r"[\u4e00-\u9fff，]+[。？]"}
    for _ in range(5_000):
        for text, pattern in zip(said(die.sentence()), words.values(), strict=True):
            assert re.fullmatch(pattern.replace("a-z ", "A-Za-z "), text), text
            assert "  " not in text and ",," not in text and ",." not in text


@pytest.mark.parametrize("pair", ["en-de", "en-zh"])
def test_the_test_set_is_new_in_every_sentence(pair, tmp_path):
    counts = write(tmp_path, pair, 2000)
    assert counts == {"train": 2000, "valid": 100, "test": 100}
    lines = {split: (tmp_path / f"{split}.tsv").read_text().splitlines() for split in counts}
    sources = {split: {line.split("\t")[0] for line in found} for split, found in lines.items()}
    assert all(len(sources[split]) == counts[split] for split in counts)
    assert not sources["train"] & sources["test"] and not sources["train"] & sources["valid"]
    assert not sources["valid"] & sources["test"]


def test_words_kept_apart_in_training_meet_in_the_test(monkeypatch):
    new, met = held_back(1), {"train": set(), "test": set()}
    meanings = {}
    plain = english.sentence
    monkeypatch.setattr(
        english, "sentence", lambda meaning: meanings.setdefault(plain(meaning), meaning) and plain(meaning)
    )
    found = make("en-de", 3000)
    for split in met:
        for source, _ in found[split]:
            pairs = set(meanings[source].pairs())
            assert bool(pairs & new) == (split == "test")
            met[split] |= pairs
    words = {word for pair in new for word in pair}
    assert words <= {word for pair in met["train"] for word in pair} | {noun.en for noun in nouns}


def test_the_same_seed_makes_the_same_corpus():
    assert make("en-de", 50) == make("en-de", 50) != make("en-de", 50, seed=2)


def test_mistakes():
    with pytest.raises(ValueError, match="there is no pair 'en-fr'; known: en-de, en-zh"):
        make("en-fr", 10)
    with pytest.raises(ValueError, match="lines is 0, but must be at least 1"):
        make("en-de", 0)


def test_documents_of_two_sentences_whose_pronoun_needs_the_first(tmp_path):
    found = make_documents("en-de", 400)
    gender = {"Er": "m", "Sie": "f", "Es": "n"}
    for split, documents in found.items():
        assert len(documents) == {"train": 200, "valid": 10, "test": 10}[split]
        for (first, _), (second, german_second) in documents:
            words = re.findall(r"\w+", first.lower())
            assert second.startswith("It ")
            meant = [noun for noun in nouns if noun.en in words and noun.pronoun == "it"]
            assert gender[german_second.split()[0]] in {noun.gender for noun in meant}, (first, german_second)
    whole = ["\n".join(f"{source}\t{target}" for source, target in document) for document in found["train"]]
    assert len(set(whole)) == 200
    counts = write(tmp_path, "en-de", 400, documents=True)
    assert counts["train"] == 400 and (tmp_path / "train.tsv").read_text() == "\n\n".join(whole) + "\n"
    seconds = Counter(document[1][0] for document in found["train"])
    pronouns = {(source, target.split()[0]) for _, (source, target) in found["train"]}
    assert len(pronouns) > 1.2 * len(seconds), "the second sentence alone says which pronoun it is"
