"""OpenAI's API for language models: models and completions, streamed on request."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from heedful.bounded import LARGEST_NUMBER
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.stops import until
from heedful.generator import Continuation, Piece, Prompt
from heedful.serving.context import POLL, Context, clean, submitted
from heedful.serving.engine import STOPPED, Job, Settings, StoppedError
from heedful.serving.libretranslate import REFUSALS
from heedful.serving.limits import RefusedError, bearer, error_body
from heedful.serving.models import Predicting, Writing

MOST_TOKENS = 4096
TOO_LONG = "this took too long; ask for fewer tokens"
Stop = Annotated[str, Field(min_length=1, max_length=200)]


class Asked(BaseModel):
    """How to write. Unknown fields are ignored, as OpenAI's clients expect. `temperature` 0 picks the most likely
    token."""

    model_config = ConfigDict(extra="ignore")

    model: str = ""
    max_tokens: int | None = Field(16, ge=1, le=MOST_TOKENS)
    temperature: float | None = Field(1.0, ge=0, le=10)
    top_p: float | None = Field(1.0, ge=1e-6, le=1)
    top_k: int = Field(0, ge=0, le=LARGEST_NUMBER)
    min_p: float = Field(0.0, ge=0, lt=1)
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    n: int | None = Field(1, ge=1, le=16)
    stream: bool | None = False
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    seed: int | None = Field(None, ge=0, lt=2**31)

    def generation(self) -> GenerationConfig:
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        cold = self.temperature == 0
        return GenerationConfig(
            do_sample=True,
            num_return_sequences=self.n or 1,
            max_new_tokens=self.max_tokens or 16,
            temperature=1.0 if cold or self.temperature is None else max(1e-3, self.temperature),
            top_k=1 if cold else self.top_k,
            top_p=self.top_p or 1.0,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            stop_strings=stops,
            seed=self.seed,
        )


class Completion(Asked):
    prompt: str | list[str] = ""
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool | None = False


def routes(context: Context) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.get("/models", responses={403: REFUSALS[403]})
    async def models(request: Request) -> dict[str, Any]:
        """The language models, and the models that read."""
        context.keys.check(bearer(request.headers))
        return {"object": "list", "data": [_described(model) for model in _listed(context)]}

    @router.get("/models/{name}", responses={403: REFUSALS[403], 404: {"description": "There is no such model."}})
    async def model(name: str, request: Request) -> dict[str, Any]:
        """One of these models."""
        context.keys.check(bearer(request.headers))
        for one in _listed(context):
            if one.name == name:
                return _described(one)
        raise RefusedError(404, f"there is no model {name!r}")

    @router.post("/completions", responses={**REFUSALS, 404: {"description": "There is no such model."}})
    async def completions(asked: Completion, request: Request) -> Response:
        """Continue one or more prompts."""
        context.keys.check(bearer(request.headers))
        prompts = [clean(one) for one in ([asked.prompt] if isinstance(asked.prompt, str) else asked.prompt)]
        if not prompts:
            raise RefusedError(400, "prompt is an empty list; send at least one")
        context.check_size(prompts)
        writing = find(context, asked.model)
        if asked.stream:
            texts = submit(writing, list(map(Prompt, prompts)), asked)
            events = _streamed(writing, texts, asked, context.options.timeout)
            return StreamingResponse(as_events(events), media_type="text/event-stream")
        return JSONResponse(await _whole(context, request, writing, prompts, asked))

    return router


def find(context: Context, name: str) -> Writing:
    models = context.models.writing
    for model in models:
        if model.name == name or (not name and len(models) == 1):
            return model
    raise RefusedError(404, f"there is no language model {name!r}")


def _listed(context: Context) -> list[Writing | Predicting]:
    return [*context.models.writing, *context.models.predicting]


def _described(model: Writing | Predicting) -> dict[str, Any]:
    created = int(model.folder.stat().st_mtime) if model.folder.exists() else 0
    return {"id": model.name, "object": "model", "created": created, "owned_by": "heedful"}


class Text:
    """One prompt and its continuations as they are written, piece by piece."""

    def __init__(self, prompt: str, count: int, emit: Callable[[tuple[int, Piece]], None]) -> None:
        self.prompt, self._emit = prompt, emit
        self.pieces: list[list[Piece]] = [[] for _ in range(count)]
        self.job: Job[Any, list[Continuation]]

    def heard(self, row: int, piece: Piece) -> bool:
        self.pieces[row].append(piece)
        self._emit((row, piece))
        return True  # the engine stops a cancelled job

    def ends(self, writing: Writing, config: GenerationConfig) -> list[tuple[str, str]]:
        """Why each continuation ended, and its last text, held back because it might have become a stop string."""
        tokenizer, found = writing.generator.tokenizer, []
        for row in self.pieces:
            tokens, shown = [piece.token for piece in row], sum(len(piece.text) for piece in row)
            whole = tokenizer.decode([tokens])[0]
            text = until(whole, config.stop_strings)
            ended = tokenizer.eos in tokens or text != whole
            found.append(("stop" if ended else "length", text[shown:]))
        return found


@dataclass(frozen=True)
class Written:
    """All prompts of a request, being continued together."""

    texts: list[Text]
    events: "asyncio.Queue[tuple[int, tuple[int, Piece] | None]]"  # (which text, its next piece; None at its end)

    async def next_event(self, deadline: float) -> tuple[int, tuple[int, Piece] | None]:
        """Late is late, even if the client reads so slowly that there always is a next one."""
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise TimeoutError
        return await asyncio.wait_for(self.events.get(), left)

    def give_up(self) -> None:
        for text in self.texts:
            if not text.job.future.done():
                text.job.give_up()


def submit(writing: Writing, prompts: Sequence[Prompt], asked: Asked) -> Written:
    """Queue all prompts of a request. Their output arrives as events."""
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[tuple[int, tuple[int, Piece] | None]] = asyncio.Queue()

    def emit(number: int, event: tuple[int, Piece] | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is listening
            loop.call_soon_threadsafe(events.put_nowait, (number, event))

    texts = [Text(prompt.text, asked.n or 1, partial(emit, number)) for number, prompt in enumerate(prompts)]
    heard = [replace(prompt, heard=text.heard) for prompt, text in zip(prompts, texts, strict=True)]
    jobs = submitted(writing.engine, heard, Settings(asked.generation()))
    for number, (text, job) in enumerate(zip(texts, jobs, strict=True)):
        text.job = job
        job.future.add_done_callback(lambda _, number=number: emit(number, None))  # type: ignore[misc]
    return Written(texts, events)


async def finished(context: Context, request: Request, written: Written) -> None:
    """Wait for all texts, as long as somebody does."""
    deadline = asyncio.get_running_loop().time() + context.options.timeout
    try:
        waiting = {asyncio.wrap_future(text.job.future) for text in written.texts}
        while waiting:
            _, waiting = await asyncio.wait(waiting, timeout=POLL)
            if waiting and (asyncio.get_running_loop().time() > deadline or await request.is_disconnected()):
                raise RefusedError(503, TOO_LONG, {"Retry-After": "5"})
    finally:
        written.give_up()  # a running job stops at its next token, a queued one does not start
    for text in written.texts:
        text.job.future.result()  # raises if the job failed


async def _whole(
    context: Context, request: Request, writing: Writing, prompts: list[str], asked: Completion
) -> dict[str, Any]:
    written = submit(writing, list(map(Prompt, prompts)), asked)
    await finished(context, request, written)
    choices: list[dict[str, Any]] = []
    for text in written.texts:
        for row, (reason, rest) in zip(text.pieces, text.ends(writing, asked.generation()), strict=True):
            shown = (text.prompt if asked.echo else "") + "".join(piece.text for piece in row) + rest
            log_probs = None if asked.logprobs is None else _log_probs(writing, row, asked.logprobs)
            choices.append({"index": len(choices), "text": shown, "finish_reason": reason, "logprobs": log_probs})
    count = sum(len(row) for text in written.texts for row in text.pieces)
    return {**frame(writing), "choices": choices, "usage": _usage(writing, prompts, count)}


async def _streamed(
    writing: Writing, written: Written, asked: Completion, timeout: float
) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream. If the client disconnects, the generator is closed, and decoding stops."""
    shown, count, config = frame(writing), asked.n or 1, asked.generation()
    deadline, left = asyncio.get_running_loop().time() + timeout, len(written.texts)
    try:
        for number, text in enumerate(written.texts):
            for row in range(count if asked.echo else 0):
                yield {**shown, "choices": [_choice(number * count + row, text.prompt)]}
        while left:
            number, event = await written.next_event(deadline)
            if event is not None:
                row, piece = event
                probs = None if asked.logprobs is None else _log_probs(writing, [piece], asked.logprobs)
                yield {**shown, "choices": [_choice(number * count + row, piece.text, probs)]}
                continue
            left -= 1
            written.texts[number].job.future.result()  # raises if the job failed
            for row, (reason, rest) in enumerate(written.texts[number].ends(writing, config)):
                yield {**shown, "choices": [_choice(number * count + row, rest, reason=reason)]}
    except TimeoutError:
        yield error_body("/v1/", 503, TOO_LONG)
    except StoppedError:
        yield error_body("/v1/", 503, STOPPED)
    finally:
        written.give_up()


async def as_events(payloads: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    async for one in payloads:
        yield f"data: {json.dumps(one, ensure_ascii=False)}\n\n"
    yield "data: [DONE]\n\n"


def _choice(index: int, text: str, log_probs: Any = None, reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": reason, "logprobs": log_probs}


def _log_probs(writing: Writing, pieces: list[Piece], count: int) -> dict[str, Any]:
    name = writing.generator.tokenizer.token
    offsets, place = [], 0
    for piece in pieces:
        offsets.append(place)
        place += len(piece.text)
    return {
        "tokens": [name(piece.token) for piece in pieces],
        "token_logprobs": [piece.log_prob for piece in pieces],
        "top_logprobs": [{name(token): value for token, value in piece.top[:count]} for piece in pieces],
        "text_offset": offsets,
    }


def frame(writing: Writing, prefix: str = "cmpl", kind: str = "text_completion") -> dict[str, Any]:
    created = int(time.time())
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": created, "model": writing.name}


def _usage(writing: Writing, prompts: list[str], written: int) -> dict[str, int]:
    read = sum(map(len, writing.generator.tokenizer.encode(prompts)))
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
