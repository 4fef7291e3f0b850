"""Everything there is to see of one prediction of a classifier or regressor, as plain data: tokens, the attention of
every head, and which words decided."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from heedful.inspection.attention import stacked
from heedful.inspection.decisive import MOST_OCCLUDED, decisive, split
from heedful.inspection.details import MOST_TOKENS, check_weights, position_picture, rounded, tokens_of
from heedful.model.multihead import SelfAttention
from heedful.model.record import recorded
from heedful.tasks._reading import read, windows
from heedful.tasks.classification import Classifier
from heedful.tasks.regression import Regressor

Judge = Classifier | Regressor  # of models of other tasks there is nothing to see yet


def inspect(
    use: Judge,
    line: str,
    *,
    label: str = "",
    most: int = MOST_OCCLUDED,
    most_weights: int | None = None,
    until: float = math.inf,
) -> dict[str, Any]:
    """The prediction for a text (or a pair, separated by a tab), and what is inside. `label`: the one to explain; by
    default the most likely. `until`: when to give up, on the clock of time.monotonic()."""
    (texts,) = use.opened.texts([line])
    seen = inspected(use, texts, label=label, most=most, most_weights=most_weights, until=until)
    (prediction,) = use.predict([line])
    return {
        "text": "\t".join(texts),
        "inputs": [column.name for column in use.opened.columns if column.is_text],
        "prediction": prediction,
        "inspected": seen,
    }


def inspected(
    use: Judge,
    texts: Sequence[str],
    *,
    label: str = "",
    most: int = MOST_OCCLUDED,
    most_weights: int | None = None,
    until: float = math.inf,
) -> dict[str, Any]:
    """Of a text that is read in several windows, tokens and attention are those of the first; which words decided is
    found over all. Weights are rounded to three places; they are what the model used."""
    opened = use.opened
    rows, _ = split(texts, opened.tokenizer)
    if (size := sum(map(len, rows))) > MOST_TOKENS:
        raise ValueError(f"too long to inspect: {size} tokens exceed the limit of {MOST_TOKENS}")
    shown = windows([rows], opened.tokenizer, length=opened.length)
    check_weights(opened.model, {"encoder": shown.tokens.shape[1]}, most_weights)
    first = replace(shown, tokens=shown.tokens[:1], types=shown.types[:1], valid=shown.valid[:1])
    with torch.inference_mode(), recorded(opened.model, SelfAttention) as attentions:
        read(opened.model, first.to(opened.model.device))
    tokens = tokens_of(opened.tokenizer, shown.tokens[0][shown.valid[0]].tolist())
    weights = stacked(attentions)[..., : len(tokens), : len(tokens)]
    names = [one["text"] for one in tokens]
    attention = {"encoder": {"queries": names, "keys": names, "weights": rounded(weights)}} if len(weights) else {}
    return {
        "part": {"number": 1, "count": len(shown.tokens), "text": "".join(names)},
        "tokens": tokens,
        "attention": attention,
        "positions": position_picture(opened.model, len(tokens)),
        "decisive": decisive(use, texts, label=label, most=most, until=until).as_data(),
    }
