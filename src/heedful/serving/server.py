"""The server: routes, error responses, access log and shutdown."""

import json
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heedful import __version__
from heedful.serving import chat, libretranslate, openai, own, page, vectors
from heedful.serving.context import Context
from heedful.serving.engine import STOPPED, StoppedError
from heedful.serving.limits import KnownHost, RefusedError, WholeBody, error_body
from heedful.serving.metrics import Metrics

access = logging.getLogger("heedful.access")
# Whatever a model writes, a browser must not take for a page of this server; the page's own policy is in page.py.
SAFE = [
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


def create_app(context: Context) -> FastAPI:
    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        yield
        context.models.close()

    # FastAPI's own /docs loads its scripts from a CDN; ours is in page.py.
    app = FastAPI(title="Heedful", version=__version__, lifespan=life, docs_url=None, redoc_url=None)
    context.metrics.follow_queue(lambda: sum(model.engine.waiting for model in context.models.all.values()))
    for part in (libretranslate, openai, chat, vectors, own):
        app.include_router(part.routes(context))
    app.include_router(page.routes())

    @app.get("/metrics", tags=["Heedful"])
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(context.metrics.text(), media_type="text/plain; version=0.0.4")

    options = context.options
    app.add_middleware(WholeBody, limit=options.body, seconds=options.reading)
    if options.origins:
        app.add_middleware(CORSMiddleware, allow_origins=options.origins, allow_methods=["*"], allow_headers=["*"])
    if options.hosts:
        app.add_middleware(KnownHost, hosts=options.hosts)
    app.add_middleware(Logged, metrics=context.metrics)
    app.exception_handler(RefusedError)(_refused)
    app.exception_handler(StoppedError)(_stopped)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(HTTPException)(_http)
    app.exception_handler(ClientDisconnect)(_disconnected)
    app.exception_handler(Exception)(_failed)
    return app


class Logged:
    """Counts, times and logs every request, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                known = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in SAFE if one[0] not in known)]
            await send(message)

        try:
            with self.metrics.in_flight.track_inprogress():
                await self.app(scope, receive, noted)
        finally:
            self._note(scope, status, time.monotonic() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        path = getattr(scope.get("route"), "path", "other")
        self.metrics.requests.labels(path, str(status)).inc()
        self.metrics.latency.labels(path).observe(seconds)
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "client": scope["client"][0] if scope.get("client") else None,
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "seconds": round(seconds, 4),
        }
        access.info(json.dumps(entry))


def log_to_stderr() -> None:
    """Log each request as a line of JSON, without its text."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    access.propagate = False


def _answer(request: Request, status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(error_body(request.url.path, status, message), status, headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return _answer(request, error.status, error.message, error.headers)


async def _stopped(request: Request, error: Exception) -> Response:
    return _answer(request, 503, STOPPED, {"Retry-After": "1"})


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    return _answer(request, 400, f"Invalid request: {place + ': ' if place else ''}{first['msg']}")


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _answer(request, error.status_code, str(error.detail), dict(error.headers or {}))


async def _disconnected(request: Request, error: Exception) -> Response:
    return _answer(request, 499, "the client disconnected")


async def _failed(request: Request, error: Exception) -> Response:
    logging.getLogger("heedful").error("%s %s", request.url.path, error, exc_info=error)
    answer = _answer(request, 500, "internal server error; see the server's log")
    answer.headers.update({name.decode(): value.decode() for name, value in SAFE})  # the handler is outside of `Logged`
    return answer
