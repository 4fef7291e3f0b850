"""Models that read, behind the server: predictions, embeddings, reranking, and what is refused."""

import base64
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from openai import BadRequestError, NotFoundError, OpenAI

import heedful
from heedful.config import parse
from heedful.serving.context import Options
from heedful.serving.models import EngineSettings
from heedful.serving.predicting import Predictor
from heedful.tasks import TaskConfig
from tests.serving.readers import classifier, of_pairs, regressor, stand_in, stand_ins
from tests.serving.running import running, small_models

TEXTS = ["this is a great day", "an awful film", "the book was very dull", "lovely"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readers")
    with pytest.MonkeyPatch.context() as patch, stand_ins():
        patch.setenv("HEEDFUL_CACHE", str(folder / "cache"))
        found = [classifier(folder), of_pairs(folder, "pairs"), regressor(folder)]
        yield [*found, *(stand_in(folder, gives) for gives in ("vectors", "tags", "answer", "masks", "labels"))]


@pytest.fixture(scope="module")
def server(folders):
    with running(folders) as (url, _):
        yield url


@pytest.fixture(scope="module")
def vectors(folders):
    return heedful.load(next(folder for folder in folders if folder.name == "vectors"))


def predict(server, **fields):
    return httpx.post(f"{server}/api/predict", json=fields, timeout=30)


def test_predictions_are_those_of_the_model_in_hand(server, folders):
    found = predict(server, inputs=TEXTS).json()
    assert (found["model"], found["task"]) == ("mood", "classification")
    for shown, wanted in zip(found["predictions"], heedful.load(folders[0]).predict(TEXTS), strict=True):
        assert shown["label"] == wanted["label"] and list(shown["scores"]) == list(wanted["scores"])
        assert shown["score"] == pytest.approx(wanted["score"], abs=1e-5)
    assert [one["label"] for one in found["predictions"]] == ["pos", "neg", "neg", "pos"]
    (one,) = predict(server, inputs="a great film", model="mood").json()["predictions"]
    assert one["label"] == "pos"


@pytest.mark.parametrize(
    ("model", "text", "keys"),
    [
        ("pairs", "a great day\tan awful day", {"text", "label", "score", "scores"}),
        ("rating", "a great day", {"text", "score"}),
        ("vectors", "abc", {"text", "embedding"}),
        ("tags", "Ann came in 1999", {"text", "words", "tags", "entities"}),
        ("answer", "who?\tit was Napoleon", {"text", "answer", "start", "end", "score", "alternatives"}),
        ("masks", "a <mask>", {"text", "masks"}),
        ("labels", "hey!", {"text", "labels", "scores"}),
    ],
)
def test_every_task_answers_in_its_own_shape(server, model, text, keys):
    found = predict(server, inputs=[text], model=model).json()
    assert set(found["predictions"][0]) == keys


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"inputs": []}, 400, "inputs is an empty list; send at least one text"),
        ({"inputs": ["a", " "]}, 400, "input 2 has an empty text; give one to read"),
        ({"inputs": "a\t", "model": "pairs"}, 400, "input 1 has an empty text; give one to read"),
        ({"inputs": ["a\tb", "a"], "model": "pairs"}, 400,
         "input 2 has 1 column; give 2 texts (first, second), separated by a tab"),
        ({"inputs": "a\tb\tc", "model": "answer"}, 400,
         "input 1 has 3 columns; give 2 texts (question, context), separated by a tab"),
        ({"inputs": ["a\tb", "a\tnothing"], "model": "answer"}, 400, "input 2: the context holds no answer"),
        ({"inputs": "a", "model": "nowhere"}, 404, "there is no model 'nowhere'"),
        ({"inputs": "a" * 20_001}, 400, "20001 characters exceed the limit of 20000; send less at a time"),
        ({"inputs": ["a"] * 257}, 400, "257 texts exceed the limit of 256; send fewer at a time"),
        ({"inputs": "a", "beam": 4}, 400, "Invalid request: beam: Extra inputs are not permitted"),
    ],
)  # fmt: skip
def test_requests_that_are_wrong(server, fields, status, message):
    answer = predict(server, **fields)
    assert (answer.status_code, answer.json()) == (status, {"error": message})


def test_one_bad_text_among_those_of_others_harms_only_itself(server):
    with ThreadPoolExecutor(8) as crowd:
        asked = ["q\tnothing at all" if place % 4 == 0 else f"q\tword {'x' * place}" for place in range(24)]
        found = list(crowd.map(lambda line: predict(server, inputs=line, model="answer"), asked))
    for place, answer in enumerate(found):
        assert answer.status_code == (400 if place % 4 == 0 else 200)
        assert place % 4 == 0 or answer.json()["predictions"][0]["answer"] == max("word", "x" * place, key=len)


