"""Does Transformer-XL learn what its paper says? Recurrence and encoding on tinyshakespeare by character.

    python benchmarks/transformer_xl.py --seeds 1 2 3
    python benchmarks/transformer_xl.py --steps 50 --rows learned xl+memory          # a quick look

All models are nanoGPT's CPU setting (4 layers, 4 heads, width 128, context 64, 12 rows), differ in nothing but the keys
shown, and take the same steps with the same seeds. The validation text is read in segments of 64, each with as many
tokens of memory as the column says; a model trained with a memory of 64 is tested with longer ones too, which its
distances allow (Dai et al. 2019, tables 6 and 7). Lower is better.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import mean

import torch

from heedful.checkpoint import load_model
from heedful.data.columns import DOCUMENT
from heedful.data.inputs import Inputs
from heedful.data.prepare import prepare
from heedful.tasks import Settings
from heedful.training.parallel import World
from heedful.training.recipe import Recipe, read_recipe
from heedful.training.run import train

DATA = Path(os.environ.get("HEEDFUL_DATA", Path(__file__).parents[2] / "shared" / "data"))
CONTEXT, MEMORY, TESTED = 64, 64, (0, 64, 128, 256)
XL = ["model.decoder.position=none", "model.decoder.attention.mix=transformer_xl"]
ROTARY = ["model.decoder.position=rotary"]
SEGMENTS, REMEMBERED = ["task.windows=segments"], ["task.windows=segments", f"task.memory={MEMORY}"]
ROWS = {  # name: (encoding, recurrence, how the text is read, keys)
    "learned-random": ("learned", "no", "windows at random", []),
    "learned": ("learned", "no", "segments in order", SEGMENTS),
    "rotary": ("rotary", "no", "segments in order", SEGMENTS + ROTARY),
    "xl": ("Transformer-XL", "no", "segments in order", SEGMENTS + XL),
    "rotary+memory": ("rotary", "yes", "segments in order", REMEMBERED + ROTARY),
    "xl+memory": ("Transformer-XL", "yes", "segments in order", REMEMBERED + XL),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=DATA / "tinyshakespeare" / "input.txt")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    titles = ["encoding", "recurrence", "training reads", *(f"memory {tested}" for tested in TESTED), "minutes"]
    print(f"validation loss (nats per character) after {options.steps} steps, mean of {len(options.seeds)} seeds\n")
    print(f"| {' | '.join(titles)} |\n|---|---|---|{'---:|' * (len(TESTED) + 1)}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.rows:
            encoding, recurrence, reads, _ = ROWS[name]
            began = time.monotonic()
            found = [run(name, options.text, Path(folder), options.steps, seed) for seed in options.seeds]
            minutes = (time.monotonic() - began) / 60 / len(options.seeds)
            shown = [shown_losses([losses.get(tested) for losses in found]) for tested in TESTED]
            print(f"| {' | '.join([encoding, recurrence, reads, *shown, f'{minutes:.1f}'])} |", flush=True)


def run(name: str, text: Path, folder: Path, steps: int, seed: int) -> dict[int, float]:
    """Train one model; its validation loss by the memory it is tested with."""
    keys = [*ROWS[name][3], f"seed={seed}", f"training.steps={steps}", f"training.warmup={min(100, steps // 4)}",
            f"training.validate_every={steps}", f"training.save_every={steps}", "training.samples=0",
            "training.average=false", "training.precision=float32"]  # fmt: skip
    recipe, inputs = read_recipe("char-gpt", keys), Inputs((text,), columns=DOCUMENT)
    out = folder / f"{name}-{seed}"
    train(recipe, inputs, out, cache=folder / "cache")
    recurrent = "recurrence" in recipe.model.supports
    return {tested: tested_loss(recipe, inputs, out, folder, tested) for tested in TESTED if recurrent or not tested}


def tested_loss(recipe: Recipe, inputs: Inputs, out: Path, folder: Path, memory: int) -> float:
    prepared = prepare(inputs, recipe.data, recipe.tokenizer, cache=folder / "cache")
    task = recipe.task.model_copy(update={"windows": "segments", "test_memory": memory})
    model = load_model(out).eval()
    scores = task.build(prepared, Settings()).evaluate(model, budget=12 * CONTEXT, samples=0, world=World())
    return scores.numbers["loss"]


def shown_losses(losses: list[float | None]) -> str:
    known = [loss for loss in losses if loss is not None]
    if not known:
        return "-"
    spread = f" ± {(max(known) - min(known)) / 2:.4f}" if len(known) > 1 else ""
    return f"{mean(known):.4f}{spread}"


if __name__ == "__main__":
    main()
