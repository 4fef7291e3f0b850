"""What the server does not let through: bodies too large, keys that are wrong."""

import hmac
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class RefusedError(Exception):
    """An answer in the 400s or 500s, with a line that says why."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


class BodyLimit:
    """Refuses bodies of more than `limit` bytes, whether they say so beforehand or not."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if not told.isdigit():
            await _refuse(send, 400, "the Content-Length is not a number")
            return
        if int(told) > self.limit:
            await _refuse(send, 413, f"the request is larger than {self.limit} bytes")
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.limit:
                raise RefusedError(413, f"the request is larger than {self.limit} bytes")
            return message

        await self.app(scope, counted, send)


async def _refuse(send: Send, status: int, message: str) -> None:
    body = json.dumps({"error": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body})


class Keys:
    """The API keys, if there are any. Comparing takes the same time whatever was sent."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys if key]

    @property
    def required(self) -> bool:
        return bool(self._keys)

    def check(self, given: str | None) -> None:
        if not self._keys:
            return
        if not given:
            raise RefusedError(403, "an API key is required: send it as api_key, or as a Bearer token")
        sent = given.encode("utf-8", "surrogatepass")
        same = [hmac.compare_digest(sent, key) for key in self._keys]  # all of them, found or not
        if not any(same):
            raise RefusedError(403, "this API key is not valid")


def read_keys(file: Path | None, environment: str | None) -> list[str]:
    """One a line in the file, separated by commas in the environment."""
    found = environment.split(",") if environment else []
    if file is not None:
        found += file.read_text(encoding="utf-8").splitlines()
    keys = [key.strip() for key in found if key.strip()]
    if not keys and (file is not None or environment):
        raise ValueError(f"{file or 'HEEDFUL_API_KEYS'} holds no API key")
    return keys


def bearer(headers: Any) -> str | None:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if kind.lower() == "bearer" else None