def test_texts_that_arrive_together_are_read_together_and_counted(folders):
    with running(folders[:1], settings=EngineSettings(streams=1, wait=0.2)) as (url, context):
        sizes = []
        model = context.models.all["mood"].predictor.use
        real, model.predict = model.predict, lambda texts: sizes.append(len(texts)) or real(texts)
        with ThreadPoolExecutor(6) as crowd:
            list(crowd.map(lambda text: predict(url, inputs=text), TEXTS + TEXTS[:2]))
        text = httpx.get(f"{url}/metrics").text
    assert sum(sizes) == 6 and max(sizes) > 1
    assert 'heedful_batch_sentences_sum{model="mood"} 6.0' in text
    assert 'heedful_requests_total{path="/api/predict",status="200"} 6.0' in text


def test_models_are_listed_everywhere(server):
    found = {one["name"]: one for one in httpx.get(f"{server}/api/models").json()}
    assert {one["kind"] for one in found.values()} == {"reader"}
    assert (found["mood"]["task"], found["mood"]["inputs"]) == ("classification", ["text"])
    assert found["pairs"]["inputs"] == ["first", "second"] and found["pairs"]["example"].count("\t") == 1
    assert found["vectors"]["inputs"] == ["text"] and found["vectors"]["embeds"]
    assert found["mood"]["example"]
    client = OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0)
    assert {one.id for one in client.models.list()} == set(found)
    assert client.models.retrieve("mood").owned_by == "heedful"
    with pytest.raises(NotFoundError, match="there is no model 'nowhere'"):
        client.models.retrieve("nowhere")
    assert httpx.get(f"{server}/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("gives", "name", "rows", "example"),
    [
        ("answer", "test.jsonl", ['{"question": "who?", "context": " "}', "odd", "3",
                                  '{"question": "who?", "context": "me", "answers": []}'], "who?\tme"),
        ("answer", "test.tsv", ["question\tcontext\tanswer", "", "who?\tme\t0 2"], "who?\tme"),
        ("tags", "test.tsv", ["text\ttags", "x" * 1001 + "\tO", "a b\tO O"], "a b"),
        ("vectors", "test.tsv", ["a b\tc d"], "a b"),
        ("masks", "other.txt", ["a"], None),
    ],
)  # fmt: skip
def test_the_example_is_a_row_that_was_held_out(server, tmp_path, gives, name, rows, example):
    folder = stand_in(tmp_path, gives)
    (folder / name).write_text("\n".join(rows) + "\n")
    config = parse(TaskConfig, {"kind": "stand_in", "gives": gives})
    assert Predictor(config.open(folder), config).example(folder) == example


