"""Everything there is to see of one translation, as plain data: what the page draws and the API sends."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from heedful.bank import choosing, numbers
from heedful.decoding.beam import History
from heedful.decoding.generation import GenerationConfig
from heedful.decoding.runner import Request
from heedful.generator import Generator
from heedful.inspection.attention import look, stacked
from heedful.model.architecture import Model
from heedful.model.multihead import MemoryAttention, SelfAttention
from heedful.model.position import Position
from heedful.model.record import recorded
from heedful.text.tokenizer import Tokenizer
from heedful.text.words import word_spans, words
from heedful.translator import Translation, Translator

MOST_TOKENS = 256  # weights grow with the square
SHOWN_PLACES, SHOWN_COLUMNS = 24, 128  # of a picture of positions


def inspect(translator: Translator, request: Request, *, num_beams: int = 4) -> dict[str, Any]:
    """Translate a text and look inside. Of a text that is translated in parts, the inside shown is the first part's."""
    if not request.text.strip():
        raise ValueError("the text is empty")
    several = num_beams if translator.stepwise else 1
    config = GenerationConfig(num_beams=num_beams, num_return_sequences=several)
    first, *others = parts_of(translator, request)
    has, history = translator.aligner is not None, translator.stepwise
    found = translator.translate(request, config, alignment=has, history=history)
    alone = replace(request, text=first, required=(), banned=(), context=())
    shown = translator.translate(alone, config, history=history) if others else found
    with choosing(numbers([request.adapter], translator.adapters)):
        seen = inspected(translator, alone, shown, parts=1 + len(others))
    return {"text": request.text, "translation": described(translator, request.text, found), "inspected": seen}


def parts_of(translator: Translator, request: Request) -> list[str]:
    """The parts in which a request is translated; sentences stay together where something must be written."""
    return translator.parts(request.text, split=False if request.prefix or request.required else None)


def described(translator: Translator, text: str, found: Translation) -> dict[str, Any]:
    return {
        "source_words": words(text),
        "text": found.text,
        "score": found.score,
        "tokens": tokens_of(translator.target, found.tokens),
        "token_log_probs": found.token_log_probs,
        "words": confidence(translator.target, found.text, found.tokens, found.token_log_probs),
        "alignment": found.alignment,
        "stepwise": translator.stepwise,
        "fertilities": word_fertilities(translator.source, text, found.fertilities),
        "alternatives": [{"text": one.text, "score": one.score} for one in found.alternatives],
        "warnings": found.warnings,
    }


def word_fertilities(tokenizer: Tokenizer, text: str, fertilities: list[int] | None) -> list[int] | None:
    """How many target tokens each word of the source stands for, and last, its </s>; None for a model that has no
    fertilities, and for a text translated in parts."""
    pieces, spans = tokenizer.pieces(text), word_spans(text)
    if fertilities is None or len(fertilities) != len(pieces) + 1:
        return None
    counts = [0] * len(spans)
    for (_, start, end), count in zip(pieces, fertilities[:-1], strict=True):
        inside = [place for place, (first, last) in enumerate(spans) if first < end and start < last]
        if inside:
            counts[inside[0]] += count
    return [*counts, sum(fertilities) - sum(counts)]


def check_weights(model: nn.Module, lengths: dict[str, int], most: int | None) -> None:
    """An error if there are more weights to show than `most`. `lengths`: tokens of the encoder's and decoder's text."""
    if most is None:
        return
    count = 0
    for name, module in model.named_modules(remove_duplicate=False):
        own = lengths.get(name.partition(".")[0], max(lengths.values()))
        if isinstance(module, MemoryAttention):
            count += module.heads * own * lengths["encoder"]
        elif isinstance(module, SelfAttention):
            count += module.output.in_features // module.head * own * own
    if count > most:
        tokens = " and ".join(f"{length} tokens" for length in lengths.values())
        raise ValueError(
            f"too long to inspect: {tokens} in all heads and layers of this model make {count} attention weights, more "
            f"than the limit of {most}; shorten the text"
        )


def inspected(
    translator: Translator, request: Request, found: Translation, *, parts: int = 1, most_weights: int | None = None
) -> dict[str, Any]:
    """Everything to be seen of one translation. Weights are rounded to three places; they are what the model used.

    `request` and `found` are one pass through the model: the first of so many parts, if the text was too long for one.
    """
    text, languages = request.text, (request.source, request.target)
    framing = translator.languages.framing(*languages)
    source = [*framing.before, *translator.source.encode([text.strip()])[0], *framing.after[1:]]
    check_weights(translator.models[0], {"encoder": len(source) + 1, "decoder": len(found.tokens) + 1}, most_weights)
    seen = look(translator, text, found.tokens, languages=languages, fertilities=found.fertilities)
    return {
        "part": {"number": 1, "count": parts, "text": text.strip()},
        "source": tokens_of(translator.source, source),
        "target": tokens_of(translator.target, found.tokens),
        "translation": found.text,
        "score": found.score,
        "token_log_probs": found.token_log_probs,
        "attention": {
            kind: {"queries": queries, "keys": keys, "weights": rounded(weights)}
            for kind in seen.kinds()
            for weights, queries, keys in [seen.of(kind)]
        },
        "aligner": None if translator.aligner is None else [translator.aligner.layer, translator.aligner.head],
        "history": _history(translator.target, found.history or []),
        "positions": position_picture(translator.models[0], len(source) + 1),
    }


