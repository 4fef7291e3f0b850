"""The attention of a translation: the weights of every layer and head, with their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.data.padding import pad
from heedful.decoding.runner import Request
from heedful.model.multihead import MemoryAttention, SelfAttention
from heedful.model.record import Recorded, recorded
from heedful.text.tokenizer import Tokenizer
from heedful.translator import Translation, Translator

KINDS = ("cross", "encoder", "decoder")
START, END = "<s>", "</s>"


@dataclass(frozen=True)
class Attention:
    """`source` and `target` end with </s>, and have language tokens where the model has any. `read` is the decoder's
    input, the shifted target: it begins with <s>. Weights are layers heads query key:

    encoder   source source     decoder   read read     cross   target source
    """

    source: list[str]
    target: list[str]
    encoder: Tensor
    decoder: Tensor
    cross: Tensor
    start: str = START

    @property
    def read(self) -> list[str]:
        return [self.start, *self.target[:-1]]

    def kinds(self) -> list[str]:
        """The kinds of attention that have weights to show."""
        return [kind for kind in ("encoder", "decoder", "cross") if len(getattr(self, kind))]

    def of(self, kind: str) -> tuple[Tensor, list[str], list[str]]:
        """(weights, queries, keys) of a kind of attention."""
        if kind not in KINDS:
            raise ValueError(f"attention {kind!r} is not one of {', '.join(KINDS)}")
        rows = {"cross": self.target, "encoder": self.source, "decoder": self.read}[kind]
        weights: Tensor = getattr(self, kind)
        if not len(weights):
            raise ValueError(f"this model's {kind} attention has no weights to show")
        return weights, rows, self.read if kind == "decoder" else self.source


def translated_parts(translator: Translator, text: str) -> list[tuple[str, Translation]]:
    """The parts in which a text is translated, each with its own translation; one, unless the text is too long."""
    parts = translator.parts(text)
    return list(zip(parts, translator.translate(parts), strict=True))


@torch.inference_mode()
def look(
    translator: Translator, source: str, target: list[int] | None = None, *, languages: tuple[str, str] = ("", "")
) -> Attention:
    """The attention of the first model while it generates `target` (token ids), by default its own translation.
    `languages`: of source and target, for a model that knows several.

    This is a single pass, so a text that is translated in parts is an error; see `translated_parts`. With a `target`,
    several sentences are one part if they fit.
    """
    if (count := len(translator.parts(source, split=False if target is not None else None))) > 1:
        raise ValueError(f"this text is translated in {count} parts, each with its own attention; give one of them")
    if target is None:
        target = translator.translate([Request(source, source=languages[0], target=languages[1])])[0].tokens
    model, framing = translator.models[0], translator.languages.framing(*languages)
    tokens = translator.source.encode([source.strip()])[0]
    reading, _ = pad([framing.source(tokens)])
    writing, _ = pad([[framing.start, *target]])
    with recorded(model, SelfAttention) as selves, recorded(model, MemoryAttention) as crosses:
        model(reading.to(translator.device), writing.to(translator.device))
    own = {side: [one for one in selves if one.name.startswith(side)] for side in ("encoder", "decoder")}
    return Attention(
        source=[
            *_shown(translator.source, [*framing.before, *tokens]),
            END,
            *_shown(translator.source, framing.after[1:]),
        ],
        target=[*_shown(translator.target, target), END],
        encoder=stacked(own["encoder"]),
        decoder=stacked(own["decoder"]),
        cross=stacked(crosses),
        start=START if framing.start == translator.target.start else translator.target.token(framing.start),
    )


def stacked(attentions: list[Recorded]) -> Tensor:
    """The weights of the first text: layers heads query key. Empty if some layer has no weights."""
    found = [one.weights() for one in attentions]
    shown = [weights[0].float().cpu() for weights in found if weights is not None]
    return torch.stack(shown) if shown and len(shown) == len(found) else torch.zeros(0, 0, 0, 0)


def _shown(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """Each token as its text; a leading space is shown as ▁."""
    return [
        text.replace(" ", "▁") or tokenizer.token(token)
        for token, text in zip(tokens, tokenizer.decode([[t] for t in tokens]), strict=True)
    ]
