"""The attention of a translation: the weights of every layer and head, with their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.data.padding import pad
from heedful.decoding.runner import Request
from heedful.model.architecture import ParallelSequenceToSequence
from heedful.model.multihead import MemoryAttention, SelfAttention
from heedful.model.record import Recorded, recorded
from heedful.text.tokenizer import Tokenizer
from heedful.translator import Translation, Translator

KINDS = ("cross", "encoder", "decoder")
START, END, MASK = "<s>", "</s>", "<mask>"


@dataclass(frozen=True)
class Attention:
    """`source` and `target` end with </s>, and have language tokens where the model has any. `read` is the decoder's
    input, the shifted target: it begins with <s>. A model that writes all words at once reads copies of source tokens,
    or masks, and its `target` has no </s>. Weights are layers heads query key:

    encoder   source source     decoder   read read     cross   target source
    """

    source: list[str]
    target: list[str]
    encoder: Tensor
    decoder: Tensor
    cross: Tensor
    start: str = START
    inputs: list[str] | None = None  # what the decoder reads, if that is not the shifted target

    @property
    def read(self) -> list[str]:
        return [self.start, *self.target[:-1]] if self.inputs is None else self.inputs

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


def translated_parts(
    translator: Translator, text: str, languages: tuple[str, str] = ("", "")
) -> list[tuple[str, Translation]]:
    """The parts in which a text is translated, each with its own translation; one, unless the text is too long."""
    parts, (source, target) = translator.parts(text), languages
    return list(zip(parts, translator.translate(parts, source=source, target=target), strict=True))


@torch.inference_mode()
def look(
    translator: Translator,
    source: str,
    target: list[int] | None = None,
    *,
    languages: tuple[str, str] = ("", ""),
    fertilities: list[int] | None = None,
) -> Attention:
    """The attention of the first model while it generates `target` (token ids), by default its own translation.
    `languages`: of source and target, for a model that knows several.

    This is a single pass, so a text that is translated in parts is an error; see `translated_parts`. With a `target`,
    several sentences are one part if they fit. A model that writes all words at once is shown with these
    `fertilities`, by default those of its own translation; if it predicts masks, in its first pass, where all words are
    masked.
    """
    if (count := len(translator.parts(source, split=False if target is not None else None))) > 1:
        raise ValueError(f"this text is translated in {count} parts, each with its own attention; give one of them")
    model, framing = translator.models[0], translator.languages.framing(*languages)
    if target is None or (fertilities is None and not translator.stepwise):
        split = False if target is not None else None
        found = translator.translate(Request(source, source=languages[0], target=languages[1]), split=split)
        if target not in (None, found.tokens):
            raise ValueError(
                "a model that writes all words at once shows only its own translation; give no other target"
            )
        target, fertilities = found.tokens, found.fertilities
    tokens = translator.source.encode([source.strip()])[0]
    reading, _ = pad([framing.source(tokens)])
    before, after = (shown(translator.source, some) for some in ([*framing.before, *tokens], framing.after[1:]))
    names = [*before, END, *after]
    inputs: list[str] | None = None
    with recorded(model, SelfAttention) as selves, recorded(model, MemoryAttention) as crosses:
        if isinstance(model, ParallelSequenceToSequence):
            inputs = _pass(model, reading.to(translator.device), names, fertilities, len(target))
        else:
            writing, _ = pad([[framing.start, *target]])
            model(reading.to(translator.device), writing.to(translator.device))
    own = {side: [one for one in selves if one.name.startswith(side)] for side in ("encoder", "decoder")}
    return Attention(
        source=names,
        target=[*shown(translator.target, target), *([END] if translator.stepwise else [])],
        encoder=stacked(own["encoder"]),
        decoder=stacked(own["decoder"]),
        cross=stacked(crosses),
        start=START if framing.start == translator.target.start else translator.target.token(framing.start),
        inputs=inputs,
    )


def _pass(
    model: ParallelSequenceToSequence, source: Tensor, names: list[str], fertilities: list[int] | None, length: int
) -> list[str]:
    """Run a model that writes all words at once; returns what its decoder reads."""
    encoded = model.encode(source)
    if fertilities is None:
        nothing = source.new_zeros(1, length)
        model.decode(model.masked(nothing, torch.ones_like(nothing, dtype=torch.bool)), encoded)
        return [MASK] * length
    inputs, _ = model.copied(encoded, torch.tensor([fertilities], device=source.device))
    model.decode(inputs, encoded)
    return [name for name, count in zip(names, fertilities, strict=True) for _ in range(count)]


def stacked(attentions: list[Recorded]) -> Tensor:
    """The weights of the first text: layers heads query key. Empty if some layer has no weights."""
    found = [one.weights() for one in attentions]
    shown = [weights[0].float().cpu() for weights in found if weights is not None]
    return torch.stack(shown) if shown and len(shown) == len(found) else torch.zeros(0, 0, 0, 0)


def shown(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """Each token as its text; a leading space is shown as ▁."""
    return [
        text.replace(" ", "▁") or tokenizer.token(token)
        for token, text in zip(tokens, tokenizer.decode([[t] for t in tokens]), strict=True)
    ]