def position_picture(model: Model, length: int) -> dict[str, Any]:
    """How the encoder's position scheme tells `length` places apart: `kind`, where it acts (`embedding`, `rotation`,
    `bias`, or None where it has no picture) and the numbers, a row per place."""
    position = getattr(getattr(model, "encoder", None), "position", None)
    if not isinstance(position, Position):
        return {"kind": None, "acts": None, "rows": []}
    kind = type(position).__module__.rpartition(".")[2]
    count = min(max(length, SHOWN_PLACES), position.limit or SHOWN_PLACES)
    places = torch.arange(count, device=model.device)[None]
    with torch.inference_mode():
        added = position.embed(torch.zeros(1, count, model.config.width, device=model.device), places)
        rotation, bias = position.rotation(places), position.bias(places, places)
    if bool(added.any()):
        return {"kind": kind, "acts": "embedding", "rows": rounded(added[0, :, :SHOWN_COLUMNS].float())}
    if rotation is not None:
        return {"kind": kind, "acts": "rotation", "rows": rounded(rotation[0][0, 0].float())}
    if bias is not None:
        return {"kind": kind, "acts": "bias", "rows": rounded(bias[0, 0].float())}
    return {"kind": kind, "acts": None, "rows": []}


@torch.inference_mode()
def look_ahead(generator: Generator, text: str, top: int, *, most_weights: int | None = None) -> dict[str, Any]:
    """What a language model would write next, and what each of its heads looks at. Only the last tokens are read."""
    tokens = (generator.tokenizer.encode([text])[0] or [generator.tokenizer.start])[
        -min(MOST_TOKENS, generator.limit or MOST_TOKENS) :
    ]
    check_weights(generator.model, {"decoder": len(tokens)}, most_weights)
    with recorded(generator.model, SelfAttention) as attentions:
        logits = generator.model(torch.tensor([tokens], device=generator.device))[0, -1].float()
    values, places = logits.softmax(-1).topk(min(top, len(logits)))
    weights = stacked(attentions)
    shown = [one["text"] for one in tokens_of(generator.tokenizer, tokens)]
    return {
        "tokens": tokens_of(generator.tokenizer, tokens),
        "next": [
            {**one, "probability": value}
            for one, value in zip(tokens_of(generator.tokenizer, places.tolist()), values.tolist(), strict=True)
        ],
        "attention": {"queries": shown, "keys": shown, "weights": rounded(weights)},
    }


def tokens_of(tokenizer: Tokenizer, tokens: list[int]) -> list[dict[str, Any]]:
    texts = tokenizer.decode([[token] for token in tokens])
    return [{"id": token, "text": text or tokenizer.token(token)} for token, text in zip(tokens, texts, strict=True)]


def confidence(
    tokenizer: Tokenizer, written: str, tokens: Sequence[int], log_probs: Sequence[float]
) -> list[dict[str, Any]]:
    """Each word with the probability of its least likely token: a chain is as sure as its weakest link."""
    sure: list[float] = []  # for each character but spaces
    group: list[int] = []  # tokens that make up whole characters
    worst = 1.0
    for token, log_prob in zip(tokens, log_probs, strict=False):
        group, worst = [*group, token], min(worst, math.exp(log_prob))
        (text,) = tokenizer.decode([group])
        if "\ufffd" not in text or len(group) >= 4:
            sure += [worst] * len("".join(text.split()))
            group, worst = [], 1.0
    shown, place = [], 0
    for word in words(written):
        probability = min(sure[place : place + len(word)], default=1.0)
        shown.append({"text": word, "probability": probability})
        place += len(word)
    return shown


def _history(tokenizer: Tokenizer, history: History) -> list[list[dict[str, Any]]]:
    return [
        [
            {
                "parent": one.parent,
                "token": one.token,
                "text": "</s>" if one.token == tokenizer.eos else tokenizer.decode([[one.token]])[0],
                "log_prob": one.log_prob,
                "score": one.score,
                "beam": one.beam,
                "ended": one.ended,
            }
            for one in step
        ]
        for step in history
    ]


def rounded(weights: torch.Tensor) -> list[Any]:
    found: list[Any] = weights.double().numpy().round(3).tolist()
    return found
