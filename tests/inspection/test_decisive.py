"""Which words decided: exact where the model is linear, and the word that decides on a model that has learned it."""

import json
import sys

import pytest
import torch
from torch import nn

import heedful
from heedful.commands.main import main
from heedful.data.columns import Column
from heedful.inspection.decisive import contributions, decisive, gradients, outputs, split, target_of
from heedful.inspection.reading import inspect, inspected
from heedful.model.architecture import Reader
from heedful.model.input.tokens import Tokens
from heedful.tasks._labelled import Opened
from heedful.tasks._reading import windows
from heedful.tasks.classification import SPECIALS, Classifier
from heedful.text.tokenizer import TokenizerConfig, train_tokenizer
from tests.serving.readers import classifier, of_pairs, regressor
from tests.tasks.labelled import bert

WORDS = ["the", "film", "was", "great", "but", "long", "and", "awful", "in", "parts", "好", "电影"]


class Linear(Reader):
    """logits = V sum_i e_i + b, for texts of any length."""

    def __init__(self, vocab: int, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = Tokens(vocab, width, scale=True)
        self.output = nn.Linear(width, classes)

    def forward(self, source, *, token_types=None, valid=None):
        states, _ = self.embedding(source, valid=valid)
        return states * valid[..., None]

    def predict(self, head, states):
        return self.output(states.sum(1))


@pytest.fixture(scope="module")
def tokenizer():
    texts = [" ".join(WORDS)] * 20
    return train_tokenizer(texts, TokenizerConfig(kind="bpe"), vocab=300, extra=SPECIALS)


def linear(tokenizer, *, length=64, texts=("text",), several=False):
    torch.manual_seed(5)
    model = Linear(tokenizer.vocab, 7, 3).eval()
    columns = (*map(Column, texts), Column("label", "label"))
    held = Opened(model, tokenizer, columns, (), length, {"label": ["a", "b", "c"]})
    return Classifier(held, several=several), model


@pytest.mark.parametrize("label", ["", "a", "b", "c"])
def test_of_a_linear_model_the_gradient_view_is_the_exact_contribution(tokenizer, label):
    use, model = linear(tokenizer)
    found = decisive(use, ["the film was great but awful 好电影"], label=label)
    assert [word.text for word in found.words] == ["the", "film", "was", "great", "but", "awful", "好", "电", "影"]
    rows, words = split(["the film was great but awful 好电影"], tokenizer)
    assert rows[0] == tokenizer.encode(["the film was great but awful 好电影"])[0]
    index = "abc".index(found.target)
    with torch.no_grad():
        each = model.embedding.embed(torch.tensor(rows[0])) @ model.output.weight[index]
    for shown, word in zip(found.words, words, strict=True):
        assert shown.gradient == pytest.approx(float(each[list(word.tokens)].sum()), rel=1e-4, abs=1e-6)
    logit = float(outputs(use.opened, [rows])[0, index])
    whole = sum(word.gradient for word in found.words) + found.special_tokens + model.output.bias[index].item()
    assert whole == pytest.approx(logit, rel=1e-4)


def test_a_long_text_counts_in_every_window_it_is_in(tokenizer):
    """The mean over windows is linear too, so nothing is lost and nothing counts twice."""
    text = " ".join(WORDS * 4)
    use, model = linear(tokenizer, length=16)
    rows, _ = split([text], tokenizer)
    assert len(windows([rows], tokenizer, length=16).tokens) > 2
    target = target_of(use, torch.zeros(3), "b")
    each, special = gradients(use.opened, rows, target)
    logit = float(outputs(use.opened, [rows])[0, 1])
    assert sum(each) + special + model.output.bias[1].item() == pytest.approx(logit, rel=1e-4)


def test_both_texts_of_a_pair_are_weighed(tokenizer):
    use, model = linear(tokenizer, texts=("first", "second"))
    found = decisive(use, ["great film", "awful parts"], label="c")
    assert [(word.text, word.input) for word in found.words] == [("great", 0), ("film", 0), ("awful", 1), ("parts", 1)]
    first, second = (tokenizer.encode([text])[0] for text in ("great film", "awful parts"))
    with torch.no_grad():
        each = model.embedding.embed(torch.tensor([*first, *second])) @ model.output.weight[2]
    assert sum(word.gradient for word in found.words) == pytest.approx(float(each.sum()), rel=1e-4)


def test_occlusion_is_the_drop_in_probability(tokenizer):
    for several in (False, True):
        use, _ = linear(tokenizer, several=several)
        found = decisive(use, ["great film"], label="a")
        assert found.replacement == "<mask>"
        rows, words = split(["great film"], tokenizer)
        masked = [tokenizer.mask if place in words[0].tokens else token for place, token in enumerate(rows[0])]
        logits = outputs(use.opened, [rows, (masked,)])
        before, after = (torch.sigmoid(logits) if several else torch.softmax(logits, -1))[:, 0].tolist()
        assert found.value == pytest.approx(before) and found.words[0].occlusion == pytest.approx(before - after)


def test_the_work_is_bounded_and_the_rest_is_left_out(tokenizer):
    use, _ = linear(tokenizer)
    found = decisive(use, [" ".join(WORDS)], most=3)
    shown = sorted(found.words, key=lambda word: -abs(word.gradient))
    assert [word.occlusion is not None for word in shown] == [True] * 3 + [False] * (len(shown) - 3)
    with pytest.raises(ValueError, match=r"too long to inspect: \d+ tokens exceed the limit of 256"):
        inspected(use, ["the film " * 200])
    with pytest.raises(ValueError, match="there is no label 'd'; known: a, b, c"):
        decisive(use, ["great"], label="d")


def test_weights_get_no_gradient_and_the_hook_is_gone(tokenizer):
    use, model = linear(tokenizer)
    with torch.inference_mode():  # as in a caller that only reads
        gradients(use.opened, split(["great film"], tokenizer)[0], target_of(use, torch.zeros(3)))
    assert all(weight.grad is None for weight in model.parameters())
    assert not model.embedding._forward_hooks


def test_the_gradient_view_is_that_of_transformers(tokenizer, tmp_path):
    """For its own BERT with the same weights, given its word embeddings as input."""
    pytest.importorskip("transformers")
    for width, hidden, heads in ((22, 37, 2), (64, 128, 4)):
        theirs, ours = bert(
            tmp_path / str(width), "BertForSequenceClassification", vocab=tokenizer.vocab, num_labels=3, width=width,
            hidden=hidden, heads=heads,
        )  # fmt: skip
        texts = [tokenizer.encode([text])[0] for text in ("the film was great", "awful in parts", "great but long 好")]
        shown = windows([(text,) for text in texts], tokenizer, length=40)
        found = contributions(ours, shown, lambda logits: logits[:, 1].sum())
        vectors = theirs.bert.embeddings.word_embeddings(shown.tokens).detach().requires_grad_()
        given = {"attention_mask": shown.valid.long(), "token_type_ids": shown.types}
        (slope,) = torch.autograd.grad(theirs(inputs_embeds=vectors, **given).logits[:, 1].sum(), vectors)
        wanted = (slope * vectors).sum(-1).detach().double()
        torch.testing.assert_close(found[shown.valid], wanted[shown.valid], rtol=1e-3, atol=1e-4)


# --- trained models


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decisive")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEEDFUL_CACHE", str(folder / "cache"))
        classifier(folder)
        regressor(folder)
        of_pairs(folder, "pairs")
    return folder


