"""Instructions: a model that does what a message asks. Read the instruction, write the answer; the answer and its end
alone are learned, in the chat template of the model that training starts from, or ours.      Wei et al. 2022; Ouyang et
al. 2022, section 3

It is the dialogue task for data that people wrote or checked: no line is lost silently, no answer is cut, and
examples may share a row (`pack`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from heedful.chatter import Chatter
from heedful.data.columns import Column, Columns, Turns
from heedful.data.dialogues import read_dialogues, roles_known
from heedful.data.inputs import refuse_faults
from heedful.data.lines import Line
from heedful.data.prepare import Prepared
from heedful.decoding.generation import GenerationConfig
from heedful.model.architecture import Model
from heedful.tasks import Direction, Settings, TaskConfig
from heedful.tasks._replies import Replies, figures, fitted_writer, open_chatter
from heedful.text.tokenizer import CHAT_TOKENS


class InstructionsConfig(TaskConfig):
    """pack       several examples in each row of a batch, of which none sees another one: the same loss and gradient;
               batches hold short and long examples alike. For language models
    too_long   an example of more than data.max_length tokens, instruction and answer together: refuse or skip; skipped
               ones are counted
    speakers   who is who, for names in `messages` that are not known: {clerk: assistant}
    """

    trains: ClassVar[type[Model]] = Model  # a sequence-to-sequence or a language model: see `fitted`
    metrics: ClassVar[Mapping[str, Direction]] = {"loss": "lower", "accuracy": "higher", "perplexity": "lower"}
    specials: ClassVar[tuple[str, ...]] = CHAT_TOKENS
    labelled: ClassVar[bool] = True
    note: ClassVar[str] = (
        "Loss, accuracy and perplexity are those of the tokens of held-out answers; `heedful evaluate` also scores "
        "answers that the model writes."
    )
    pack: bool = False
    too_long: Literal["refuse", "skip"] = "refuse"
    speakers: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _roles_are_known(self) -> "InstructionsConfig":
        roles_known([*self.speakers.values()])
        return self

    @property
    def columns(self) -> Columns:
        names = tuple((name.casefold(), role) for name, role in sorted(self.speakers.items()))
        turns = Turns(("assistant",), 0, names, whole=self.too_long)
        return (Column("history", "messages", turns=turns), Column("reply"), Column("dialogue", "raw"))

    @property
    def facts(self) -> frozenset[str]:
        return frozenset({"segments"} if self.pack else ())

    def positions(self, longest: int) -> dict[str, int]:
        return {"encoder": longest, "decoder": longest}  # instruction and answer together, with their end

    def fitted(self, model: dict[str, Any], prepared: Prepared) -> dict[str, Any]:
        return fitted_writer(model, prepared, self.kind)

    def build(self, prepared: Prepared, settings: Settings) -> Replies:
        found = Replies(prepared, settings, window=settings.max_length if self.pack else 0)
        if skipped := prepared.facts["too_long"]:
            found.notes.append(
                f"{skipped:,} examples take more than {settings.max_length} tokens, instruction and answer together, "
                "and are skipped"
            )
        return found

    def open(self, folder: Path, *others: Path, **options: Any) -> Chatter:
        return open_chatter(folder, *others, **options)

    def figures(self, use: Any, test: Path, config: GenerationConfig) -> dict[str, Any]:
        read = refuse_faults(read_dialogues([test], self.columns))
        return figures(use, test, [line for line in read if isinstance(line, Line)], config)