def test_endpoints_of_other_models_say_that_there_is_none(server):
    for path, body, status, message in [
        ("/translate", {"q": "a", "source": "en", "target": "de"}, 400, "en is not supported"),
        ("/api/translate", {"text": "a"}, 404, "no translator is loaded"),
        ("/api/translate", {"text": "a", "model": "mood"}, 404, "there is no translator 'mood'"),
        ("/api/next", {"text": "a"}, 404, "no language model is loaded"),
    ]:
        answer = httpx.post(f"{server}{path}", json=body)
        assert (answer.status_code, answer.json()) == (status, {"error": message})
    answer = httpx.post(f"{server}/v1/completions", json={"model": "mood", "prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "there is no language model 'mood'")
    assert httpx.post(f"{server}/detect", json={"q": "a"}).status_code == 200
    assert httpx.get(f"{server}/languages").json() == []


def test_readers_and_translators_are_served_side_by_side(folders, tmp_path):
    with running([*small_models(tmp_path), *folders[:1]]) as (url, _):
        assert [one["kind"] for one in httpx.get(f"{url}/api/models").json()] == [
            "translator", "language model", "reader",
        ]  # fmt: skip
        assert predict(url, inputs="a great day").json()["model"] == "mood"
        refused = predict(url, inputs="a great day", model="en-de")
        assert refused.status_code == 400 and "'en-de' is not a model that reads" in refused.json()["error"]
        assert httpx.post(f"{url}/api/translate", json={"text": "a b"}, timeout=30).json()["model"] == "en-de"
        answer = httpx.post(f"{url}/v1/embeddings", json={"input": "a"})
        assert answer.status_code == 404 and "embeddings" in answer.json()["error"]["message"]


def test_keys_and_time_are_limited_as_for_others(folders):
    with running(folders[:1], keys=("secret",), options=Options(timeout=0.3)) as (url, context):
        for path, body in (("/api/predict", {"inputs": "a"}), ("/v1/embeddings", {"input": "a"}),
                           ("/v1/rerank", {"query": "a", "documents": ["b"]})):  # fmt: skip
            assert httpx.post(url + path, json=body).status_code == 403
        model = context.models.all["mood"].predictor.use
        open_ = threading.Event()
        model.predict = lambda texts: open_.wait(10) and [{}] * len(texts)
        answer = httpx.post(
            f"{url}/api/predict", json={"inputs": "a"}, headers={"Authorization": "Bearer secret"}, timeout=30
        )
        open_.set()
        assert (answer.status_code, answer.json()["error"]) == (503, "this took too long; send less at a time")


# --- embeddings


@pytest.fixture
def client(server):
    return OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0)


def test_openais_client_gets_embeddings(client, vectors):
    """It asks for base64 by itself, and decodes it."""
    found = client.embeddings.create(model="vectors", input=TEXTS)
    assert [one.index for one in found.data] == [0, 1, 2, 3]
    np.testing.assert_array_equal(np.array([one.embedding for one in found.data], np.float32), vectors.embed(TEXTS))
    assert found.usage.prompt_tokens == found.usage.total_tokens == sum(len(text.split()) for text in TEXTS)
    plain = client.embeddings.create(model="vectors", input="a bc", encoding_format="float")
    np.testing.assert_allclose(plain.data[0].embedding, vectors.embed(["a bc"])[0], rtol=1e-6)


def test_base64_is_little_endian_float32(server, vectors):
    body = {"input": "abc", "encoding_format": "base64"}
    (one,) = httpx.post(f"{server}/v1/embeddings", json=body).json()["data"]
    found = np.frombuffer(base64.b64decode(one["embedding"]), "<f4")
    np.testing.assert_array_equal(found, vectors.embed(["abc"])[0])


def test_fewer_dimensions_are_the_first_ones_at_length_one(client, vectors):
    found = client.embeddings.create(model="vectors", input=["abz"], dimensions=7)
    wanted = vectors.embed(["abz"])[0][:7]
    np.testing.assert_allclose(found.data[0].embedding, wanted / np.linalg.norm(wanted), rtol=1e-6)
    with pytest.raises(BadRequestError, match="dimensions 27 is more than this model has; choose at most 26"):
        client.embeddings.create(model="vectors", input=["abz"], dimensions=27)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"input": [1, 2, 3]}, "input holds token ids, which depend on a model's vocabulary; send the text"),
        ({"input": [[1, 2], [3]]}, "input holds token ids"),
        ({"input": []}, "input is an empty list; send at least one text"),
        ({"input": ["a", ""]}, "input 2 has an empty text; give one to read"),
        ({"input": "a", "model": "mood"}, "'mood' gives no embeddings; its task is another"),
        ({"input": ["a"] * 300}, "300 texts exceed the limit of 256"),
        ({"input": ["a", "b" * 1001]}, "1 of 2 texts are longer than this model reads; split them"),
    ],
)
def test_embeddings_that_are_wrong(client, asked, message):
    with pytest.raises(BadRequestError, match=message):
        client.embeddings.create(**{"model": "vectors", **asked})
    with pytest.raises(NotFoundError, match="there is no model 'nowhere'"):
        client.embeddings.create(model="nowhere", input="a")


# --- reranking


def rerank(server, **fields):
    return httpx.post(f"{server}/v1/rerank", json=fields, timeout=30)


def test_documents_are_ranked_by_the_cosine_of_their_vectors(server, vectors):
    documents = ["zzz", "abd", {"text": "abc"}, "ab"]
    found = rerank(server, model="vectors", query="abc", documents=documents, return_documents=True).json()
    assert [one["index"] for one in found["results"]] == [2, 3, 1, 0]
    assert found["results"][0]["document"] == {"text": "abc"}
    query, *others = vectors.embed(["abc", "zzz", "abd", "abc", "ab"])
    for one in found["results"]:
        assert one["relevance_score"] == pytest.approx(float(others[one["index"]] @ query), abs=1e-6)
    assert found["usage"]["total_tokens"] == 5
    few = rerank(server, model="vectors", query="abc", documents=documents, top_n=2).json()["results"]
    assert [sorted(one) for one in few] == [["index", "relevance_score"]] * 2
    long = rerank(server, model="vectors", query="abc", documents=["a" * 1001, "b"]).json()["warnings"]
    assert long == ["1 of 2 documents are longer than this model reads; only the beginning of each counts"]


def test_a_classifier_of_pairs_ranks_by_the_label_that_says_so(server, folders):
    documents = ["an awful day", "a fine day\twith a tab", "lovely"]
    lines = ["great\t" + text.replace("\t", " ") for text in documents]
    wanted = [one["scores"]["yes"] for one in heedful.load(folders[1]).predict(lines)]
    for label, sign in (("", 1), ("yes", 1), ("no", -1)):
        found = rerank(server, model="pairs", query="great", documents=documents, label=label).json()["results"]
        assert [one["index"] for one in found] == sorted(range(3), key=lambda place: -sign * wanted[place])
    refused = rerank(server, model="pairs", query="great", documents=documents, label="maybe")
    assert refused.json()["error"]["message"] == "pairs has no label 'maybe'; it has no, yes"


