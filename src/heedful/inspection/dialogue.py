"""Everything there is to see of a reply in a dialogue: the attention of an encoder-decoder, which reads the history and
writes the reply, or of a language model, which reads both as one text."""

from dataclasses import dataclass
from typing import Any

import torch

from heedful.chatter import NEW_TOKENS, Chatter
from heedful.decoding.generation import GenerationConfig
from heedful.generator import Piece
from heedful.inspection.attention import END, Attention, shown, stacked
from heedful.inspection.details import confidence, position_picture, rounded, tokens_of
from heedful.model.architecture import LanguageModel
from heedful.model.multihead import MemoryAttention, SelfAttention
from heedful.model.record import recorded
from heedful.text.words import words

LIKELY = GenerationConfig(do_sample=True, top_k=1, num_beams=1, max_new_tokens=NEW_TOKENS)  # the most likely tokens
NOTHING = torch.zeros(0, 0, 0, 0)


@dataclass(frozen=True)
class Seen:
    """A reply, its tokens (without </s>) and their log-probabilities, the tokens it replies to, and the attention."""

    text: str
    tokens: list[int]
    log_probs: list[float]
    prompt: list[int]
    dropped: int
    attention: Attention


def look(chatter: Chatter, text: str) -> Seen:
    """The most likely reply to a message; to several, by user and assistant in turn, separated by tabs."""
    if not text.strip():
        raise ValueError("the text is empty")
    roles = ("user", "assistant")
    talk = [{"role": roles[place % 2], "content": part} for place, part in enumerate(text.split("\t"))]
    pieces: list[Piece] = []

    def heard(row: int, piece: Piece) -> bool:
        pieces.append(piece)
        return True

    found = chatter.reply(talk, LIKELY, heard)
    prompt = chatter.prompt(talk, LIKELY)
    written = [one for one in pieces if one.token != chatter.tokenizer.eos]
    tokens = [one.token for one in written]
    attention = _attention(chatter, prompt.tokens, tokens)
    return Seen(found.text, tokens, [one.log_prob for one in written], prompt.tokens, found.dropped, attention)


@torch.inference_mode()
def _attention(chatter: Chatter, prompt: list[int], reply: list[int]) -> Attention:
    """In one pass over the reply as it was written."""
    model, tokenizer = chatter.generator.model, chatter.tokenizer
    device = model.device
    with recorded(model, SelfAttention) as selves, recorded(model, MemoryAttention) as crosses:
        if isinstance(model, LanguageModel):
            model(torch.tensor([[*prompt, *reply]], device=device))
        else:
            source = torch.tensor([[*prompt, tokenizer.eos]], device=device)
            model(source, torch.tensor([[tokenizer.start, *reply]], device=device))
    own = {side: stacked([one for one in selves if one.name.startswith(side)]) for side in ("encoder", "decoder")}
    target = shown(tokenizer, reply)
    if isinstance(model, LanguageModel):
        read = [*shown(tokenizer, prompt), *target]
        return Attention([], target, NOTHING, own["decoder"], NOTHING, inputs=read)
    source_names = [*shown(tokenizer, prompt), END]
    return Attention(source_names, [*target, END], own["encoder"], own["decoder"], stacked(crosses))


def inspect(chatter: Chatter, text: str) -> dict[str, Any]:
    """The reply to a text (see `look`) and the inside, in the form of a translation's: what the page draws."""
    seen, tokenizer = look(chatter, text), chatter.tokenizer
    score = sum(seen.log_probs) / max(1, len(seen.log_probs))
    warnings = [f"the oldest {seen.dropped} messages no longer fit and were left out"] if seen.dropped else []
    target = tokens_of(tokenizer, seen.tokens)
    return {
        "text": text,
        "translation": {
            "source_words": words(text), "text": seen.text, "score": score, "tokens": target,
            "token_log_probs": seen.log_probs, "words": confidence(tokenizer, seen.text, seen.tokens, seen.log_probs),
            "alignment": None, "stepwise": False, "fertilities": None, "alternatives": [], "warnings": warnings,
        },
        "inspected": {
            "part": {"number": 1, "count": 1, "text": text},
            "source": tokens_of(tokenizer, seen.prompt), "target": target, "translation": seen.text, "score": score,
            "token_log_probs": seen.log_probs,
            "attention": {
                kind: {"queries": queries, "keys": keys, "weights": rounded(weights)}
                for kind in seen.attention.kinds()
                for weights, queries, keys in [seen.attention.of(kind)]
            },
            "aligner": None, "history": [],
            "positions": position_picture(chatter.generator.model, len(seen.prompt)),
        },
    }  # fmt: skip
