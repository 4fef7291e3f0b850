"""`heedful serve` and `heedful inspect`: models over HTTP, and the same page as a file."""

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from heedful import startup
from heedful.commands.languages import From, To
from heedful.commands.options import Parts


def serve(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help="Model folders, of any task.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 = all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free port.")] = 8000,
    api_keys: Annotated[
        Path | None, typer.Option(help="File with API keys, one per line; or set HEEDFUL_API_KEYS, comma-separated.")
    ] = None,
    source: Annotated[str, typer.Option("--from", help="Source language, such as en, if the recipe names none.")] = "",
    target: Annotated[str, typer.Option("--to", help="Target language, if the recipe names none.")] = "",
    adapter: Annotated[
        list[str] | None,
        typer.Option(help="Adapter (lora) of the model, FOLDER or NAME=FOLDER; requests choose it as their model."),
    ] = None,
    streams: Annotated[int, typer.Option(min=0, help="Batches translated in parallel; 0 = one per core.")] = 0,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Source tokens per batch.")] = 2048,
    wait: Annotated[float, typer.Option(min=0, max=1, help="Seconds a request may wait to be batched.")] = 0.005,
    queue: Annotated[int, typer.Option(min=1, help="Sentences that may wait; beyond that, 429.")] = 1024,
    char_limit: Annotated[int, typer.Option(min=1, help="Maximum characters per request.")] = 20_000,
    batch_limit: Annotated[int, typer.Option(min=1, help="Maximum texts per request.")] = 256,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds before a request is answered with 503.")] = 60.0,
    connections: Annotated[int, typer.Option(min=1, help="Maximum open connections; beyond that, 503.")] = 4096,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Further name of this server in the Host header; see docs/serving.md.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", "--cors", help="Web origin whose pages may use it: https://me.org, or *."),
    ] = None,
    proxy: Annotated[
        list[str] | None, typer.Option(help="Address of a reverse proxy whose X-Forwarded headers are believed.")
    ] = None,
    quantize: Annotated[str, typer.Option(help="int8: a quarter of the memory for weights; CPU only.")] = "",
    access_log: Annotated[bool, typer.Option(help="Log each request as a line of JSON, without its text.")] = True,
    parts: Parts = None,
) -> None:
    """Start an HTTP server with a web page: LibreTranslate's API, OpenAI's for language models and embeddings, Cohere's
    and Jina's for reranking, and a native one.

    /docs describes the API, /metrics is for Prometheus. On Ctrl-C or SIGTERM, accepted requests are finished first.

    Examples:

      heedful serve runs/my-model

      heedful serve runs/en-de runs/de-en --port 5000

      heedful serve runs/my-model --from en --to de

      heedful serve runs/base --adapter law=runs/law --adapter medicine=runs/medicine

      curl -d q=Hello -d source=en -d target=de http://127.0.0.1:8000/translate

      curl --json '{"inputs": "a great film"}' http://127.0.0.1:8000/api/predict
    """
    try:
        import uvicorn

        from heedful.serving.connections import check_proxy, configured
        from heedful.serving.server import create_app, log_to_stderr
    except ModuleNotFoundError as error:
        raise ValueError(f"serving needs {error.name}: pip install 'heedful[serve]'") from None
    startup.load("heedful.serving.models")
    from heedful.serving.context import Context, Options
    from heedful.serving.limits import Keys, allowed_hosts, check_origin, read_keys
    from heedful.serving.metrics import Metrics
    from heedful.serving.models import EngineSettings, Models

    keys = Keys(read_keys(api_keys, os.environ.get("HEEDFUL_API_KEYS")))
    hosts = allowed_hosts(host, allow_host or ())
    origins, proxies = tuple(map(check_origin, allow_origin or ())), tuple(map(check_proxy, proxy or ()))
    metrics = Metrics()
    settings = EngineSettings(streams, batch_tokens, wait, queue, quantize)
    loaded = Models(models, settings, metrics.watch, (source, target), _named(adapter or ()))
    options = Options(characters=char_limit, texts=batch_limit, timeout=timeout, hosts=hosts, origins=origins)
    if access_log:
        log_to_stderr()
    app = create_app(Context(loaded, keys, metrics, options))
    config = configured(app, host=host, port=port, connections=connections, proxies=proxies, timeout=timeout)
    socket = _bound(config)
    socket.listen(config.backlog)  # from here on connections are accepted, although the first answers take a moment
    address, number = socket.getsockname()[:2]
    print(f"heedful: http://{address}:{number} (page; /docs for the API), Ctrl-C to stop", file=sys.stderr, flush=True)
    for model in loaded.translating:
        if not model.named:
            codes = f"LibreTranslate clients must ask for {model.source} and {model.target}"
            print(
                f"warning: the languages of {model.name} are unknown, so {codes}; set them: --from en --to de",
                file=sys.stderr,
                flush=True,
            )
    uvicorn.Server(config).run(sockets=[socket])


