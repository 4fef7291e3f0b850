"""Reformer's duplication task: how many hash rounds does it take to find a copy?      Kitaev et al. 2020, table 2

    python benchmarks/duplication.py                      # length 256, rounds 1, 2, 4: some minutes a row
    python benchmarks/duplication.py --length 64 --steps 300 --rounds 4

A text is 0w0w: a marker, random symbols, and the same again. One layer of LSH attention learns to write the second
half, for which it must look back by exactly half a text. It is trained with some number of hash rounds and evaluated
with others; the figure is the share of symbols of the second half that it gets right. `--sees bucket` takes our own
sight in place of the published one (see model/attention/lsh.py).
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor
from work import say

from heedful.model.architecture import LanguageModel
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.attention.lsh import Lsh
from heedful.model.create import create

EVALUATED = (8, 4, 2, 1)


def model_of(given: argparse.Namespace, rounds: int) -> LanguageModel:
    mix = {"kind": "lsh", "buckets": given.buckets, "rounds": rounds, "chunk": given.chunk, "sees": given.sees}
    decoder = {
        "layers": 1,
        "attention": {"heads": given.heads, "mix": mix},
        "feedforward": {"hidden": given.width},
        "position": {"kind": "learned", "length": given.length},
        "placement": "pre",
        "dropout": 0.0,
    }
    torch.manual_seed(given.seed)
    model = create(DecoderOnlyConfig(vocab=given.symbols + 1, width=given.width, tie="none", decoder=decoder))
    assert isinstance(model, LanguageModel)
    return model


def texts(given: argparse.Namespace, count: int, generator: torch.Generator) -> Tensor:
    """count length, of symbols 1 and up after the marker 0"""
    words = torch.randint(1, given.symbols + 1, (count, given.length // 2 - 1), generator=generator)
    half = torch.cat([torch.zeros(count, 1, dtype=torch.long), words], dim=1)
    return torch.cat([half, half], dim=1)


def logits_of_the_copy(model: LanguageModel, text: Tensor) -> tuple[Tensor, Tensor]:
    """What it says at each place of the second half, and what stands there."""
    start = text.shape[1] // 2
    states = model.decode(text[:, :-1])[:, start:]
    return model.logits(states), text[:, start + 1 :]


def train(given: argparse.Namespace, rounds: int) -> LanguageModel:
    model = model_of(given, rounds).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=given.rate, betas=(0.9, 0.98))
    generator = torch.Generator().manual_seed(given.seed)
    began = time.monotonic()
    for step in range(given.steps):
        for group in optimizer.param_groups:
            group["lr"] = given.rate * min(1, (step + 1) / 100) * min(1, 4 * (1 - step / given.steps))
        logits, wanted = logits_of_the_copy(model, texts(given, given.batch, generator))
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if given.log and (step + 1) % given.log == 0:
            right = (logits.argmax(-1) == wanted).float().mean()
            say(rounds=rounds, step=step + 1, loss=loss.item(), right=right.item(), seconds=time.monotonic() - began)
    return model


@torch.no_grad()
def accuracy(given: argparse.Namespace, trained: LanguageModel, rounds: int) -> float:
    """With this many rounds: the same weights, other directions to hash by."""
    model = model_of(given, rounds).eval()
    kept = {name: value for name, value in trained.state_dict().items() if not name.endswith("rotations")}
    missing, _ = model.load_state_dict(kept, strict=False)
    assert all(name.endswith("rotations") for name in missing) and any(isinstance(m, Lsh) for m in model.modules())
    generator = torch.Generator().manual_seed(given.seed + 1)
    right = total = 0
    for _ in range(given.texts // given.batch):
        logits, wanted = logits_of_the_copy(model, texts(given, given.batch, generator))
        right += int((logits.argmax(-1) == wanted).sum())
        total += wanted.numel()
    return right / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--symbols", type=int, default=16)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--buckets", type=int, default=16)
    parser.add_argument("--chunk", type=int, default=32)
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--sees", choices=["chunk", "bucket"], default="chunk")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=int, default=0, help="print the loss every so many steps")
    given = parser.parse_args()
    print("| trained with | " + " | ".join(f"evaluated with {rounds}" for rounds in EVALUATED) + " | minutes |")
    print("|---" * (len(EVALUATED) + 2) + "|")
    for rounds in given.rounds:
        began = time.monotonic()
        trained = train(given, rounds)
        found = " | ".join(f"{accuracy(given, trained, other):.1%}" for other in EVALUATED)
        print(f"| {rounds} | {found} | {(time.monotonic() - began) / 60:.1f} |", flush=True)


if __name__ == "__main__":
    main()
