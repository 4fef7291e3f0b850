"""Profile: the operations of a step, with their shares of the time.

    python benchmarks/shares.py

A step of training (tiny, and a language model in nanoGPT's setting; two threads) and decoding (one thread, as in a
stream), to show what to optimise next. The profiler adds overhead, especially if steps are short. `product` covers the
vocabulary and the source's keys and values; the products of the layers are in `encode` and `step`.
"""

import argparse
import time
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch.profiler import ProfilerActivity, profile
from work import OUT, SIZES, VOCAB, batches, padded, sentences

SHOWN, TIMES = 8, 3


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    show("training, tiny", training())
    show("training, a language model", language_model())
    for size, beam, batch in (("tiny", 1, 1), ("tiny", 1, 32), ("base", 5, 64)):
        show_kernels(f"decoding, {size}, beam {beam} batch {batch}", decoding(size, beam, batch))


def show(title: str, work: Callable[[], object]) -> None:
    work()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        work()
    rows = sorted(found.key_averages(), key=lambda row: -row.self_cpu_time_total)
    total = sum(row.self_cpu_time_total for row in rows)
    print(f"\n{title}: {total / 1000:,.0f} ms\n\n| operation | share | calls | us a call |\n|---|---:|---:|---:|")
    for row in rows[:SHOWN]:
        share, each = row.self_cpu_time_total / total, row.self_cpu_time_total / row.count
        print(f"| {row.key} | {share:.1%} | {row.count:,} | {each:,.1f} |", flush=True)


def show_kernels(title: str, work: Callable[[], object]) -> None:
    """Time in our own kernels, which torch's profiler does not see; the rest is Python and torch."""
    from heedful.model.cpu import kernels

    seconds: dict[str, float] = {}

    def timed(name: str, function: Callable[..., None]) -> Callable[..., None]:
        def call(*numbers: float) -> None:
            began = time.perf_counter()
            function(*numbers)
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began

        return call

    native = kernels.NATIVE
    if native is None:
        show(title, work)
        return
    work()
    names = ("encode", "lay_out", "embed", "step", "product", "norm", "log_softmax", "largest")
    kernels.NATIVE = SimpleNamespace(**{name: timed(name, getattr(native, name)) for name in names})
    began = time.perf_counter()
    for _ in range(TIMES):
        work()
    total = time.perf_counter() - began
    kernels.NATIVE = native
    seconds["the rest"] = total - sum(seconds.values())
    print(f"\n{title}: {1000 * total / TIMES:,.0f} ms\n\n| kernel | share |\n|---|---:|")
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        print(f"| {name} | {spent / total:.1%} |", flush=True)


def training() -> Callable[[], object]:
    from training import heedful

    torch.set_num_threads(2)
    model, loss = heedful(SIZES["tiny"], 0.1)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    (batch,) = batches(SIZES["tiny"], 1)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(batch).backward()
        optimizer.step()

    return step


def language_model() -> Callable[[], object]:
    from language_model import BATCH, CONTEXT

    from heedful.model.create import create
    from heedful.objectives import vocabulary_cross_entropy
    from heedful.training.recipe import read_recipe

    model = create(read_recipe("char-gpt", ["model.vocab=65"]).model).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(0, 65, (BATCH, CONTEXT + 1))

    def steps() -> None:
        for _ in range(5):
            optimizer.zero_grad(set_to_none=True)
            states = model.decode(tokens[:, :-1]).flatten(0, 1)
            vocabulary_cross_entropy(*model.last_linear(states), tokens[:, 1:].flatten()).total.backward()
            optimizer.step()

    return steps


def decoding(size: str, beam: int, batch: int) -> Callable[[], object]:
    from heedful.decoding.beam import search
    from heedful.decoding.generation import GenerationConfig
    from heedful.decoding.greedy import greedy
    from heedful.decoding.rules import Rules
    from heedful.decoding.stepper import SourceStepper
    from heedful.families.vaswani import vaswani
    from heedful.memory import keep_freed_memory
    from heedful.model.cpu.decoding import lower
    from heedful.model.create import create

    keep_freed_memory()
    torch.set_num_threads(1)
    of = SIZES[size]
    torch.manual_seed(1)
    config = vaswani(vocab=VOCAB, width=of.width, hidden=of.hidden, heads=of.heads, layers=of.layers, dropout=0.0)
    model = create(config).eval()
    decoder, source = lower(model) or None, padded(sentences(batch))
    settings = GenerationConfig(num_beams=beam, min_new_tokens=OUT, max_new_tokens=OUT)

    def work() -> None:
        rules, limits = Rules(config=settings, eos=0), [OUT] * batch
        with torch.inference_mode():
            stepper = SourceStepper(model, source, None, length=OUT, quick=decoder)
            if beam == 1:
                greedy(stepper, source[:, 0], limits=limits, rules=rules)
            else:
                search(stepper, source[:, 0], settings, eos=0, limits=limits, rules=rules)

    return work


if __name__ == "__main__":
    main()
