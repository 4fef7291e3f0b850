"""A language model in nanoGPT's CPU setting, against a plain PyTorch implementation of the same model.

    python benchmarks/language_model.py

4 layers, 4 heads, width 128, context 64, batch 12, 65 characters. The plain one uses `scaled_dot_product_attention` and
fused AdamW, as is common. Both start from the same weights, see the same batches and take turns, each in its own
process; the figure is the best round.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from work import say

VOCAB, CONTEXT, BATCH, LAYERS, HEADS, WIDTH, STEPS = 65, 64, 12, 4, 4, 128, 60


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(self.first(x)).split(width, dim=2)
        query, key, value = (part.view(batch, length, HEADS, width // HEADS).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.outer(F.gelu(self.inner(self.second(x)), approximate="tanh"))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor, wanted: Tensor) -> Tensor:
        x = self.table(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.table.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), wanted.flatten())

    def take(self, weights: dict[str, Tensor]) -> None:
        """Load the weights of a Heedful model."""
        names = {"embedding.weight": "table.weight", "decoder.position.weight": "places.weight"}
        inside = {"attention.query_key_value": "query_key_value", "attention.output": "output",
                  "attention_residual.norm": "first", "feedforward.input": "inner", "feedforward.output": "outer",
                  "feedforward_residual.norm": "second"}  # fmt: skip
        for name in weights:
            for ours, theirs in inside.items():
                if f".{ours}." in name:
                    names[name] = name.replace("decoder.layers", "blocks").replace(ours, theirs)
        renamed = {names.get(name, name.removeprefix("decoder.")): tensor for name, tensor in weights.items()}
        self.load_state_dict(renamed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--inside", choices=["plain", "heedful"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        train(options.inside)
        return
    times: dict[str, list[float]] = {"plain": [], "heedful": []}
    losses: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name in times:
            command = [sys.executable, __file__, "--inside", name]
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "2"}
            )
            found = json.loads(done.stdout.splitlines()[-1])
            times[name].append(found["seconds"])
            losses[name] = found["losses"]
    print("| implementation | steps/s | all rounds | loss after 60 steps |\n|---|---:|---|---:|")
    for name, seconds in times.items():
        shown = " ".join(f"{STEPS / one:.1f}" for one in seconds)
        print(f"| {name} | {STEPS / min(seconds):.1f} | {shown} | {losses[name][-1]:.4f} |")
    apart = max(abs(one - other) for one, other in zip(*losses.values(), strict=True))
    print(f"\nheedful: {min(times['plain']) / min(times['heedful']):.2f} times plain; losses at most {apart:.1e} apart")


def train(name: str) -> None:
    from heedful.memory import keep_freed_memory
    from heedful.model.initialise import initialise
    from heedful.objectives import vocabulary_cross_entropy
    from heedful.training.recipe import read_recipe

    torch.set_num_threads(2)
    torch.manual_seed(1)
    ours: Any = read_recipe("char-gpt", []).model.model_copy(update={"vocab": VOCAB}).build()
    initialise(ours, "gpt2")
    generator = torch.Generator().manual_seed(2)
    # A text with structure to learn: each character depends on the previous one, with some noise.
    text = (torch.arange(20_000) * 7 + torch.randint(0, 3, (20_000,), generator=generator)) % VOCAB
    model = ours
    if name == "plain":
        model = Plain()
        model.take({key: value.detach().clone() for key, value in ours.named_parameters()})
    else:
        keep_freed_memory()  # as the command does

    def loss_of(tokens: Tensor, wanted: Tensor) -> Tensor:
        if name == "plain":
            return model(tokens, wanted)  # type: ignore[no-any-return]
        states = model.decode(tokens).flatten(0, 1)
        return vocabulary_cross_entropy(*model.last_linear(states), wanted.flatten()).total / wanted.numel()

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    losses = []
    for step in range(STEPS + 5):
        if step == 5:
            began = time.perf_counter()
        starts = torch.randint(0, len(text) - CONTEXT - 1, (BATCH,), generator=generator)
        windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    say(seconds=time.perf_counter() - began, losses=[float(loss) for loss in losses])


if __name__ == "__main__":
    main()
