"""Dialogues: read what was said, write the reply. By an encoder-decoder, which encodes the history, or by a language
model, which reads history and reply as one text and learns the reply alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, model_validator

from heedful.chatter import Chatter
from heedful.data.columns import Column, Columns, Turns
from heedful.data.dialogues import read_dialogues, roles_known
from heedful.data.lines import Line
from heedful.data.prepare import Prepared
from heedful.decoding.generation import GenerationConfig
from heedful.model.architecture import Model
from heedful.tasks import Direction, Settings, TaskConfig
from heedful.tasks._replies import Replies, figures, fitted_writer, open_chatter
from heedful.text.tokenizer import CHAT_TOKENS

SCORED = 100  # replies written per validation


class DialogueConfig(TaskConfig):
    """learn      whose messages are learned: assistant, user, or both
    history    how many messages before a reply are read; 0 = all that fit data.max_length tokens
    speakers   who is who, for names in the files that are not known: {clerk: assistant}
    """

    trains: ClassVar[type[Model]] = Model  # a sequence-to-sequence or a language model: see `fitted`
    metrics: ClassVar[Mapping[str, Direction]] = {
        "loss": "lower", "accuracy": "higher", "perplexity": "lower", "bleu": "higher", "distinct1": "higher",
        "distinct2": "higher",
    }  # fmt: skip
    specials: ClassVar[tuple[str, ...]] = CHAT_TOKENS
    writes: ClassVar[bool] = True
    note: ClassVar[str] = (
        f"BLEU and distinct-n are those of greedy replies to at most {SCORED} histories, to monitor training; "
        "`heedful evaluate` gives the figures to report."
    )
    learn: tuple[str, ...] = ("assistant",)
    history: int = Field(0, ge=0)
    speakers: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _roles_are_known(self) -> "DialogueConfig":
        roles_known([*self.learn, *self.speakers.values()])
        if not self.learn:
            raise ValueError("task.learn names nobody; choose assistant, user, or both")
        return self

    @property
    def columns(self) -> Columns:
        names = tuple((name.casefold(), role) for name, role in sorted(self.speakers.items()))
        turns = Turns(self.learn, self.history, names)
        return (Column("history", "messages", turns=turns), Column("reply"), Column("dialogue", "raw"))

    def positions(self, longest: int) -> dict[str, int]:
        return {"encoder": longest + 1, "decoder": 2 * longest + 1}  # a language model reads history and reply

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        return fitted_writer(model, prepared, self.kind)

    def build(self, prepared: Prepared, settings: Settings) -> Replies:
        return Replies(prepared, settings, scored=SCORED)

    def open(self, folder: Path, *others: Path, **options: Any) -> Chatter:
        return open_chatter(folder, *others, **options)

    def figures(self, use: Any, test: Path, config: GenerationConfig) -> dict[str, Any]:
        lines = [line for line in read_dialogues([test], self.columns) if isinstance(line, Line)]
        return figures(use, test, lines, config)
