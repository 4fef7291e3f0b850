"""LibreTranslate's API, so that its clients work unchanged."""

import re
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from heedful.data.languages import Direction
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.runner import Request as Text
from heedful.serving.context import Context, clean, read_fields
from heedful.serving.detection import detect
from heedful.serving.engine import Settings
from heedful.serving.limits import RefusedError, bearer
from heedful.serving.models import NAMES, UNNAMED, Translating
from heedful.text.markup import Html
from heedful.text.placing import Links
from heedful.translator import Translation

MOST_ALTERNATIVES = 8
STRING = {"type": "string"}
ASKED = {
    "q": {"oneOf": [STRING, {"type": "array", "items": STRING}], "description": "a text or a list of texts"},
    "source": {**STRING, "description": "a language code, or auto"},
    "target": {**STRING, "description": "a language code"},
    "format": {**STRING, "enum": ["text", "html"]},
    "alternatives": {"type": "integer", "minimum": 0, "maximum": MOST_ALTERNATIVES},
    "api_key": STRING,
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request is invalid; `error` says why."},
    403: {"description": "The API key is missing or invalid."},
    408: {"description": "The request did not arrive in time."},
    413: {"description": "The request is too large."},
    429: {"description": "Too many requests are waiting; see Retry-After."},
    503: {"description": "The request timed out, or the model is being reloaded; see Retry-After."},
}


def _body(*names: str, required: Sequence[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {name: ASKED[name] for name in names}, "required": list(required)}
    kinds = ("application/json", "application/x-www-form-urlencoded")
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}


def routes(context: Context) -> APIRouter:
    router = APIRouter(tags=["LibreTranslate"])

    @router.post(
        "/translate",
        responses=REFUSALS,
        openapi_extra=_body(*ASKED, required=("q", "source", "target")),
    )
    async def translate(request: Request) -> dict[str, Any]:
        """Translate a text or a list of texts."""
        fields = await read_fields(request)
        context.keys.check(_text(fields, "api_key", "") or bearer(request.headers))
        texts, several = _texts(fields)
        context.check_size(texts)
        target, form = _text(fields, "target"), _text(fields, "format", "text")
        if form not in ("text", "html"):
            raise RefusedError(400, f"{form} is not a supported format; use text or html")
        count = _count(fields)
        guesses = _guesses(context, texts, _text(fields, "source"))
        found = await _translate(context, request, texts, [code for code, _ in guesses], target, form, count)
        answer: dict[str, Any] = {"translatedText": [best for best, _ in found]}
        if fields.get("source") == "auto":
            answer["detectedLanguage"] = [{"confidence": sure, "language": code} for code, sure in guesses]
        if count:
            answer["alternatives"] = [others for _, others in found]
        return answer if several else {name: values[0] for name, values in answer.items()}

    @router.post("/detect", responses=REFUSALS, openapi_extra=_body("q", "api_key", required=("q",)))
    async def guess(request: Request) -> list[dict[str, Any]]:
        """Detect which of the source languages a text is in."""
        fields = await read_fields(request)
        context.keys.check(_text(fields, "api_key", "") or bearer(request.headers))
        texts, _ = _texts(fields)
        context.check_size(texts)
        code, sure = detect(" ".join(texts), context.models.sources())
        return [{"confidence": sure, "language": code}]

    @router.get("/languages")
    async def languages() -> list[dict[str, Any]]:
        """The languages, and the targets of each."""
        return context.models.languages()

    @router.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/frontend/settings")
    async def settings() -> dict[str, Any]:
        """The settings that LibreTranslate's clients query."""
        model = context.models.translating[0] if context.models.translating else None
        codes = (model.source, model.target) if model else ("", "")
        language = {
            side: {"code": code, "name": NAMES.get(code, code)}
            for side, code in zip(("source", "target"), codes, strict=True)
        }
        return {
            "charLimit": context.options.characters,
            "frontendTimeout": 500,
            "apiKeys": context.keys.required,
            "keyRequired": context.keys.required,
            "suggestions": False,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "language": language,
        }

    return router


