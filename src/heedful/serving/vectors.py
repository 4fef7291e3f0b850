"""OpenAI's API for embeddings, and the rerank API that Cohere and Jina share."""

import base64
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from heedful.serving.context import Context, clean
from heedful.serving.libretranslate import REFUSALS
from heedful.serving.limits import RefusedError, bearer
from heedful.serving.models import Predicting
from heedful.serving.predicting import lines_of

NO_MODEL: dict[int | str, dict[str, Any]] = {**REFUSALS, 404: {"description": "There is no such model."}}
# The labels that say of a pair of texts that they belong together.
RELEVANT = ("relevant", "1", "true", "yes", "positive", "pos", "match", "duplicate", "paraphrase", "same", "similar",
            "entailment", "equivalent", "answer")  # fmt: skip
Tokens = list[int]


class Embedded(BaseModel):
    """`input`: a text or a list of texts. `encoding_format`: numbers, or base64 of little-endian float32. `dimensions`:
    keep only the first so many and scale the vector to length 1, which suits models trained for it (Kusupati et al.
    2022). Unknown fields are ignored, as OpenAI's clients expect."""

    model_config = ConfigDict(extra="ignore")

    model: str = ""
    input: str | list[str] | Tokens | list[Tokens]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=1 << 16)] | None = None


class Document(BaseModel):
    model_config = ConfigDict(extra="ignore")

    text: str


class Reranked(BaseModel):
    """Sort documents by how relevant they are to a query. `top_n`: how many to return; by default all. `label`: for a
    classifier of pairs, the label whose probability is the relevance; by default the one that says so by its name."""

    model_config = ConfigDict(extra="ignore")

    model: str = ""
    query: str
    documents: list[str | Document]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = False
    label: str = ""


def routes(context: Context) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.post("/embeddings", responses=NO_MODEL, tags=["OpenAI"])
    async def embeddings(asked: Embedded, request: Request) -> dict[str, Any]:
        """A vector for each text."""
        context.keys.check(bearer(request.headers))
        texts = _texts(asked.input)
        context.check_size(texts)
        model = _embedding(context, asked.model)
        if long := model.predictor.count_truncated(texts):
            raise RefusedError(400, f"{long} of {len(texts)} texts are longer than this model reads; split them")
        vectors = _shortened(await _vectors(context, request, model, texts), asked.dimensions)
        read = sum(model.predictor.count(texts))
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": _encoded(vector, asked.encoding_format)}
                for index, vector in enumerate(vectors)
            ],
            "model": model.name,
            "usage": {"prompt_tokens": read, "total_tokens": read},
        }

    @router.post("/rerank", responses=NO_MODEL, tags=["Rerank"])
    async def rerank(asked: Reranked, request: Request) -> dict[str, Any]:
        """Documents, most relevant first: by the cosine of embeddings, or by a model of pairs of texts."""
        context.keys.check(bearer(request.headers))
        texts = [clean(one if isinstance(one, str) else one.text) for one in asked.documents]
        if not texts:
            raise RefusedError(400, "documents is an empty list; send at least one")
        query = clean(asked.query)
        context.check_size([query, *texts])
        for name, text in [("query", query), *((f"document {place}", text) for place, text in enumerate(texts))]:
            if not text.strip():
                raise RefusedError(400, f"{name} is empty; give a text")
        model = _ranking(context, asked.model)
        scores = await _relevance(context, request, model, query, texts, asked.label)
        order = sorted(range(len(texts)), key=lambda place: -scores[place])[: asked.top_n]
        found: list[dict[str, Any]] = [{"index": place, "relevance_score": scores[place]} for place in order]
        if asked.return_documents:
            found = [{**one, "document": {"text": texts[one["index"]]}} for one in found]
        read = sum(model.predictor.count([query, *texts]))
        long = model.predictor.count_truncated(texts)
        cut = f"{long} of {len(texts)} documents are longer than this model reads; only the beginning of each counts"
        return {
            "id": uuid.uuid4().hex,
            "model": model.name,
            "results": found,
            "usage": {"total_tokens": read},
            "warnings": [cut] if long else [],
        }

    return router


def _texts(given: str | list[str] | Tokens | list[Tokens]) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not texts:
        raise RefusedError(400, "input is an empty list; send at least one text")
    found = [clean(text) for text in texts if isinstance(text, str)]
    if len(found) < len(texts):
        raise RefusedError(400, "input holds token ids, which depend on a model's vocabulary; send the text")
    return found


async def _vectors(context: Context, request: Request, model: Predicting, texts: Sequence[str]) -> np.ndarray:
    """texts width"""
    return np.stack(await context.predict(request, model, lines_of(texts, vector=True)))


def _shortened(vectors: np.ndarray, size: int | None) -> np.ndarray:
    if size is None:
        return vectors
    if size > vectors.shape[1]:
        raise RefusedError(400, f"dimensions {size} is more than this model has; choose at most {vectors.shape[1]}")
    return _normalised(vectors[:, :size])


def _normalised(vectors: np.ndarray) -> np.ndarray:
    found: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return found


def _encoded(vector: np.ndarray, form: str) -> list[float] | str:
    if form == "float":
        numbers: list[float] = vector.tolist()
        return numbers
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


async def _relevance(
    context: Context, request: Request, model: Predicting, query: str, texts: Sequence[str], label: str
) -> list[float]:
    if label and (model.predictor.embeds or not hasattr(model.predictor.use, "labels")):
        raise RefusedError(400, f"{model.name} has no labels; leave out label")
    if model.predictor.embeds:
        vectors = _normalised(await _vectors(context, request, model, [query, *texts]))
        cosines: list[float] = (vectors[1:] @ vectors[0]).tolist()
        return cosines
    pairs = ["\t".join(" ".join(text.split("\t")) for text in (query, other)) for other in texts]
    found = await context.predict(request, model, lines_of(pairs))
    if "scores" not in found[0]:
        return [float(one["score"]) for one in found]
    chosen = _relevant_label(model.name, list(found[0]["scores"]), label)
    return [float(one["scores"][chosen]) for one in found]


def _relevant_label(name: str, labels: list[str], asked: str) -> str:
    """The label that means relevant: the one asked for, or the only one whose name says so."""
    if asked:
        if asked not in labels:
            raise RefusedError(400, f"{name} has no label {asked!r}; it has {', '.join(sorted(labels))}")
        return asked
    known = [label for label in labels if label.lower() in RELEVANT]
    if len(known) == 1:
        return known[0]
    raise RefusedError(
        400, f"which label of {name} means relevant? Send it as label, one of {', '.join(sorted(labels))}"
    )


def _embedding(context: Context, name: str) -> Predicting:
    for model in context.models.predicting:
        if model.predictor.embeds and name in ("", model.name):
            return model
    if name in context.models.all:
        raise RefusedError(400, f"{name!r} gives no embeddings; its task is another")
    raise RefusedError(404, f"there is no model {name!r}" if name else "no model that gives embeddings is loaded")


def _ranking(context: Context, name: str) -> Predicting:
    for model in context.models.predicting:
        if _ranks(model) and name in ("", model.name):
            return model
    if name in context.models.all:
        raise RefusedError(400, f"{name!r} cannot rank: it gives neither embeddings nor a score for a pair of texts")
    raise RefusedError(
        404,
        f"there is no model {name!r}"
        if name
        else "no model that ranks is loaded: one that gives embeddings, or a classifier or regressor of pairs",
    )


def _ranks(model: Predicting) -> bool:
    predictor = model.predictor
    return predictor.embeds or (predictor.task in ("classification", "regression") and len(predictor.inputs) == 2)
