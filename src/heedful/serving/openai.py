"""OpenAI's API for language models: models and completions, streamed where asked."""

import asyncio
import json
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from heedful.decoding.generation import GenerationConfig
from heedful.decoding.stops import until
from heedful.generator import Piece
from heedful.serving.context import POLL, Context, clean
from heedful.serving.engine import BusyError
from heedful.serving.libretranslate import REFUSALS
from heedful.serving.limits import RefusedError, bearer, error_body
from heedful.serving.models import Writing

MOST_TOKENS = 4096
BUSY = RefusedError(429, "Slowdown: too many requests are waiting", {"Retry-After": "1"})
Stop = Annotated[str, Field(min_length=1, max_length=200)]


class Completion(BaseModel):
    """What is not known is ignored, as OpenAI's clients expect. `temperature` 0 takes the likeliest token."""

    model_config = ConfigDict(extra="ignore")

    model: str = ""
    prompt: str | list[str] = ""
    max_tokens: int | None = Field(16, ge=1, le=MOST_TOKENS)
    temperature: float | None = Field(1.0, ge=0, le=10)
    top_p: float | None = Field(1.0, ge=1e-6, le=1)
    top_k: int = Field(0, ge=0)
    min_p: float = Field(0.0, ge=0, lt=1)
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    n: int | None = Field(1, ge=1, le=16)
    stream: bool | None = False
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool | None = False
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


def routes(context: Context) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.get("/models", responses={403: REFUSALS[403]})
    async def models(request: Request) -> dict[str, Any]:
        """The language models."""
        context.keys.check(bearer(request.headers))
        return {"object": "list", "data": [_described(model) for model in context.models.writing]}

    @router.get("/models/{name}", responses={403: REFUSALS[403], 404: {"description": "There is no such model."}})
    async def model(name: str, request: Request) -> dict[str, Any]:
        """One of them."""
        context.keys.check(bearer(request.headers))
        return _described(_find(context, name))

    @router.post("/completions", responses={**REFUSALS, 404: {"description": "There is no such model."}})
    async def completions(asked: Completion, request: Request) -> Response:
        """Continue a prompt, or several."""
        context.keys.check(bearer(request.headers))
        prompts = [clean(one) for one in ([asked.prompt] if isinstance(asked.prompt, str) else asked.prompt)]
        if not prompts:
            raise RefusedError(400, "prompt is an empty list; send at least one")
        context.check_size(prompts)
        writing = _find(context, asked.model)
        if asked.stream:
            if writing.waiting >= writing.limit:
                raise BUSY
            told = _streamed(writing, prompts, asked, context.options.timeout)
            return StreamingResponse(_events(told), media_type="text/event-stream")
        return JSONResponse(await _whole(context, request, writing, prompts, asked))

    return router


def _find(context: Context, name: str) -> Writing:
    models = context.models.writing
    for model in models:
        if model.name == name or (not name and len(models) == 1):
            return model
    raise RefusedError(404, f"there is no language model {name!r}")


def _described(model: Writing) -> dict[str, Any]:
    created = int(model.folder.stat().st_mtime) if model.folder.exists() else 0
    return {"id": model.name, "object": "model", "created": created, "owned_by": "heedful"}


def _begin(writing: Writing, *asked: Any) -> "asyncio.Future[list[tuple[str, str]]]":
    """Take a place in the row of those who wait for this model."""
    try:
        return asyncio.wrap_future(writing.run(_write, writing, *asked))
    except BusyError:
        raise BUSY from None
    except RuntimeError:  # its thread takes nothing new
        raise RefusedError(503, "the model is being changed; try again", {"Retry-After": "1"}) from None


