"""How the server listens: settings of uvicorn, and connections that cannot hold a place by being slow.

A place is one of the connections that may be open at a time. `limits.WholeBody` bounds the body of a request.
"""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import ip_network
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from heedful.serving.limits import MOST_HEAD

PATIENCE = 15  # seconds
SENDING = 1 << 18  # bytes that the system buffers for a client
BEHIND = 4  # so many times the patience, a client may be behind with reading


def configured(
    app: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    connections: int = 4096,
    patience: int = PATIENCE,
    proxies: Sequence[str] = (),
    timeout: float = 60.0,
) -> uvicorn.Config:
    """`patience`: seconds a client may be silent, see `Connection`. `proxies`: addresses whose X-Forwarded-For and
    X-Forwarded-Proto are believed; those of others are ignored."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=Connection,
        ws="none",
        log_level="warning",
        access_log=False,
        limit_concurrency=connections,
        timeout_keep_alive=patience,
        timeout_graceful_shutdown=int(timeout) + 1,
        h11_max_incomplete_event_size=MOST_HEAD,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        server_header=False,
    )


def check_proxy(address: str) -> str:
    """An address or a network; anything else would never match."""
    try:
        ip_network(address)
    except ValueError:
        raise ValueError(f"--proxy {address!r} is not an IP address or network, such as 10.0.0.2") from None
    return address


class Connection(H11Protocol):
    """HTTP/1.1, closed if within `timeout_keep_alive` seconds the head of a request is not complete, no next request
    begins, or nothing is read of what was sent; and if the client is behind for `BEHIND` times as long, however much it
    reads. A client that keeps up with a stream may take as long as the stream does."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # writing is paused whenever something is unsent
        # A system's buffer of megabytes would hide for minutes that a client on a slow line does read.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENDING)
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reader(self.loop.time() + BEHIND * self.timeout_keep_alive)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()

    def _expect_head(self) -> None:
        """Start the clock unless it runs; stop it while a request is being answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self._reading is not None:
                self._reading.cancel()
            self._reading = None
        elif self._reading is None:
            self._reading = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def _expect_reader(self, end: float) -> None:
        wait = min(self.timeout_keep_alive, end - self.loop.time())
        unsent = self.transport.get_write_buffer_size()
        self._writing = self.loop.call_later(wait, self._check_reader, unsent, end)

    def _check_reader(self, unsent: int, end: float) -> None:
        if self.loop.time() >= end or self.transport.get_write_buffer_size() >= unsent:
            self.transport.abort()
        else:
            self._expect_reader(end)
