"""Mixtures: the shares that result, the order of an epoch, and what a recipe may say of its corpora."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.config import parse
from heedful.data import batches
from heedful.data.corpora import CorpusConfig, confusable, names_of, part_names, shares
from heedful.data.inputs import DataConfig
from heedful.data.languages import language_token
from heedful.data.mixed import Mixed, passes
from heedful.data.mixture import open_mixture, prepare_mixture
from heedful.data.store import Store, StoreWriter
from heedful.text.tokenizer import TokenizerConfig
from heedful.training.recipe import parse_recipe, read_recipe, with_corpora
from tests.corpora import pairs

CHARACTERS = TokenizerConfig(kind="character")


def store(place: Path, rows: int, *, first: int) -> Store:
    """Row n has n % 5 + 1 tokens of the number first + n in the first column, and n % 3 + 1 in the second."""
    place.mkdir()
    writer = StoreWriter(place, "train", columns=2, vocab=60_000)
    numbers = [first + row for row in range(rows)]
    writer.add([[[number] * (row % size + 1) for row, number in enumerate(numbers)] for size in (5, 3)])
    writer.close()
    return Store(place, "train", columns=2, vocab=60_000)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    place = tmp_path_factory.mktemp("stores")
    stores = [store(place / "a", 4999, first=0), store(place / "b", 211, first=10_000)]
    return Mixed([*stores, stores[1]], [(0, 1), (0, 1), (1, 0)], shares([4999, 211, 211], [None] * 3, 5.0))


@given(size=st.integers(1, 97), start=st.integers(0, 300), count=st.integers(0, 300), seed=st.integers(0, 9))
def test_a_sequence_holds_every_row_once_per_pass_wherever_it_is_cut(size, start, count, seed):
    cut = [row for rows in passes(size, start, start + count, seed=(seed, 0)) for row in rows.tolist()]
    whole = [row for rows in passes(size, 0, start + count, seed=(seed, 0)) for row in rows.tolist()]
    assert cut == whole[start:] and len(whole) == start + count
    for turn in range(len(whole) // size):
        assert sorted(whole[turn * size : (turn + 1) * size]) == list(range(size))


def test_passes_of_several_blocks_hold_every_row_and_differ():
    size = 2 * batches.BLOCK + 17
    first, second = (np.concatenate(list(passes(size, turn * size, (turn + 1) * size, seed=(1, 0)))) for turn in (0, 1))
    assert sorted(first) == sorted(second) == list(range(size)) and first.tolist() != second.tolist()


def test_rows_and_lengths_are_those_of_the_stores_with_columns_in_their_order(mixed):
    rows = np.array([4998, 4999, 5209, 5210, 5420])
    assert mixed.owners(rows).tolist() == [0, 1, 1, 2, 2]
    assert [row.tolist() for row in mixed.rows(0, rows)] == [
        [4998] * 4, [10_000], [10_210], [10_000], [10_210]
    ]  # fmt: skip
    assert [len(row) for row in mixed.rows(1, rows)] == [1, 1, 1, 1, 1]
    everything = np.arange(len(mixed))
    for column in (0, 1):
        assert mixed.lengths(column).tolist() == [len(row) for row in mixed.rows(column, everything)]
        assert mixed.lengths(column, 4990, 5300).tolist() == mixed.lengths(column).tolist()[4990:5300]


def test_an_epoch_has_the_shares_and_depends_on_seed_and_number_alone(mixed):
    def rows(number, seed=1):
        return [batch.tolist() for batch in batches.epoch(mixed, budget=512, seed=seed, number=number)]

    first = rows(0)
    assert first == rows(0) and first != rows(1) and first != rows(0, seed=2)
    drawn = np.bincount(mixed.owners(np.concatenate(first)), minlength=3)
    assert drawn.sum() == pytest.approx(len(mixed), abs=3)
    assert drawn / len(mixed) == pytest.approx(mixed.shares, abs=1e-3)
    # Those drawn more often than once come again only after all others have come.
    counts = np.bincount(np.concatenate(first), minlength=len(mixed))[4999:]
    assert counts.max() - counts.min() == 1 and counts.min() > 1
    # Of the larger part the next epochs bring the rest.
    seen, number = set(), 0
    while len(seen) < 4999:
        fresh = {row for batch in rows(number) for row in batch if row < 4999}
        assert len(seen | fresh) == min(4999, len(seen) + len(fresh))
        seen, number = seen | fresh, number + 1


@settings(deadline=None, max_examples=20)
@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=4), number=st.integers(0, 5))
def test_by_size_every_epoch_holds_every_row_once(tmp_path_factory, sizes, number):
    place = tmp_path_factory.mktemp("some")
    stores = [store(place / str(each), size, first=each) for each, size in enumerate(sizes)]
    found = Mixed(stores, [(0, 1)] * len(sizes), shares(sizes, [None] * len(sizes), 1.0))
    rows = np.concatenate(list(batches.epoch(found, budget=64, seed=3, number=number)))
    assert sorted(rows.tolist()) == list(range(sum(sizes)))


def test_batches_keep_to_the_budget_with_language_tokens(mixed):
    tagged = Mixed(mixed.stores, mixed.columns, mixed.shares, extra=(1, 1))
    for batch in batches.epoch(tagged, budget=97, seed=1, number=0):
        longest = max(len(row) for column in (0, 1) for row in tagged.rows(column, batch))
        assert len(batch) * (longest + 2) <= 97
    assert len(batches.longest(tagged, budget=97)) == 97 // 7


def test_shares():
    assert shares([300, 100], [None, None], 1.0) == pytest.approx([0.75, 0.25])
    assert shares([800, 100], [None, None], 3.0) == pytest.approx([2 / 3, 1 / 3])
    assert shares([800, 100], [None, None], 1e9) == pytest.approx([0.5, 0.5])
    assert shares([800, 100], [1.0, 4.0], 1.0) == pytest.approx([0.2, 0.8])


def test_names():
    def named(*corpora):
        return names_of([parse(CorpusConfig, one) for one in corpora])

    assert named({"file": "a/news.tsv.gz", "prefix": "summarize: "}) == ["summarize"]
    assert named({"file": "news.tsv.gz"}, {"file": "x.tsv", "name": "mine"}) == ["news", "mine"]
    english = {"source": "en", "target": "de"}
    assert named({"file": "a.tsv", **english}, {"file": "b.tsv", **english}) == ["en-de.a", "en-de.b"]
    both = [parse(CorpusConfig, {"file": "a.tsv", **english, "both": True})]
    assert [(name, str(direction)) for name, _, direction in part_names(both)] == [
        ("en-de", "en-de"),
        ("de-en", "de-en"),
    ]
    with pytest.raises(ValueError, match="two corpora are called 'a.a'; give each a name of its own"):
        named({"file": "a.tsv"}, {"file": "b/a.tsv"})


FAULTS = [
    ([{"file": "a.tsv", "weight": 0}], "data.corpora.0.weight: input should be greater than 0, not 0"),
    ([{"file": "a.tsv", "weight": -1}], "data.corpora.0.weight: input should be greater than 0, not -1"),
    ([{"file": "a.tsv", "weight": 2}, {"file": "b.tsv"}], "b has no weight, but others do"),
    ([{"file": "a.tsv", "source": "en"}], "give both source and target, or neither"),
    ([{"file": "a.tsv", "source": "en", "target": "de"}, {"file": "b.tsv"}], "b has no languages, but others do"),
    ([{"file": "a.tsv", "both": True}], "both=true needs the languages"),
    ([{"file": "a.tsv", "source": "e", "target": "de"}], "'e' is not a language code, such as en or pt-BR"),
    ([{"file": "a.tsv", "metric": "blue"}], "metric: input should be 'bleu', 'chrf'"),
    ([{"file": "a.tsv", "prefx": "x"}], "unknown key 'prefx'; did you mean 'prefix'?"),
    ([{"file": []}], "data.corpora.0.file"),
    (["a.tsv"], "each corpus under data is a set of keys, such as {file: pairs.tsv}, not 'a.tsv'"),
]  # fmt: skip


@pytest.mark.parametrize(("corpora", "message"), FAULTS)
def test_what_a_recipe_may_not_say(corpora, message):
    with pytest.raises(ValueError) as caught:
        parse_recipe(with_corpora({"data": corpora}, Path()))
    assert message in str(caught.value)


def test_weights_and_a_temperature_contradict_each_other():
    with pytest.raises(ValueError, match="weights already are the shares; leave out temperature or the weights"):
        parse(DataConfig, {"corpora": [{"file": "a.tsv", "weight": 1}], "temperature": 2})


def test_paths_are_relative_to_the_recipe_and_both_forms_say_the_same(tmp_path):
    (tmp_path / "short.yaml").write_text("data: [{file: a.tsv, valid: [b.tsv]}]", encoding="utf-8")
    (tmp_path / "long.yaml").write_text("data: {corpora: [{file: a.tsv, valid: [b.tsv]}]}", encoding="utf-8")
    short, long = (read_recipe(str(tmp_path / f"{name}.yaml")).data for name in ("short", "long"))
    assert short == long and short.corpora[0].file == (str(tmp_path / "a.tsv"),)
    assert short.corpora[0].valid == (str(tmp_path / "b.tsv"),)


def test_a_metric_that_selects_the_model_must_be_one_of_a_corpus():
    data = with_corpora({"data": [{"file": "a.tsv", "metric": "rouge"}]}, Path())
    assert parse_recipe({**data, "training": {"metric": "rouge[a]"}}).training.metric == "rouge[a]"
    for metric, message in (
        ("bleu[a]", "has no metric 'bleu[a]'"),
        ("rouge", "has no metric 'rouge'"),
    ):
        with pytest.raises(ValueError) as caught:
            parse_recipe({**data, "training": {"metric": metric}})
        assert message in str(caught.value)


def test_tasks_that_look_the_same_are_noticed():
    def warned(*corpora):
        return confusable([parse(CorpusConfig, one) for one in corpora])

    assert not warned({"file": "a.tsv"}, {"file": "b.tsv"})  # two corpora of one task
    assert not warned({"file": "a.tsv", "prefix": "a: "}, {"file": "b.tsv", "metric": "rouge"})
    (found,) = warned({"file": "a.tsv"}, {"file": "b.tsv", "metric": "rouge"})
    assert found.startswith("the model cannot tell a and b apart")


def mixture(place, *entries, cache=None, notify=lambda message: None, **data):
    corpora = [parse(CorpusConfig, {**one, "file": str(place / one["file"])}) for one in entries]
    config = parse(DataConfig, {"corpora": corpora, **data})
    return prepare_mixture(open_mixture(corpora), config, CHARACTERS, cache=cache or place / "cache", notify=notify)


def test_sources_that_one_corpus_holds_out_are_in_no_training_set(tmp_path):
    pairs(tmp_path / "a.tsv", 211)
    pairs(tmp_path / "b.tsv", 211, change=str.upper)  # the same sources
    pairs(tmp_path / "c.tsv", 997, seed=3)
    found = mixture(tmp_path, {"file": "a.tsv"}, {"file": "b.tsv"}, {"file": "c.tsv"})
    held, trained = set(), set()
    tokenizer = found.tokenizers[0]
    for part in found.parts:
        held |= {row[0] for split in ("valid", "test") for row in part.texts(split)}
        rows = part.prepared.store("train")
        trained |= set(tokenizer.decode(rows.rows(0, np.arange(len(rows)))))
    assert held and not held & trained


def test_weights_are_not_in_the_cache_key_but_prefixes_are(tmp_path):
    pairs(tmp_path / "a.tsv", 61)
    pairs(tmp_path / "b.tsv", 61, seed=1)

    def folders(*entries):
        return [part.prepared.folder.name for part in mixture(tmp_path, *entries, cache=tmp_path / "c").parts]

    plain = folders({"file": "a.tsv", "name": "x"}, {"file": "b.tsv"})
    assert plain == folders({"file": "a.tsv", "name": "y"}, {"file": "b.tsv"})
    prefixed = folders({"file": "a.tsv", "prefix": "a: "}, {"file": "b.tsv"})
    assert prefixed[0] != plain[0]


def test_the_tokenizer_sees_the_mixture_in_its_shares_and_has_the_languages(tmp_path, monkeypatch):
    (tmp_path / "a.tsv").write_text("".join(f"aa{n}\taa{n}\n" for n in range(90)), encoding="utf-8")
    (tmp_path / "b.tsv").write_text("".join(f"bb{n}\tbb{n}\n" for n in range(30)), encoding="utf-8")
    seen = []
    from heedful.data import mixture as module

    real = module.train_tokenizer
    monkeypatch.setattr(
        module, "train_tokenizer", lambda texts, *rest, **more: real(seen.extend(texts) or seen, *rest, **more)
    )
    found = mixture(tmp_path, {"file": "a.tsv", "source": "en", "target": "de", "weight": 1},
                    {"file": "b.tsv", "source": "en", "target": "fr", "weight": 1})  # fmt: skip
    first = sum(text.startswith("aa") for text in seen)
    assert 0.4 < first / len(seen) < 0.6
    assert all(found.tokenizers[0].has(language_token(code)) for code in ("en", "de", "fr"))


def test_errors_name_the_corpus(tmp_path):
    pairs(tmp_path / "a.tsv", 31)
    with gzip.open(tmp_path / "b.tsv.gz", "wt") as file:
        file.write("x\ty\tz\n" * 31)
    (tmp_path / "c.jsonl").write_text(json.dumps({"a": 1}) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"corpus none: there is no file .*none\.tsv"):
        mixture(tmp_path, {"file": "a.tsv"}, {"file": "none.tsv"})
    with pytest.raises(ValueError, match=r"different columns: a\.tsv has 2 columns, b\.tsv\.gz has 3 columns; name"):
        mixture(tmp_path, {"file": "a.tsv"}, {"file": "b.tsv.gz"})
    with pytest.raises(ValueError, match=r"corpus c: c\.jsonl: no usable line"):
        mixture(tmp_path, {"file": "a.tsv"}, {"file": "c.jsonl"})
