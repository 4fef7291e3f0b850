"""What every route needs: the models, the limits, and how to wait for an answer."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect, Request

from heedful.decoding.runner import Request as Text
from heedful.serving.engine import BusyError, ClosedError, Engine, Job, Settings
from heedful.serving.limits import Keys, RefusedError
from heedful.serving.metrics import Metrics
from heedful.serving.models import Models, Predicting, Translating
from heedful.serving.predicting import PLAIN, Line
from heedful.translator import Translation

POLL = 0.25  # seconds between checks for a disconnected client


@dataclass(frozen=True)
class Options:
    """Limits of a request. `body`: bytes; `reading`: seconds in which it must arrive; `timeout`: seconds in which
    it must be answered. `hosts`: names of this server, as `limits.allowed_hosts` gives them. `origins`: of web pages
    that may use it."""

    characters: int = 20_000
    texts: int = 256
    body: int = 1 << 20
    reading: float = 15.0
    timeout: float = 60.0
    hosts: frozenset[str] = frozenset()
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Context:
    models: Models
    keys: Keys
    metrics: Metrics
    options: Options

    def check_size(self, texts: Sequence[str]) -> None:
        if len(texts) > self.options.texts:
            limit = self.options.texts
            raise RefusedError(400, f"{len(texts)} texts exceed the limit of {limit}; send fewer at a time")
        size = sum(map(len, texts))
        if size > self.options.characters:
            limit = self.options.characters
            raise RefusedError(400, f"{size} characters exceed the limit of {limit}; send less at a time")

    async def translate(
        self, request: Request, model: Translating, texts: Sequence[Text], settings: Settings
    ) -> list[Translation]:
        """In the order of `texts`; see `answers`. For a model that reads context they are one document: each waits for
        the translations of those before it. What the model cannot do is the client's mistake."""
        try:
            return await self._translated(request, model, texts, settings)
        except ValueError as error:
            raise RefusedError(400, str(error)) from None

    async def _translated(
        self, request: Request, model: Translating, texts: Sequence[Text], settings: Settings
    ) -> list[Translation]:
        context = model.translator.context
        if not context:
            return await self.answers(request, model.engine, texts, settings)
        found: list[Translation] = []
        before: list[tuple[str, str]] = []
        deadline = asyncio.get_running_loop().time() + self.options.timeout
        for text in texts:
            before = [*before, *text.context][-context:]
            asked = [replace(text, context=tuple(before))]
            found += await self.answers(request, model.engine, asked, settings, deadline=deadline)
            before.append((text.text, found[-1].text))
        return found

    async def predict(self, request: Request, model: Predicting, lines: Sequence[Line]) -> list[Any]:
        """In the order of `lines`; see `answers`. What the model cannot read is the client's mistake."""
        try:
            model.predictor.check([line.text for line in lines])
            return await self.answers(request, model.engine, lines, PLAIN)
        except ValueError as error:
            raise RefusedError(400, str(error)) from None

    async def answers(
        self,
        request: Request,
        engine: Engine[Any, Any, Any],
        requests: Sequence[Any],
        settings: Settings,
        *,
        deadline: float | None = None,
    ) -> list[Any]:
        """In the order of `requests`. If the client disconnects or the request times out, its jobs are cancelled."""
        jobs = submitted(engine, requests, settings)
        try:
            return await self._wait(request, jobs, deadline)
        finally:
            for job in jobs:
                if not job.future.done():
                    job.give_up()

    async def _wait(self, request: Request, jobs: Sequence[Job[Any, Any]], deadline: float | None = None) -> list[Any]:
        futures = [asyncio.wrap_future(job.future) for job in jobs]
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + self.options.timeout
        waiting: set[asyncio.Future[Any]] = set(futures)
        while waiting:
            _, waiting = await asyncio.wait(waiting, timeout=POLL)
            if waiting and await request.is_disconnected():
                raise ClientDisconnect
            if waiting and asyncio.get_running_loop().time() > deadline:
                raise RefusedError(503, "this took too long; send less at a time", {"Retry-After": "5"})
        return [future.result() for future in futures]


def submitted(engine: Engine[Any, Any, Any], requests: Sequence[Any], settings: Settings) -> list[Job[Any, Any]]:
    """Queue all requests, or raise the error to send to the client."""
    if len(requests) > engine.limit:
        raise RefusedError(400, f"{len(requests)} lines exceed the limit of {engine.limit}; send fewer at a time")
    try:
        return engine.submit(requests, settings)
    except BusyError:
        raise RefusedError(429, "Slowdown: too many requests are waiting", {"Retry-After": "1"}) from None
    except ClosedError:
        raise RefusedError(503, "the model is being reloaded; try again", {"Retry-After": "1"}) from None


def clean(text: str) -> str:
    """Without lone surrogates, which JSON can express but UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


async def read_fields(request: Request) -> dict[str, Any]:
    """A JSON object, or the fields of a form; a field sent several times is a list."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        return await _form(request)
    try:
        found = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise RefusedError(400, "Invalid request: the body is not UTF-8") from None
    except (ValueError, RecursionError):
        raise RefusedError(400, "Invalid request: the body is not JSON") from None
    if not isinstance(found, dict):
        raise RefusedError(400, "Invalid request: the body is not a JSON object")
    return found


async def _form(request: Request) -> dict[str, Any]:
    try:
        form = await request.form(max_files=0, max_fields=1000)
    except Exception:  # the parser's own errors, and encoding errors
        raise RefusedError(400, "Invalid request: the form cannot be read") from None
    found: dict[str, Any] = {}
    for key in form:
        values = [value for value in form.getlist(key) if not isinstance(value, UploadFile)]
        found[key] = values if len(values) > 1 else values[0] if values else ""
    return found
