"""The models of a server: loaded, found by language or name, reloaded while it runs."""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch

import heedful
from heedful.bank import choosing, numbers
from heedful.chatter import CONVERSATIONS, Chatter
from heedful.checkpoint import read_config
from heedful.config import parse
from heedful.data.languages import Direction
from heedful.decoding.runner import Request
from heedful.generator import Continuation, Generator, Prompt
from heedful.generator import Reading as PromptReading
from heedful.model.architecture import LanguageModel, SequenceToSequence
from heedful.serving.engine import Engine, Watch
from heedful.serving.predicting import Line, Predictor, ReadLine
from heedful.tasks import TaskConfig
from heedful.translator import Reading, Translation, Translator

# Names of common languages; any other code serves as its own name.
NAMES = {
    "ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English", "es": "Spanish",
    "fi": "Finnish", "fr": "French", "he": "Hebrew", "hi": "Hindi", "hu": "Hungarian", "id": "Indonesian",
    "it": "Italian", "ja": "Japanese", "ko": "Korean", "nl": "Dutch", "no": "Norwegian", "pl": "Polish",
    "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish", "th": "Thai", "tr": "Turkish",
    "uk": "Ukrainian", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip


# What LibreTranslate's clients must ask for if neither the recipe nor the command line names the languages.
UNNAMED = ("src", "tgt")
CODE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]+)*")
LONGEST_EXAMPLE = 300  # characters
WRITTEN = 8  # times the batch budget for a language model, where new tokens count as well

SeenT = TypeVar("SeenT")
TranslationEngine = Engine[Request, Reading, Translation]
WritingEngine = Engine[Prompt, PromptReading, list[Continuation]]
PredictingEngine = Engine[Line, ReadLine, Any]


