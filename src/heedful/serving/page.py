"""The page and /docs: static files of this package; the page can also be bundled into one file."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
# Run no script and use no style but those of files here, load nothing from other hosts, and forbid framing.
SAFE = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; form-action 'none'; "
    "frame-ancestors 'none'; base-uri 'none'",
}


def routes() -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def index() -> Response:
        return _file("page.html")

    @router.get("/docs")
    async def reference() -> Response:
        return _file("docs.html")

    @router.get("/page.css")
    async def style() -> Response:
        return _file("page.css")

    @router.get("/page.js")
    async def script() -> Response:
        return _file("page.js")

    @router.get("/readers.js")
    async def readers_script() -> Response:
        return _file("readers.js")

    @router.get("/chat.js")
    async def chat_script() -> Response:
        return _file("chat.js")

    @router.get("/docs.js")
    async def reference_script() -> Response:
        return _file("docs.js")

    return router


def one_file(data: dict[str, Any]) -> str:
    """The page as one self-contained HTML file that shows this data."""
    safe = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    html = _read("page.html")
    html = html.replace('<link rel="stylesheet" href="page.css">', f"<style>\n{_read('page.css')}</style>")
    first = f"<script>window.heedfulData = {safe};</script>\n"
    for name in ("readers.js", "chat.js", "page.js"):
        html = html.replace(f'<script src="{name}"></script>', f"{first}<script>\n{_read(name)}</script>")
        first = ""
    return html


def _read(name: str) -> str:
    return resources.files("heedful.serving").joinpath("static", name).read_text(encoding="utf-8")


def _file(name: str) -> Response:
    return Response(_read(name), media_type=KINDS[Path(name).suffix], headers=SAFE)