TEXTS = [
    ("this film was great that day", "great"),
    ("the awful book is a film", "awful"),
    ("a day is very dull", "dull"),
]


@pytest.mark.parametrize(("text", "word"), TEXTS)
@pytest.mark.parametrize("name", ["mood", "rating"])
def test_the_word_that_decides_comes_first_in_both_views(trained, name, text, word):
    found = decisive(heedful.load(trained / name), [text])
    assert max(found.words, key=lambda one: abs(one.gradient)).text == word
    assert max(found.words, key=lambda one: abs(one.occlusion)).text == word


@pytest.mark.parametrize("quantize", ["", "int8"])
def test_what_is_explained_is_what_is_predicted(trained, quantize):
    model = heedful.load(trained / "mood", **({"quantize": quantize} if quantize else {}))
    found = inspect(model, " this film was great ")
    seen = found["inspected"]
    assert found["prediction"] == model.predict(["this film was great"])[0]
    assert seen["decisive"]["target"] == found["prediction"]["label"]
    assert seen["decisive"]["value"] == pytest.approx(found["prediction"]["score"], abs=1e-5)
    tokens = [one["text"] for one in seen["tokens"]]
    assert (tokens[0], tokens[-1]) == ("<cls>", "<sep>") and "".join(tokens[1:-1]) == "this film was great"
    weights = torch.tensor(seen["attention"]["encoder"]["weights"])
    assert weights.shape == (1, 2, len(tokens), len(tokens))
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:3]), atol=0.02, rtol=0)


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["heedful", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    said = capsys.readouterr()
    return caught.value.code or 0, said.out, said.err


def test_the_command_prints_the_words_and_writes_the_page(trained, tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.html"
    code, out, _ = run(monkeypatch, capsys, "inspect", trained / "mood", "this film was great", "--out", page)
    assert code == 0 and out.splitlines()[-1] == str(page)
    assert "pos" in out and "gradient" in out and "occlusion" in out
    rows = [line for line in out.splitlines() if any(word in line.split() for word in ("this", "film", "was", "great"))]
    assert "great" in rows[0] and len(rows) == 4  # the one that decided comes first
    assert '"decisive"' in page.read_text(encoding="utf-8")
    code, out, _ = run(monkeypatch, capsys, "inspect", trained / "mood", "this film was great", "--json")
    data = json.loads(out)
    assert set(data["inspected"]["decisive"]["words"][0]) == {"text", "input", "gradient", "occlusion"}
    code, out, _ = run(monkeypatch, capsys, "inspect", trained / "mood", "a great day", "--label", "neg", "--json")
    assert json.loads(out)["inspected"]["decisive"]["target"] == "neg"


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("mood", " ", [], "line 1 has an empty text; give one to read"),
        ("pairs", "only one", [], "line 1 has 1 columns; give 2 texts, separated by a tab"),
        ("mood", "great", ["--label", "so-so"], "there is no label 'so-so'; known: neg, pos"),
        ("rating", "great", ["--label", "5"], "a regressor has no labels, such as '5'; leave it out"),
        ("mood", "great", ["--target-prefix", "x"], "target_prefix is for translators; leave it out"),
    ],
)
def test_mistakes_are_one_line(trained, monkeypatch, capsys, name, text, options, message):
    code, _, error = run(monkeypatch, capsys, "inspect", trained / name, text, *options)
    assert code == 2 and message in error and "Traceback" not in error


def test_from_python_it_is_the_same(trained, tmp_path):
    seen = heedful.inspect(trained / "pairs", "a great day\tan awful day", out=tmp_path / "pair.html")
    assert seen["inputs"] == ["first", "second"]
    assert [word["input"] for word in seen["inspected"]["decisive"]["words"]] == [0, 0, 0, 1, 1, 1]
    assert "an awful day" in (tmp_path / "pair.html").read_text(encoding="utf-8")
