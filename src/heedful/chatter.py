"""Talk with a model: messages in, its reply out.

>>> chatter = heedful.load("runs/talk")
>>> chatter.reply([{"role": "user", "content": "hello"}]).text
'good morning'
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.checkpoint import load_model, open_adapters, open_tokenizers, read_config
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.streams import cores
from heedful.generator import Generator, Piece, refuse_both
from heedful.generator import Prompt as Written
from heedful.model.architecture import LanguageModel, SequenceToSequence
from heedful.model.int8 import quantize_as
from heedful.text.chat import Chat, Message, Prompt, TooLongError

CONVERSATIONS = ("dialogue", "instructions")  # the tasks whose models hold conversations
NEW_TOKENS = 200
GREEDY = GenerationConfig(num_beams=1, max_new_tokens=NEW_TOKENS)


@dataclass(frozen=True)
class Reply:
    """`stopped`: why it ends, at its end or at the length limit; `dropped`: how many of the oldest messages were left
    out, since all together are too long for the model."""

    text: str
    stopped: str
    score: float
    dropped: int = 0
    prompt_tokens: int = 0


class Chatter:
    """A generator that reads conversations. `limit`: the tokens of a prompt that it was trained on."""

    def __init__(self, generator: Generator, *, limit: int | None = None) -> None:
        self.generator, self.tokenizer = generator, generator.tokenizer
        self.chat, self.trained = Chat(generator.tokenizer), limit

    def __repr__(self) -> str:
        return repr(self.generator).replace("Generator", "Chatter", 1)

    def prompt(
        self, messages: Sequence[Message], config: GenerationConfig = GREEDY, *, role: str = "assistant"
    ) -> Prompt:
        """The prompt of a conversation, with as many messages as leave room for the reply."""
        most = self.generator.limit
        if most is not None and isinstance(self.generator.model, LanguageModel):
            most -= min(config.max_new_tokens or NEW_TOKENS, most // 2)
        elif most is not None:
            most -= 1  # for the end of the source
        known = [limit for limit in (most, self.trained) if limit is not None]
        return self.chat.prompt(messages, role=role, limit=min(known) if known else None)

    def fits(self, messages: Sequence[Message], *, role: str = "assistant") -> bool:
        """Whether the last message is short enough to be read."""
        try:
            self.prompt(messages, role=role)
        except TooLongError:
            return False
        return True

    def settings(self, config: GenerationConfig) -> GenerationConfig:
        """With what else ends a reply of this model."""
        return config.model_copy(update={"stop_strings": (*config.stop_strings, *self.chat.stops)})

    def reply(
        self,
        messages: Sequence[Message],
        config: GenerationConfig = GREEDY,
        heard: Callable[[int, Piece], bool] | None = None,
    ) -> Reply:
        """The reply to a conversation. `heard`: see `Prompt` of the generator."""
        return self.replies([messages], config, heard=heard)[0]

    def replies(
        self,
        talks: Sequence[Sequence[Message]],
        config: GenerationConfig = GREEDY,
        *,
        roles: Sequence[str] = (),
        heard: Callable[[int, Piece], bool] | None = None,
    ) -> list[Reply]:
        """One for each conversation. `roles`: who replies; the assistant, if not said."""
        whose = roles or ["assistant"] * len(talks)
        prompts = [self.prompt(talk, config, role=role) for talk, role in zip(talks, whose, strict=True)]
        readings = self.generator.read([Written(one.text, heard, one.tokens) for one in prompts])
        found = self.generator.write(readings, self.settings(config))
        return [
            Reply(best.text.strip(), best.stopped, best.score, prompt.dropped, len(prompt.tokens))
            for prompt, (best, *_) in zip(prompts, found, strict=True)
        ]

    def predict(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """The reply to each text as the user's only message; several, by user and assistant in turn, separated by
        tabs."""
        roles = ("user", "assistant")
        talks = [
            [{"role": roles[place % 2], "content": text} for place, text in enumerate(line.split("\t"))]
            for line in texts
        ]
        found = self.replies(talks)
        return [
            {"text": one.text, "score": one.score, "finish_reason": one.stopped, "dropped": one.dropped}
            for one in found
        ]

    def close(self) -> None:
        self.generator.close()


def load(
    folder: str | Path,
    *,
    streams: int | None = None,
    adapters: Mapping[str, str | Path] | None = None,
    quantize: str = "",
) -> Chatter:
    """The model of a folder, to talk with: trained on dialogues or instructions, or any language model. The options are
    those of `generator.load`."""
    folder = Path(folder)
    model = load_model(folder)
    if not isinstance(model, LanguageModel | SequenceToSequence):
        raise ValueError(f"{folder}: a model of kind {model.config.kind} does not write; use heedful predict")
    config = read_config(folder)
    task = config.get("task") or "translation"
    kind = task["kind"] if isinstance(task, dict) else task
    if isinstance(model, SequenceToSequence) and kind not in CONVERSATIONS:
        raise ValueError(
            f"{folder} was trained for {kind}, not on dialogues or instructions; use heedful translate or predict"
        )
    (tokenizer,) = open_tokenizers(folder, model, columns=1)
    refuse_both(adapters, quantize)
    open_adapters(folder, model, adapters or {})
    quantize_as(model, quantize)
    streams = cores() if streams is None else streams
    generator = Generator(model, tokenizer, streams=streams, adapters=tuple(adapters or ()))
    limit = config.get("data", {}).get("max_length") if kind in CONVERSATIONS else None
    return Chatter(generator, limit=limit)