async def _translate(
    context: Context, request: Request, texts: list[str], sources: list[str], target: str, form: str, count: int
) -> list[tuple[str, list[str]]]:
    """(best, alternatives) of each text. Texts in one language are submitted together, split at lines, or HTML
    at what separates sentences."""
    config = GenerationConfig(num_beams=max(4, count + 1), num_return_sequences=count + 1)
    found: list[tuple[str, list[str]]] = [("", [])] * len(texts)
    for source in dict.fromkeys(sources):
        known = _model(context, source, target)
        places = [place for place, code in enumerate(sources) if code == source]
        if known is None:  # from a language into itself
            for place in places:
                found[place] = (texts[place], [])
            continue
        given = await run_in_threadpool(_given, [texts[place] for place in places], form)
        model, direction = known
        spoken = direction if model.translator.languages.layout else ("", "")
        asked = [Text(part, source=spoken[0], target=spoken[1]) for one in given for part in one.texts]
        settings = Settings(config, links=any(tagged for one in given for tagged in one.tagged))
        results = await context.translate(request, model, asked, settings) if asked else []
        start = 0
        for place, one in zip(places, given, strict=True):
            end = start + len(one.texts)
            found[place] = await run_in_threadpool(_joined, one, results[start:end], count)
            start = end
    return found


def _model(context: Context, source: str, target: str) -> tuple[Translating, Direction] | None:
    found = context.models.find(source, target)
    if found is not None:
        return found
    known = {str(language["code"]) for language in context.models.languages()}
    for code in (source, target):
        if code not in known and code.partition("-")[0] not in known:
            unnamed = known.intersection(UNNAMED)
            hint = "; a model's languages are unknown: use src and tgt, or start the server with --from and --to"
            raise RefusedError(400, f"{code} is not supported{hint if unnamed else ''}")
    if source == target:
        return None
    raise RefusedError(400, f"{target} is not available as a target language from {source}")


class _Lines:
    """A text, line by line. Empty lines, and the white space around the others, are kept."""

    def __init__(self, text: str) -> None:
        self._frame: list[str | int] = []
        self.texts: list[str] = []
        for line in re.split(r"(\r?\n)", text):
            inner = line.strip()
            before, _, after = line.partition(inner) if inner else (line, "", "")
            self._frame += [before, len(self.texts), after] if inner else [before]
            self.texts += [inner] if inner else []
        self.tagged = [False] * len(self.texts)

    def join(self, translations: Sequence[str], links: Sequence[Links | None]) -> str:
        return "".join(piece if isinstance(piece, str) else translations[piece] for piece in self._frame)


def _given(texts: Sequence[str], form: str) -> "list[Html | _Lines]":
    """What there is to translate. The worst HTML takes half a second, in which others should be answered."""
    return [Html(text) if form == "html" else _Lines(text) for text in texts]


def _joined(given: Html | _Lines, found: Sequence[Translation], count: int) -> tuple[str, list[str]]:
    """(the best translation, alternatives)"""
    best = given.join([one.text for one in found], [one.alignment for one in found])
    if len(found) != 1:  # alternatives of several parts: too many combinations
        return best, []
    return best, [given.join([one.text], [one.alignment]) for one in found[0].alternatives[:count]]


def _guesses(context: Context, texts: list[str], source: str) -> list[tuple[str, float]]:
    if source != "auto":
        return [(source, 100.0)] * len(texts)
    return [detect(text, context.models.sources()) for text in texts]


def _texts(fields: dict[str, Any]) -> tuple[list[str], bool]:
    if "q" not in fields:
        raise RefusedError(400, "Invalid request: missing q parameter")
    q = fields["q"]
    texts = q if isinstance(q, list) else [q]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise RefusedError(400, "Invalid request: q is not a string or a list of strings")
    return [clean(text) for text in texts], isinstance(q, list)


def _text(fields: dict[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name, default)
    if value is None:
        raise RefusedError(400, f"Invalid request: missing {name} parameter")
    if not isinstance(value, str):
        raise RefusedError(400, f"Invalid request: {name} is not a string")
    return clean(value)


def _count(fields: dict[str, Any]) -> int:
    value = fields.get("alternatives", 0)
    try:
        count = int(value) if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)) else -1
    except ValueError:
        count = -1
    if not 0 <= count <= MOST_ALTERNATIVES:
        raise RefusedError(400, f"Invalid request: alternatives is not an integer from 0 to {MOST_ALTERNATIVES}")
    return count