def test_a_label_is_never_guessed(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    with running([of_pairs(tmp_path, "odd", ("left", "right"))]) as (url, _):
        answer = rerank(url, query="great", documents=["a"])
        message = "which label of odd means relevant? Send it as label, one of left, right"
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"query": "a", "documents": []}, 400, "documents is an empty list; send at least one"),
        ({"query": " ", "documents": ["a"]}, 400, "query is empty; give a text"),
        ({"query": "a", "documents": ["a", ""]}, 400, "document 1 is empty; give a text"),
        ({"query": "a", "documents": ["a"], "model": "mood"}, 400,
         "'mood' cannot rank: it gives neither embeddings nor a score for a pair of texts"),
        ({"query": "a", "documents": ["a"], "model": "nowhere"}, 404, "there is no model 'nowhere'"),
        ({"query": "a", "documents": ["a"], "model": "vectors", "label": "x"}, 400,
         "vectors has no labels; leave out label"),
        ({"query": "a", "documents": ["a"] * 256}, 400, "257 texts exceed the limit of 256; send fewer at a time"),
    ],
)  # fmt: skip
def test_rankings_that_are_wrong(server, fields, status, message):
    answer = rerank(server, **fields)
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, message)


# --- what is inside


def look(server, **fields):
    return httpx.post(f"{server}/api/inspect", json=fields, timeout=30)


def test_which_words_decided_is_that_of_the_model_in_hand(server, folders):
    text = "this film was great that day"
    found, wanted = look(server, text=text).json(), heedful.inspect(folders[0], text)
    assert found["prediction"]["label"] == "pos" and found["tokens"] == wanted["inspected"]["tokens"]
    for shown, other in zip(found["decisive"]["words"], wanted["inspected"]["decisive"]["words"], strict=True):
        assert shown["text"] == other["text"]
        assert (shown["gradient"], shown["occlusion"]) == pytest.approx(
            (other["gradient"], other["occlusion"]), abs=1e-4
        )
    assert max(found["decisive"]["words"], key=lambda one: one["gradient"])["text"] == "great"
    other = look(server, text=text, model="mood", label="neg").json()["decisive"]
    assert other["target"] == "neg" and other["value"] < 0.5


def test_nobody_is_harmed_by_those_who_look_inside(server, folders):
    """The hooks are in the model that others use meanwhile."""
    wanted = [one["score"] for one in heedful.load(folders[0]).predict(TEXTS)]
    with ThreadPoolExecutor(8) as crowd:
        looks = [crowd.submit(look, server, text=text, model="mood") for text in TEXTS * 3]
        reads = [crowd.submit(predict, server, inputs=TEXTS) for _ in range(20)]
        for one in reads:
            scores = [answer["score"] for answer in one.result().json()["predictions"]]
            assert scores == pytest.approx(wanted, abs=1e-5)
        assert {one.result().status_code for one in looks} == {200}


def test_the_work_of_looking_inside_is_bounded(server):
    found = look(server, text="a film " * 20, model="mood").json()["decisive"]["words"]
    assert len(found) == 40 and sum(word["occlusion"] is not None for word in found) == 32


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": " ", "model": "mood"}, "input 1 has an empty text; give one to read"),
        ({"text": "a", "model": "pairs"}, "input 1 has 1 column; give 2 texts (first, second), separated by a tab"),
        ({"text": "a film " * 200, "model": "mood"}, "too long to inspect: "),
        ({"text": "a", "model": "mood", "label": "x"}, "there is no label 'x'; known: neg, pos"),
        ({"text": "a", "model": "mood", "avoid": ["x"]},
         "target_prefix, constraints and avoid are for translators; leave them out"),
        ({"text": "a", "model": "tags"},
         "'tags': models of the task stand_in cannot be inspected yet; use /api/predict"),
    ],
)  # fmt: skip
def test_what_cannot_be_looked_into(server, fields, message):
    answer = look(server, **fields)
    assert answer.status_code == 400 and answer.json()["error"].startswith(message)


def test_no_request_that_the_schema_allows_breaks_the_server(server):
    """Schemathesis makes them up."""
    schemathesis = pytest.importorskip("schemathesis", reason="no schemathesis here")
    asked = 0
    for operation in schemathesis.openapi.from_url(f"{server}/openapi.json").get_all_operations():
        if operation.ok().path not in ("/api/predict", "/api/inspect", "/v1/embeddings", "/v1/rerank"):
            continue

        @settings(
            max_examples=15,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.ok().as_strategy())
        def ask(case):
            answer = case.call(timeout=60)
            assert answer.status_code < 500, (case.as_curl_command(), answer.text)

        ask()
        asked += 1
    assert asked == 4
