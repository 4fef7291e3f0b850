"""The models that a server offers: loaded, found by language or name, swapped while it runs."""

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch

import heedful
from heedful.checkpoint import read_config
from heedful.config import part_config
from heedful.generator import Generator
from heedful.model.architecture import SequenceToSequence
from heedful.serving.engine import BusyError, Engine, Watch
from heedful.tasks import TaskConfig
from heedful.translator import Translator

T = TypeVar("T")

# Names of the languages most often met; any other code is its own name.
NAMES = {
    "ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English", "es": "Spanish",
    "fi": "Finnish", "fr": "French", "he": "Hebrew", "hi": "Hindi", "hu": "Hungarian", "id": "Indonesian",
    "it": "Italian", "ja": "Japanese", "ko": "Korean", "nl": "Dutch", "no": "Norwegian", "pl": "Polish",
    "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish", "th": "Thai", "tr": "Turkish",
    "uk": "Ukrainian", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip


# What LibreTranslate's clients must ask for where neither the recipe nor the command line names the languages.
UNNAMED = ("src", "tgt")
CODE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]+)*")
LONGEST_EXAMPLE = 300  # characters


@dataclass(frozen=True)
class Translating:
    """A translator at work. Languages that are not known are called `src` and `tgt`. `example`: a sentence to begin
    with, of those that were kept out of training."""

    name: str
    folder: Path
    source: str
    target: str
    translator: Translator
    engine: Engine
    example: str | None = None

    @property
    def named(self) -> bool:
        """Whether both languages are known."""
        return self.source != UNNAMED[0] and self.target != UNNAMED[1]

    def close(self) -> None:
        self.engine.close()


class Writing:
    """A language model. It writes one text after the other; at most `limit` wait."""

    def __init__(self, name: str, folder: Path, generator: Generator, limit: int = 64) -> None:
        self.name, self.folder, self.generator, self.limit = name, folder, generator, limit
        self.waiting = 0
        self._counting = threading.Lock()
        self._thread = ThreadPoolExecutor(1)

    def run(self, work: "Callable[..., T]", *arguments: Any) -> "Future[T]":
        with self._counting:
            if self.waiting >= self.limit:
                raise BusyError
            self.waiting += 1
        future = self._thread.submit(work, *arguments)
        future.add_done_callback(lambda _: self._done())
        return future

    def _done(self) -> None:
        with self._counting:
            self.waiting -= 1

    def close(self) -> None:
        """Finish what was accepted."""
        self._thread.shutdown()


@dataclass(frozen=True)
class EngineSettings:
    """`streams` 0: one for each core, and one thread each, on a CPU; one on a GPU."""

    streams: int = 0
    batch_tokens: int = 2048
    wait: float = 0.005
    queue: int = 1024
    quantize: str = ""

    def count(self) -> int:
        return self.streams or (1 if torch.cuda.is_available() else max(1, torch.get_num_threads()))


class Models:
    """`languages`: the codes of source and target, for models whose recipes name none; "" leaves one unnamed."""

    def __init__(
        self,
        folders: Sequence[Path],
        settings: EngineSettings,
        watch: Callable[[str], Watch],
        languages: tuple[str, str] = ("", ""),
    ) -> None:
        self.settings, self._watch, self._languages = settings, watch, languages
        for code in filter(None, languages):
            if not CODE.fullmatch(code):
                raise ValueError(f"{code!r} is not a language code, such as en or pt-BR")
        self._changing = threading.Lock()
        self.folders = list(folders)
        self._unnamed = False  # whether some recipe leaves a language open
        self.all: dict[str, Translating | Writing] = {}
        names = _names(self.folders)
        for folder, name in zip(self.folders, names, strict=True):
            self.all[name] = self._load(folder, name)
        if any(languages) and not self._unnamed:
            self.close()
            known = ", ".join(f"{model.name} is {model.source} to {model.target}" for model in self.translating)
            raise ValueError(f"no model here needs its languages named: {known or 'none is a translator'}")

    @property
    def translating(self) -> list[Translating]:
        return [model for model in self.all.values() if isinstance(model, Translating)]

    @property
    def writing(self) -> list[Writing]:
        return [model for model in self.all.values() if isinstance(model, Writing)]

    def sources(self) -> list[str]:
        return sorted({model.source for model in self.translating})

    def find(self, source: str, target: str) -> Translating | None:
        """By codes; `pt-BR` will do for `pt`."""
        for model in self.translating:
            if _speaks(source, model.source) and _speaks(target, model.target):
                return model
        return None

    def languages(self) -> list[dict[str, object]]:
        codes = sorted({code for model in self.translating for code in (model.source, model.target)})
        return [
            {
                "code": code,
                "name": NAMES.get(code, code),
                "targets": sorted({model.target for model in self.translating if model.source == code}),
            }
            for code in codes
        ]

    def reload(self, name: str) -> None:
        """Load the folder again. Who is being served by the old model is served to the end by it."""
        with self._changing:
            old = self.all[name]
            self.all[name] = self._load(old.folder, name)
        old.close()

    def close(self) -> None:
        for model in self.all.values():
            model.close()

    def _load(self, folder: Path, name: str) -> Translating | Writing:
        config = read_config(folder)
        kind = (config.get("task") or {"kind": "translation"})["kind"]
        contract = part_config(TaskConfig, kind).trains
        translates = issubclass(contract, SequenceToSequence)
        options: dict[str, Any] = {"quantize": self.settings.quantize, "streams": 1} if translates else {}
        found = heedful.load(folder, **options)  # the engine has streams of its own
        if isinstance(found, Generator):
            return Writing(name, folder, found)
        if not isinstance(found, Translator):
            raise ValueError(f"{folder}: models of the task {kind} are not served yet; use heedful predict")
        given = config.get("data", {})
        recipe = (given.get("source_language") or "", given.get("target_language") or "")
        self._unnamed = self._unnamed or not all(recipe)
        source, target = (
            own or told or unnamed for own, told, unnamed in zip(recipe, self._languages, UNNAMED, strict=True)
        )
        if source != UNNAMED[0]:
            found.language = source  # sentences end by the rules of a language
        engine = Engine(
            found,
            streams=self.settings.count(),
            batch_tokens=self.settings.batch_tokens,
            wait=self.settings.wait,
            limit=self.settings.queue,
            watch=self._watch(name),
        )
        return Translating(name, folder, source, target, found, engine, _example(folder))


def _example(folder: Path) -> str | None:
    """The first source of test.tsv, which training writes, that is neither empty nor long; None without one."""
    try:
        with (folder / "test.tsv").open(encoding="utf-8", errors="replace") as lines:
            sources = (line.partition("\t")[0].strip() for line in islice(lines, 100))
            return next((source for source in sources if 0 < len(source) <= LONGEST_EXAMPLE), None)
    except OSError:
        return None


def _speaks(asked: str, has: str) -> bool:
    return asked == has or asked.partition("-")[0].lower() == has.lower()


def _names(folders: Sequence[Path]) -> list[str]:
    """The folder's own name, or its path where two would be the same."""
    own = [folder.resolve().name for folder in folders]
    return [name if own.count(name) == 1 else str(folder) for name, folder in zip(own, folders, strict=True)]