@dataclass(frozen=True)
class Translating:
    """A loaded translator. Unknown languages are called `src` and `tgt`. `example`: a sentence to show first, from
    the held-out pairs."""

    name: str
    folder: Path
    source: str
    target: str
    translator: Translator
    engine: TranslationEngine
    example: str | None = None
    adapter: str = ""

    def beside(self, look: Callable[[], SeenT]) -> Callable[[], SeenT]:
        """The same, done with its adapter."""
        return _with_adapter(self.adapter, self.translator.adapters, look)

    @property
    def named(self) -> bool:
        """Whether both languages are known."""
        return self.source != UNNAMED[0] and self.target != UNNAMED[1]

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions it was trained for."""
        known = self.translator.languages
        return known.every if known.layout else (Direction(self.source, self.target),)

    @property
    def untrained(self) -> list[Direction]:
        return self.translator.languages.untrained if self.translator.languages.layout else []

    def find(self, source: str, target: str, *, untrained: bool) -> Direction | None:
        """The direction with these codes, as the model names them."""
        for one in self.untrained if untrained else self.directions:
            if _matches(source, one.source) and _matches(target, one.target):
                return one
        return None

    def close(self) -> None:
        self.engine.close()


@dataclass(frozen=True)
class Writing:
    """A loaded language model."""

    name: str
    folder: Path
    generator: Generator
    engine: WritingEngine
    chatter: Chatter
    adapter: str = ""

    def beside(self, look: Callable[[], SeenT]) -> Callable[[], SeenT]:
        """The same, done with its adapter."""
        return _with_adapter(self.adapter, self.generator.adapters, look)

    @property
    def chats(self) -> bool:
        """Whether it was trained to talk: it knows how conversations are written down."""
        return self.generator.tokenizer.chat_template is not None

    def close(self) -> None:
        self.engine.close()


@dataclass(frozen=True)
class Predicting:
    """A loaded model that reads. `example`: texts to show first, from the held-out rows."""

    name: str
    folder: Path
    predictor: Predictor
    engine: PredictingEngine
    example: str | None = None

    def close(self) -> None:
        self.engine.close()


Served = Translating | Writing | Predicting


def _with_adapter(name: str, known: Sequence[str], look: Callable[[], SeenT]) -> Callable[[], SeenT]:
    def looked() -> SeenT:
        with choosing(numbers([name], known)):
            return look()

    return looked


@dataclass(frozen=True)
class EngineSettings:
    """`streams` 0: on a CPU one per core, with one thread each; on a GPU one."""

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
        adapters: Mapping[str, Path] | None = None,
    ) -> None:
        self.settings, self._watch, self._languages = settings, watch, languages
        self.adapters = dict(adapters or {})
        if self.adapters and len(folders) > 1:
            raise ValueError("adapters share one base; name one model only")
        for code in filter(None, languages):
            if not CODE.fullmatch(code):
                raise ValueError(f"{code!r} is not a language code, such as en or pt-BR")
        self._changing = threading.Lock()
        self.folders = list(folders)
        self._unnamed = False  # whether some recipe does not name a language
        self.all: dict[str, Served] = {}
        names = _names(self.folders)
        for name in self.adapters:
            if name in names:
                raise ValueError(f"the adapter {name} has its base's name; call it otherwise: --adapter NAME=FOLDER")
        for folder, name in zip(self.folders, names, strict=True):
            self.all[name] = self._load(folder, name)
            self.all |= self._beside(self.all[name])
        if any(languages) and not self._unnamed:
            self.close()
            known = ", ".join(f"{model.name} is {model.source} to {model.target}" for model in self.translating)
            raise ValueError(f"no model needs --from or --to: {known or 'none is a translator'}")

    @property
    def translating(self) -> list[Translating]:
        return [model for model in self.all.values() if isinstance(model, Translating)]

    @property
    def writing(self) -> list[Writing]:
        return [model for model in self.all.values() if isinstance(model, Writing)]

    @property
    def predicting(self) -> list[Predicting]:
        return [model for model in self.all.values() if isinstance(model, Predicting)]

    def sources(self) -> list[str]:
        return sorted({one.source for model in self.translating for one in model.directions})

    def find(self, source: str, target: str) -> tuple[Translating, Direction] | None:
        """A model for these languages, one that was trained for the direction if there is any; `pt-BR` also finds
        `pt`."""
        for untrained in (False, True):
            for model in self.translating:
                if (direction := model.find(source, target, untrained=untrained)) is not None:
                    return model, direction
        return None

    def languages(self) -> list[dict[str, object]]:
        """The languages with the targets of each; `zero_shot` are targets that no model was trained for."""
        trained = {one for model in self.translating for one in model.directions}
        more = {one for model in self.translating for one in model.untrained} - trained
        found: list[dict[str, object]] = []
        for code in sorted({code for one in trained for code in one}):
            targets, others = (sorted(one.target for one in some if one.source == code) for some in (trained, more))
            found.append({"code": code, "name": NAMES.get(code, code), "targets": targets})
            if others:
                found[-1]["zero_shot"] = others
        return found

    def reload(self, name: str) -> None:
        """Reload the folder. Requests that the old model has accepted are finished by it."""
        with self._changing:
            if name in self.adapters:  # they are loaded with their base
                name = next(iter(self.all))
            old = self.all[name]
            self.all[name] = self._load(old.folder, name)
            self.all |= self._beside(self.all[name])
        old.close()

    def close(self) -> None:
        for model in self.all.values():
            model.close()

    def _beside(self, base: Served) -> dict[str, Served]:
        """The adapters of a base, as models of their own that share its engine: requests to them share its batches."""
        found: dict[str, Served] = {}
        for name, folder in self.adapters.items():
            assert not isinstance(base, Predicting)
            engine: Any = base.engine.choosing(adapter=name)
            found[name] = replace(base, name=name, folder=folder, engine=engine, adapter=name)
        return found

    def _load(self, folder: Path, name: str) -> Served:
        config = read_config(folder)
        task = parse(TaskConfig, config.get("task") or "translation")
        converses = task.kind in CONVERSATIONS
        generates = issubclass(task.trains, SequenceToSequence | LanguageModel) or converses or task.writes
        options: dict[str, Any] = {"streams": 1} if generates else {}  # the engine has its own streams
        if self.settings.quantize:
            options["quantize"] = self.settings.quantize
        if self.adapters and not generates:
            raise ValueError(f"{folder} does not write texts: its adapters are merged when they are opened; name their "
                             "folders as models")  # fmt: skip
        if self.adapters:
            options["adapters"] = self.adapters
        found = heedful.load(folder, **options)
        if isinstance(found, Generator | Chatter):
            chatter = found if isinstance(found, Chatter) else Chatter(found)
            engine = self._engine(chatter.generator, name, written=_written_by_all, larger=WRITTEN)
            return Writing(name, folder, chatter.generator, engine, chatter)
        if not isinstance(found, Translator):
            predictor = Predictor(found, task)
            engine = self._engine(predictor, name, written=lambda answer: 0)
            return Predicting(name, folder, predictor, engine, predictor.example(folder))
        if found.languages.layout:
            engine = self._engine(found, name, written=lambda one: len(one.tokens) + 1)
            return Translating(name, folder, *found.languages.every[0], found, engine, _example(folder))
        given = config.get("data", {})
        recipe = (given.get("source_language") or "", given.get("target_language") or "")
        self._unnamed = self._unnamed or not all(recipe)
        source, target = (
            own or option or unnamed for own, option, unnamed in zip(recipe, self._languages, UNNAMED, strict=True)
        )
        if source != UNNAMED[0]:
            found.language = source  # sentence splitting depends on it
        engine = self._engine(found, name, written=lambda one: len(one.tokens) + 1)
        return Translating(name, folder, source, target, found, engine, _example(folder))

    def _engine(
        self, worker: Any, name: str, *, written: Callable[[Any], int], larger: int = 1
    ) -> Engine[Any, Any, Any]:
        return Engine(
            worker,
            streams=self.settings.count(),
            batch_tokens=larger * self.settings.batch_tokens,
            wait=self.settings.wait,
            limit=self.settings.queue,
            written=written,
            watch=self._watch(name),
        )


def _written_by_all(found: list[Continuation]) -> int:
    return sum(len(one.token_log_probs) for one in found)


def _example(folder: Path) -> str | None:
    """The first source sentence of the held-out test.tsv that is neither empty nor too long, if any."""
    try:
        several = sorted(folder.glob("test.*.tsv"))
        with (several[0] if several else folder / "test.tsv").open(encoding="utf-8", errors="replace") as lines:
            sources = (line.partition("\t")[0].strip() for line in islice(lines, 100))
            return next((source for source in sources if 0 < len(source) <= LONGEST_EXAMPLE), None)
    except OSError:
        return None


def _matches(asked: str, has: str) -> bool:
    return asked == has or asked.partition("-")[0].lower() == has.lower()


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' names, or the path where two names are equal."""
    own = [folder.resolve().name for folder in folders]
    return [name if own.count(name) == 1 else str(folder) for name, folder in zip(own, folders, strict=True)]