def _named(given: Sequence[str]) -> dict[str, Path]:
    """NAME=FOLDER, or FOLDER by its own name."""
    found: dict[str, Path] = {}
    for one in given:
        name, equals, folder = one.partition("=")
        place = Path(folder if equals else one)
        name = name if equals else place.resolve().name
        if not name or name in found:
            raise ValueError(f"two adapters are called {name!r}; name them: --adapter NAME=FOLDER")
        found[name] = place
    return found


def _bound(config: Any) -> Any:
    """The bound socket, with a ValueError if the port is taken, where uvicorn would exit the process."""
    import socket

    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        with socket.socket(family) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((config.host, config.port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"port {config.port} is in use; choose another with --port, or 0 for any") from None
        raise ValueError(f"cannot listen on {config.host}:{config.port}: {error.strerror}") from None
    return config.bind_socket()


def inspect(
    model: Annotated[Path, typer.Argument(help="Folder of a translator, chatter, classifier or regressor.")],
    text: Annotated[str, typer.Argument(help="The text to translate, answer or read; several are separated by tabs.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("inspect.html"),
    num_beams: Annotated[
        int, typer.Option("--num-beams", "--beam-size", "-b", min=1, help="Beam size; 1 = greedy.")
    ] = 4,
    target_prefix: Annotated[str, typer.Option(help="Forced beginning of the translation.")] = "",
    source: From = "",
    target: To = "",
    label: Annotated[str, typer.Option(help="The label to explain. Default: the most likely.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the page's data as JSON.")] = False,
    parts: Parts = None,
) -> None:
    """Write a self-contained HTML page that shows how a text is translated: tokens, attention heads, decoding steps.

    A text that is too long for the model is translated in parts; the page then shows the first part.

    For a classifier or regressor it shows which words decided, and prints them: by gradient x input, and by how much
    the probability drops if a word is masked.

    Examples:

      heedful inspect runs/my-model "The cat sleeps." --out cat.html

      heedful inspect runs/my-classifier "a great film" --label pos
    """
    import json

    import heedful

    try:
        from heedful.serving.page import one_file
    except ModuleNotFoundError as error:
        raise ValueError(f"the page needs {error.name}: pip install 'heedful[serve]'") from None
    from heedful.files import write_text

    data = heedful.inspect(model, text, num_beams=num_beams, target_prefix=target_prefix, label=label, source=source,
                           target=target)  # fmt: skip
    if as_json:
        print(json.dumps(data, ensure_ascii=False))
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, one_file(data))
    if "decisive" in data["inspected"]:
        _print_decisive(data)
    print(out)


def _print_decisive(data: dict[str, Any]) -> None:
    """The prediction, and the words that decided it, the one that counts most first."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    found, texts = data["inspected"]["decisive"], data["inputs"]
    table = Table("word", title=escape(f"{found['target']} {found['value']:.3f}"), title_justify="left")
    if len(texts) > 1:
        table.add_column("text")
    for name in ("gradient", "occlusion"):
        table.add_column(name, justify="right")
    for word in sorted(found["words"], key=lambda word: -abs(word["gradient"])):
        row = [escape(word["text"])] + [texts[word["input"]]] * (len(texts) > 1)
        drop = "" if word["occlusion"] is None else f"{word['occlusion']:+.3f}"
        table.add_row(*row, f"{word['gradient']:+.3f}", drop)
    Console().print(table)
