"""Training small models of three families: ours beside transformers', from the same weights, on the same batches.

    python benchmarks/training_families.py                   BERT, GPT-2 and LLaMA, as a table
    python benchmarks/training_families.py --families llama --rounds 4

4 layers, 4 heads, width 128, hidden 512, 8,000 tokens in the vocabulary, batches of 16 texts of 64 tokens, float32, two
threads; dropout as each family has it by default. BERT fills in masked tokens (15 %), LLaMA has two heads for keys and
values. A step is forward, backward, clipping to norm 1 and torch's fused AdamW. Both take turns, each in its own
process; the figure is the best round. Before training, without dropout, the losses of both are compared.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from work import say

VOCAB, BATCH, LENGTH, LAYERS, HEADS, WIDTH, HIDDEN = 8000, 16, 64, 4, 4, 128, 512
MASK, MASKED, WARM = 4, 0.15, 5
FAMILIES = ("bert", "gpt2", "llama")
Losses = Callable[[Tensor, Tensor], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--inside", choices=["heedful", "transformers"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        say(**{family: train(options.inside, family, options.steps) for family in options.families})
        return
    found: dict[str, list[dict[str, Any]]] = {"heedful": [], "transformers": []}
    for _ in range(options.rounds):
        for name, rounds in found.items():
            rounds.append(run(name, options))
    print("| model | heedful, tokens/s | transformers, tokens/s | times as fast | first losses apart |")
    print("|---|---:|---:|---:|---:|")
    for family in options.families:
        ours, theirs = (min(one[family]["seconds"] for one in rounds) for rounds in found.values())
        apart = abs(found["heedful"][0][family]["loss"] - found["transformers"][0][family]["loss"])
        rates = " | ".join(f"{options.steps * BATCH * LENGTH / seconds:,.0f}" for seconds in (ours, theirs))
        print(f"| {family} | {rates} | {theirs / ours:.2f} | {apart:.1e} |")


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--inside", name, "--steps", str(options.steps)]
    done = subprocess.run(
        [*command, "--families", *options.families], capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def train(name: str, family: str, steps: int) -> dict[str, float]:
    torch.set_num_threads(2)
    torch.manual_seed(1)
    theirs = peer(family)
    model, losses = ours(theirs, family) if name == "heedful" else (theirs, by_peer(theirs, family))
    batches = list(texts(family, steps + WARM))
    with torch.no_grad():
        model.eval()
        first = float(losses(*batches[0]))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    for step, batch in enumerate(batches):
        if step == WARM:
            began = time.perf_counter()
        losses(*batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {"seconds": time.perf_counter() - began, "loss": first}


def texts(family: str, count: int) -> Any:
    """Tokens, and what is to be predicted: -100 = nothing."""
    chance = torch.Generator().manual_seed(2)
    for _ in range(count):
        tokens = torch.randint(MASK + 1, VOCAB, (BATCH, LENGTH), generator=chance)
        if family != "bert":
            yield tokens, tokens
            continue
        masked = torch.rand(BATCH, LENGTH, generator=chance) < MASKED
        yield tokens.masked_fill(masked, MASK), tokens.masked_fill(~masked, -100)


def peer(family: str) -> Any:
    import transformers

    common = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
             "intermediate_size": HIDDEN, "max_position_embeddings": LENGTH}  # fmt: skip
    if family == "bert":
        return transformers.BertForMaskedLM(transformers.BertConfig(**common, **sizes))
    if family == "llama":
        config = transformers.LlamaConfig(**common, **sizes, num_key_value_heads=2, tie_word_embeddings=True)
        return transformers.LlamaForCausalLM(config)
    config = transformers.GPT2Config(**common, n_positions=LENGTH, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS)
    return transformers.GPT2LMHeadModel(config)


def by_peer(model: Any, family: str) -> Losses:
    def losses(tokens: Tensor, wanted: Tensor) -> Tensor:
        return model(input_ids=tokens, labels=wanted).loss  # type: ignore[no-any-return]

    return losses


def ours(theirs: Any, family: str) -> tuple[Any, Losses]:
    """Our model with the peer's weights."""
    from heedful.exchange.hugging_face import load
    from heedful.memory import keep_freed_memory
    from heedful.objectives import cross_entropy, vocabulary_cross_entropy

    keep_freed_memory()  # as the command does
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        model: Any = load(folder).model

    def masked(tokens: Tensor, wanted: Tensor) -> Tensor:
        states = model(tokens).flatten(0, 1)[(wanted >= 0).flatten()]
        found = cross_entropy(model.predict("masked_lm", states), wanted[wanted >= 0])
        return found.total / found.count

    def causal(tokens: Tensor, wanted: Tensor) -> Tensor:
        states = model.decode(tokens[:, :-1]).flatten(0, 1)
        found = vocabulary_cross_entropy(*model.last_linear(states), wanted[:, 1:].flatten())
        return found.total / found.count

    return model, masked if family == "bert" else causal


if __name__ == "__main__":
    main()
