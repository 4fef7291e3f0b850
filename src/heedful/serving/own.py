"""Heedful's native API: translations with all their details, and the model's internals."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from anyio import CapacityLimiter, fail_after, to_thread
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from heedful.data.languages import Languages
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.runner import Request as Text
from heedful.inspection.details import MOST_TOKENS, described, inspected, look_ahead, parts_of
from heedful.inspection.reading import Judge
from heedful.inspection.reading import inspect as look_at_reader
from heedful.model.multihead import MemoryAttention
from heedful.serving.context import Context, clean
from heedful.serving.engine import Settings
from heedful.serving.libretranslate import REFUSALS
from heedful.serving.limits import RefusedError, bearer
from heedful.serving.models import Predicting, Served, Translating, Writing
from heedful.serving.predicting import lines_of

Phrase = Annotated[str, Field(max_length=200)]
Sentence = Annotated[str, Field(max_length=2000)]
Code = Annotated[str, Field(max_length=35)]
Phrases = Annotated[list[Phrase], Field(max_length=20)]
NO_MODEL: dict[int | str, dict[str, Any]] = {**REFUSALS, 404: {"description": "There is no such model."}}
MOST_INSPECTED = 2_000  # characters
MOST_OCCLUDED = 32  # words
MOST_WEIGHTS = 4_000_000  # of attention, in an answer: tokens x tokens x heads x layers; a second of a core


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Asked(Body):
    """What to translate, and how. `model`: its name; by default the first. For a model that reads context, the texts
    are consecutive sentences of a document; `context`: those before them, each with its translation. `source` and
    `target`: the languages, for a model that knows several. `length`: short, medium, long or a number, for a summariser
    with length tokens."""

    text: str | list[str]
    model: str = ""
    num_beams: int = Field(4, ge=1, le=16)
    num_return_sequences: int = Field(1, ge=1, le=16)
    length_penalty: float = Field(1.0, ge=-10, le=10)
    max_new_tokens: int = Field(0, ge=0, le=1024)
    target_prefix: str = Field("", max_length=2000)
    constraints: Phrases = []
    avoid: Phrases = []
    context: Annotated[list[tuple[Sentence, Sentence]], Field(max_length=16)] = []
    source: Code = ""
    target: Code = ""
    length: str = Field("", max_length=10)
    alignment: bool = True

    def config(self) -> GenerationConfig:
        return GenerationConfig(
            num_beams=max(self.num_beams, self.num_return_sequences),
            num_return_sequences=self.num_return_sequences,
            length_penalty=self.length_penalty,
            max_new_tokens=self.max_new_tokens,
        )

    def requests(self, texts: list[str], known: Languages) -> list[Text]:
        found = [_request(text, self, known) for text in texts]
        before = tuple((clean(source), clean(target)) for source, target in self.context)
        return [replace(one, context=before) if place == 0 else one for place, one in enumerate(found)]


class Inspected(Body):
    """What to inspect. `target_prefix` forces the beginning of the translation; the model continues from there.
    `constraints` and `avoid`: phrases that it must and must not contain. `label`: which one of a classifier's to
    explain; by default the most likely. `source` and `target`: the languages, for a model that knows several."""

    text: str = Field(max_length=MOST_INSPECTED)
    model: str = ""
    num_beams: int = Field(4, ge=1, le=8)
    target_prefix: str = Field("", max_length=MOST_INSPECTED)
    constraints: Phrases = []
    avoid: Phrases = []
    source: Code = ""
    target: Code = ""
    label: str = Field("", max_length=MOST_INSPECTED)


class Looked(Body):
    """For a language model: the most likely next tokens, and what it attends to."""

    text: str = Field(max_length=MOST_INSPECTED)
    model: str = ""
    top: int = Field(10, ge=1, le=50)


class Predicted(Body):
    """What a model that reads is asked: a text or a list of texts; where it reads several together (a pair, a question
    and a context), they are separated by a tab. `model`: its name; by default the first."""

    inputs: str | list[str]
    model: str = ""


class Named(Body):
    model: str


def routes(context: Context) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["Heedful"])
    turns = CapacityLimiter(1)  # looking inside is much work: one request at a time

    @router.get("/models", responses={403: REFUSALS[403]})
    async def models(request: Request) -> list[dict[str, Any]]:
        """The loaded models."""
        context.keys.check(bearer(request.headers))
        return [_described(model) for model in context.models.all.values()]

    @router.post("/models/reload", responses=NO_MODEL)
    async def reload(asked: Named, request: Request) -> dict[str, str]:
        """Reload a model from its folder. Only for a server with API keys; the request must send one."""
        if not context.keys.required:
            raise RefusedError(403, "reloading needs API keys; start the server with --api-keys")
        context.keys.check(bearer(request.headers))
        if asked.model not in context.models.all:
            raise RefusedError(404, f"there is no model {asked.model!r}")
        try:
            await run_in_threadpool(context.models.reload, asked.model)
        except (ValueError, OSError) as error:
            raise RefusedError(400, f"the old model is kept: {error}") from None
        return {"reloaded": asked.model}

    @router.post("/translate", responses=NO_MODEL)
    async def translate(asked: Asked, request: Request) -> dict[str, Any]:
        """Translate, with scores, alignments, alternatives and constraints."""
        context.keys.check(bearer(request.headers))
        texts = [asked.text] if isinstance(asked.text, str) else asked.text
        context.check_size(texts)
        model = _translating(context, asked.model)
        settings = Settings(asked.config(), alignment=asked.alignment and model.translator.aligner is not None)
        known = model.translator.languages
        requests = asked.requests(texts, known)
        if asked.context and not model.translator.context:
            raise RefusedError(400, f"model {model.name} reads single sentences; leave out context")
        found = await context.translate(request, model, requests, settings) if texts else []
        both = zip(requests, found, strict=True)
        return {
            "model": model.name,
            "translations": [
                described(
                    model.translator, one.text, replace(other, warnings=[*_zero_shot(known, asked), *other.warnings])
                )
                for one, other in both
            ],
        }

    @router.post("/predict", responses=NO_MODEL)
    async def predict(asked: Predicted, request: Request) -> dict[str, Any]:
        """The predictions of a model that reads, as its task gives them: labels, a number, tags, an answer, words."""
        context.keys.check(bearer(request.headers))
        texts = [clean(text) for text in ([asked.inputs] if isinstance(asked.inputs, str) else asked.inputs)]
        if not texts:
            raise RefusedError(400, "inputs is an empty list; send at least one text")
        context.check_size(texts)
        model = _predicting(context, asked.model)
        found = await context.predict(request, model, lines_of(texts))
        return {"model": model.name, "task": model.predictor.task, "predictions": found}

    @router.post("/inspect", responses=NO_MODEL, response_model=dict[str, Any])
    async def inspect(asked: Inspected, request: Request) -> Response:
        """Tokens, the attention of every layer and head, the candidates of every step, the beam search tree; of a
        classifier or regressor, which words decided.

        If a text is translated in parts, this covers the first; `part` gives its number, the count and its text."""
        context.keys.check(bearer(request.headers))
        if (reader := _judging(context, asked.model)) is not None:
            return await _judged(context, reader, asked, turns)
        if asked.label:
            raise RefusedError(400, "label is for classifiers; leave it out")
        model = _translating(context, asked.model)
        wanted = _request(asked.text, asked, model.translator.languages)
        context.check_size([wanted.text])
        first, *others = parts_of(model.translator, wanted)
        size = len(model.translator.source.encode([first])[0])
        if size > MOST_TOKENS:
            raise RefusedError(400, f"too long to inspect: {size} tokens exceed the limit of {MOST_TOKENS}")
        settings = Settings(GenerationConfig(num_beams=asked.num_beams), history=model.translator.stepwise)
        alone = replace(wanted, text=first)
        (found,) = await context.translate(request, model, [alone], settings)
        warnings = ["the text was translated in parts; only the first is inspected"] if others else []
        see = model.beside(
            partial(inspected, model.translator, alone, found, parts=1 + len(others), most_weights=MOST_WEIGHTS)
        )
        return await _seen(context, lambda until: {**see(), "warnings": warnings}, turns)

    @router.post("/next", responses=NO_MODEL, response_model=dict[str, Any])
    async def following(asked: Looked, request: Request) -> Response:
        """The most likely next tokens of a language model, and what each of its heads attends to."""
        context.keys.check(bearer(request.headers))
        writing = _writing(context, asked.model)
        see = writing.beside(
            partial(look_ahead, writing.generator, clean(asked.text), asked.top, most_weights=MOST_WEIGHTS)
        )
        return await _seen(context, lambda until: see(), turns)

    return router


async def _seen(context: Context, look: Callable[[float], dict[str, Any]], turns: CapacityLimiter) -> Response:
    """What `look` gives, in turn. It is told when to give up: a thread cannot be stopped from outside."""
    until = time.monotonic() + context.options.timeout

    def answered() -> Response:
        if time.monotonic() > until:
            raise TimeoutError
        return JSONResponse(look(until))  # a million numbers: made here, where others need not wait for it

    try:
        with fail_after(context.options.timeout):
            return await to_thread.run_sync(answered, limiter=turns)
    except ValueError as error:
        raise RefusedError(400, str(error)) from None
    except TimeoutError:
        raise RefusedError(503, "this took too long; send less at a time", {"Retry-After": "5"}) from None


async def _judged(context: Context, model: Predicting, asked: Inspected, turns: CapacityLimiter) -> Response:
    """What is inside a classifier or regressor while it reads a text."""
    if asked.target_prefix or asked.constraints or asked.avoid:
        raise RefusedError(400, "target_prefix, constraints and avoid are for translators; leave them out")
    if asked.source or asked.target:
        raise RefusedError(400, "source and target are for translators; leave them out")
    text, use = clean(asked.text), model.predictor.use
    assert isinstance(use, Judge)
    context.check_size([text])
    try:
        model.predictor.check([text])
    except ValueError as error:
        raise RefusedError(400, str(error)) from None

    def look(until: float) -> dict[str, Any]:
        label, most = clean(asked.label), MOST_OCCLUDED
        seen = look_at_reader(use, text, label=label, most=most, most_weights=MOST_WEIGHTS, until=until)
        return {"prediction": seen["prediction"], **seen["inspected"], "warnings": []}

    return await _seen(context, look, turns)


def _judging(context: Context, name: str) -> Predicting | None:
    """The reader to look inside: the one of this name, or if there is no translator the first."""
    if name == "" and context.models.translating:
        return None
    for model in context.models.predicting:
        if isinstance(model.predictor.use, Judge) and name in ("", model.name):
            return model
        if model.name == name:
            task = model.predictor.task
            raise RefusedError(400, f"{name!r}: models of the task {task} cannot be inspected yet; use /api/predict")
    return None


def _zero_shot(known: Languages, asked: Asked) -> list[str]:
    direction = known.direction(asked.source, asked.target)
    return [] if known.trained(direction) or not direction.source else [f"{direction} was not trained"]


def _request(text: str, asked: Asked | Inspected, known: Languages) -> Text:
    required, banned = ([clean(one) for one in some] for some in (asked.constraints, asked.avoid))
    length = asked.length if isinstance(asked, Asked) else ""
    try:
        known.framing(asked.source, asked.target, length)
        prefix = clean(asked.target_prefix)
        return Text(clean(text), prefix, required, banned, source=asked.source, target=asked.target, length=length)
    except ValueError as error:
        raise RefusedError(400, str(error)) from None


def _described(model: Served) -> dict[str, Any]:
    if isinstance(model, Writing):
        return {"name": model.name, "kind": "language model", "example": None, "chats": model.chats}
    if isinstance(model, Predicting):
        return {
            "name": model.name,
            "kind": "reader",
            "task": model.predictor.task,
            "inputs": list(model.predictor.inputs),
            "embeds": model.predictor.embeds,
            "inspects": isinstance(model.predictor.use, Judge),
            "waiting": model.engine.waiting,
            "example": model.example,
        }
    crosses = [module for module in model.translator.models[0].modules() if isinstance(module, MemoryAttention)]
    return {
        "name": model.name,
        "kind": "translator",
        "source": model.source,
        "target": model.target,
        "directions": model.directions if model.translator.languages.layout else [],
        "untrained": model.untrained,
        "layers": len(crosses),
        "heads": crosses[0].heads if crosses else 0,
        "stepwise": model.translator.stepwise,
        "waiting": model.engine.waiting,
        "example": model.example,
    }


def _translating(context: Context, name: str) -> Translating:
    for model in context.models.translating:
        if not name or model.name == name:
            return model
    raise RefusedError(404, f"there is no translator {name!r}" if name else "no translator is loaded")


def _writing(context: Context, name: str) -> Writing:
    for model in context.models.writing:
        if not name or model.name == name:
            return model
    raise RefusedError(404, f"there is no language model {name!r}" if name else "no language model is loaded")


def _predicting(context: Context, name: str) -> Predicting:
    for model in context.models.predicting:
        if not name or model.name == name:
            return model
    if name in context.models.all:
        raise RefusedError(400, f"{name!r} is not a model that reads; use /api/translate or /v1/completions")
    raise RefusedError(404, f"there is no model {name!r}" if name else "no model that reads is loaded")
