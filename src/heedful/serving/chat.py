"""OpenAI's API for conversations: /v1/chat/completions, streamed on request."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from heedful.decoding.generation import GenerationConfig
from heedful.generator import Prompt as Written
from heedful.serving import openai
from heedful.serving.context import Context, clean
from heedful.serving.engine import STOPPED, StoppedError
from heedful.serving.libretranslate import REFUSALS
from heedful.serving.limits import RefusedError, bearer, error_body
from heedful.serving.models import Writing
from heedful.text.chat import Prompt

USUAL = 200  # tokens of a reply


class Part(BaseModel):
    """A part of a message; only text can be read."""

    type: Literal["text"] = "text"
    text: str


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "user", "assistant"]
    content: str | list[Part]

    @property
    def text(self) -> str:
        return clean(self.content if isinstance(self.content, str) else "".join(part.text for part in self.content))


class StreamOptions(BaseModel):
    include_usage: bool = False


class Chat(openai.Asked):
    """`max_completion_tokens` is the newer name of `max_tokens`. Tools and images are not known."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=1000)]
    max_tokens: int | None = Field(None, ge=1, le=openai.MOST_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=openai.MOST_TOKENS)
    stream_options: StreamOptions | None = None
    # What the model of the folder writes by itself also ends the reply.
    also_stop: tuple[str, ...] = Field((), exclude=True)

    def generation(self) -> GenerationConfig:
        config = super().generation()
        new = self.max_completion_tokens or self.max_tokens or USUAL
        stops = (*config.stop_strings, *self.also_stop)
        return config.model_copy(update={"max_new_tokens": new, "stop_strings": stops})


def routes(context: Context) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.post("/chat/completions", responses={**REFUSALS, 404: {"description": "There is no such model."}})
    async def chat(asked: Chat, request: Request) -> Response:
        """Reply to a conversation. The model's own chat template is applied. If the conversation is too long for the
        model, its oldest messages are left out; `dropped_messages` of the answer says how many."""
        context.keys.check(bearer(request.headers))
        context.check_size([message.text for message in asked.messages])
        writing = openai.find(context, asked.model)
        messages = [{"role": message.role, "content": message.text} for message in asked.messages]
        try:
            prompt = await run_in_threadpool(writing.chatter.prompt, messages, asked.generation())
        except ValueError as error:
            raise RefusedError(400, str(error)) from None
        asked = asked.model_copy(update={"also_stop": writing.chatter.chat.stops})
        written = openai.submit(writing, [Written(prompt.text, tokens=prompt.tokens)], asked)
        if asked.stream:
            events = _streamed(writing, written, asked, prompt, context.options.timeout)
            return StreamingResponse(openai.as_events(events), media_type="text/event-stream")
        await openai.finished(context, request, written)
        return JSONResponse(_whole(writing, written, asked, prompt))

    return router


def _whole(writing: Writing, written: openai.Written, asked: Chat, prompt: Prompt) -> dict[str, Any]:
    (text,) = written.texts
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": ("".join(piece.text for piece in row) + rest).strip()},
            "finish_reason": reason,
            "logprobs": None,
        }
        for index, (row, (reason, rest)) in enumerate(
            zip(text.pieces, text.ends(writing, asked.generation()), strict=True)
        )
    ]
    frame = _frame(writing, "chat.completion", prompt)
    return {**frame, "choices": choices, "usage": _usage(prompt, written)}


async def _streamed(
    writing: Writing, written: openai.Written, asked: Chat, prompt: Prompt, timeout: float
) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream. If the client disconnects, the generator is closed, and decoding stops."""
    frame = _frame(writing, "chat.completion.chunk", prompt)
    (text,) = written.texts
    deadline, begun = asyncio.get_running_loop().time() + timeout, [False] * (asked.n or 1)
    try:
        for index in range(asked.n or 1):
            yield {**frame, "choices": [_choice(index, {"role": "assistant", "content": ""})]}
        while (event := (await written.next_event(deadline))[1]) is not None:
            row, piece = event
            shown = piece.text if begun[row] else piece.text.lstrip()
            begun[row] = begun[row] or bool(shown)
            if shown:
                yield {**frame, "choices": [_choice(row, {"content": shown})]}
        text.job.future.result()  # raises if the job failed
        for row, (reason, rest) in enumerate(text.ends(writing, asked.generation())):
            yield {**frame, "choices": [_choice(row, {"content": rest} if rest else {}, reason)]}
        if asked.stream_options is not None and asked.stream_options.include_usage:
            yield {**frame, "choices": [], "usage": _usage(prompt, written)}
    except TimeoutError:
        yield error_body("/v1/", 503, openai.TOO_LONG)
    except StoppedError:
        yield error_body("/v1/", 503, STOPPED)
    finally:
        written.give_up()


def _choice(index: int, delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": reason, "logprobs": None}


def _frame(writing: Writing, kind: str, prompt: Prompt) -> dict[str, Any]:
    frame = openai.frame(writing, "chatcmpl", kind)
    return {**frame, "dropped_messages": prompt.dropped} if prompt.dropped else frame


def _usage(prompt: Prompt, written: openai.Written) -> dict[str, int]:
    count = sum(len(row) for text in written.texts for row in text.pieces)
    read = len(prompt.tokens)
    return {"prompt_tokens": read, "completion_tokens": count, "total_tokens": read + count}