async def _whole(
    context: Context, request: Request, writing: Writing, prompts: list[str], asked: Completion
) -> dict[str, Any]:
    gone = threading.Event()
    deadline = asyncio.get_running_loop().time() + context.options.timeout
    choices: list[dict[str, Any]] = []
    written = 0
    for prompt in prompts:
        pieces: list[list[Piece]] = [[] for _ in range(asked.n or 1)]

        def told(row: int, piece: Piece, pieces: list[list[Piece]] = pieces) -> None:
            pieces[row].append(piece)

        work = _begin(writing, prompt, asked, told, gone)
        while not (await asyncio.wait([work], timeout=POLL))[0]:
            if asyncio.get_running_loop().time() > deadline or await request.is_disconnected():
                gone.set()  # it ends at its next token, or does not begin
                raise RefusedError(503, "this took too long; ask for fewer tokens", {"Retry-After": "5"})
        for row, (reason, rest) in zip(pieces, await work, strict=True):
            written += len(row)
            text = (prompt if asked.echo else "") + "".join(piece.text for piece in row) + rest
            told_probs = None if asked.logprobs is None else _log_probs(writing, row, asked.logprobs)
            choices.append({"index": len(choices), "text": text, "finish_reason": reason, "logprobs": told_probs})
    return {**_frame(writing), "choices": choices, "usage": _usage(writing, prompts, written)}


async def _streamed(
    writing: Writing, prompts: list[str], asked: Completion, timeout: float
) -> AsyncIterator[dict[str, Any]]:
    """What each event says. When the client goes away, the generator is closed, and the writing ends."""
    loop, frame = asyncio.get_running_loop(), _frame(writing)
    gone, count, deadline = threading.Event(), asked.n or 1, loop.time() + timeout
    try:
        for number, prompt in enumerate(prompts):
            events: asyncio.Queue[tuple[int, Piece] | None] = asyncio.Queue()

            def told(row: int, piece: Piece, events: "asyncio.Queue[Any]" = events) -> None:
                loop.call_soon_threadsafe(events.put_nowait, (row, piece))

            work = _begin(writing, prompt, asked, told, gone)
            work.add_done_callback(lambda _, events=events: events.put_nowait(None))  # type: ignore[misc]
            for row in range(count if asked.echo else 0):
                yield {**frame, "choices": [_choice(number * count + row, prompt)]}
            while (event := await asyncio.wait_for(events.get(), deadline - loop.time())) is not None:
                row, piece = event
                probs = None if asked.logprobs is None else _log_probs(writing, [piece], asked.logprobs)
                yield {**frame, "choices": [_choice(number * count + row, piece.text, probs)]}
            for row, (reason, rest) in enumerate(await work):
                yield {**frame, "choices": [_choice(number * count + row, rest, reason=reason)]}
    except TimeoutError:
        yield error_body("/v1/", 503, "this took too long; ask for fewer tokens")
    except RefusedError as error:
        yield error_body("/v1/", error.status, error.message)
    finally:
        gone.set()


async def _events(told: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    async for one in told:
        yield f"data: {json.dumps(one, ensure_ascii=False)}\n\n"
    yield "data: [DONE]\n\n"


def _choice(index: int, text: str, log_probs: Any = None, reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": reason, "logprobs": log_probs}


def _write(
    writing: Writing, prompt: str, asked: Completion, told: Callable[[int, Piece], None], gone: threading.Event
) -> list[tuple[str, str]]:
    """For each continuation why it ended, and what was held back of it in case it became a stop string."""
    config, count = asked.generation(), asked.n or 1
    tokens: list[list[int]] = [[] for _ in range(count)]
    shown = [0] * count

    def heard(row: int, piece: Piece) -> bool:
        tokens[row].append(piece.token)
        shown[row] += len(piece.text)
        told(row, piece)
        return not gone.is_set()

    if gone.is_set():
        return [("length", "")] * count
    writing.generator.stream(prompt, config, heard)
    found = []
    for row, written in zip(shown, tokens, strict=True):
        whole = writing.generator.tokenizer.decode([written])[0]
        text = until(whole, config.stop_strings)
        ended = writing.generator.tokenizer.eos in written or text != whole
        found.append(("stop" if ended else "length", text[row:]))
    return found


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


def _frame(writing: Writing) -> dict[str, Any]:
    created = int(time.time())
    return {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": created, "model": writing.name}


def _usage(writing: Writing, prompts: list[str], written: int) -> dict[str, int]:
    read = sum(map(len, writing.generator.tokenizer.encode(prompts)))
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
