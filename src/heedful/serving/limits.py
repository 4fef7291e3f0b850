"""What the server rejects: foreign hosts, bodies that are too large or too slow, and invalid API keys."""

import asyncio
import hashlib
import hmac
import json
import re
import socket
from collections.abc import Collection, Sequence
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class RefusedError(Exception):
    """A 4xx or 5xx response, with a one-line reason."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


def error_body(path: str, status: int, message: str) -> dict[str, Any]:
    """The error in the format of the API that was called."""
    if not path.startswith("/v1/"):
        return {"error": message}
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


MOST_HEAD = 16 << 10  # bytes of a request before its body
LOCAL = ("localhost", "127.0.0.1", "::1")
HOST = re.compile(r"\[([0-9a-f:.]+)\](?::\d*)?|([^\[\]:/@\s]+)(?::\d*)?", re.IGNORECASE)


def allowed_hosts(bound: str, named: Sequence[str]) -> frozenset[str]:
    """The hosts that requests may be addressed to; empty = any. On a loopback address they are always checked: a web
    page whose name is made to point there (DNS rebinding) would else be taken for the server's own."""
    for name in named:
        if not name or _host(name) != name.rstrip(".").lower().strip("[]"):
            raise ValueError(f"--allow-host {name!r} is not a host without port, such as translate.me.org")
    if not named and not _is_loopback(bound):
        return frozenset()
    return frozenset({*LOCAL, *map(_host, named), _host(bound)} - {""})


def _is_loopback(host: str) -> bool:
    try:
        found = {ip_address(host.strip("[]"))}
    except ValueError:
        try:
            every = {str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, None)}
        except OSError:
            return host.rstrip(".").lower() == "localhost"
        found = set(map(ip_address, every))
    return all((getattr(one, "ipv4_mapped", None) or one).is_loopback for one in found)


def _host(header: str) -> str:
    """Without port, brackets and final dot; "" if it is not a host."""
    bare = f"[{header}]" if header.count(":") > 1 and not header.startswith("[") else header
    found = HOST.fullmatch(bare)
    return (found[1] or found[2]).rstrip(".").lower() if found else ""


def check_origin(origin: str) -> str:
    """As browsers send it; anything else would never match."""
    if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+", origin):
        raise ValueError(f"--allow-origin {origin!r} is not an origin, such as https://me.org (no path or final slash)")
    return origin


class KnownHost:
    """Refuses requests whose Host header is not one of `hosts`."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            if len(given) != 1 or _host(given[0]) not in self.hosts:
                shown = " and ".join(map(repr, given)) or "none"
                message = f"the Host header is {shown}, not a name of this server; to allow it: --allow-host NAME"
                await _refuse(scope, send, RefusedError(403, message))
                return
        await self.app(scope, receive, send)


class WholeBody:
    """Buffers the whole request before it is handled: at most `limit` bytes after its head, within `seconds`."""

    def __init__(self, app: ASGIApp, limit: int, seconds: float) -> None:
        self.app, self.limit, self.seconds = app, limit, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._read(scope, receive), self.seconds)
        except TimeoutError:
            await _refuse(scope, send, RefusedError(408, "the request did not arrive in time"))
        except RefusedError as error:
            await _refuse(scope, send, error)
        else:
            await self.app(scope, _replay(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        head = len(scope["raw_path"]) + len(scope["query_string"]) + sum(map(len, chain(*scope["headers"])))
        if head > MOST_HEAD:
            raise RefusedError(431, f"the address and headers are {head} bytes, more than {MOST_HEAD}")
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit():
            raise RefusedError(400, "the Content-Length is not a number")
        body, more = bytearray(), int(declared) <= self.limit
        while more and len(body) <= self.limit:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RefusedError(499, "the client disconnected")
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if max(int(declared), len(body)) > self.limit:
            raise RefusedError(413, f"the request is larger than {self.limit} bytes")
        return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """The buffered body as one message, then whatever the connection sends."""
    replayed = False

    async def next_message() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


async def _refuse(scope: Scope, send: Send, error: RefusedError) -> None:
    body = json.dumps(error_body(scope["path"], error.status, error.message)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    head = [*headers, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": error.status, "headers": head})
    await send({"type": "http.response.body", "body": body})


class Keys:
    """The API keys, if any. They are compared in constant time, as digests: not even their lengths can be measured."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [hashlib.sha256(key.encode()).digest() for key in keys if key]

    @property
    def required(self) -> bool:
        return bool(self._keys)

    def check(self, given: str | None) -> None:
        if not self._keys:
            return
        if not given:
            raise RefusedError(403, "an API key is required: send it as api_key, or as a Bearer token")
        sent = hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()
        same = [hmac.compare_digest(sent, key) for key in self._keys]  # every key, even after a match
        if not any(same):
            raise RefusedError(403, "this API key is not valid")


def read_keys(file: Path | None, environment: str | None) -> list[str]:
    """One per line in the file, comma-separated in the environment variable."""
    found = environment.split(",") if environment else []
    if file is not None:
        found += file.read_text(encoding="utf-8").splitlines()
    keys = [key.strip() for key in found if key.strip()]
    if not keys and (file is not None or environment):
        raise ValueError(f"{file or 'HEEDFUL_API_KEYS'} contains no API key")
    return keys


def bearer(headers: Any) -> str | None:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if kind.lower() == "bearer" else None
