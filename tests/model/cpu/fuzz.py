"""The kernels against plain modules, on random models and inputs, forward and gradient; and calls that do not fit.

    python -m tests.model.cpu.fuzz --cases 3000              how many cases of each kind ran; stops at the first fault
    python -m tests.model.cpu.fuzz --cases 1 --seed 1234     one case again, as the fault's message says

`make sanitize` runs it with kernels that were compiled with sanitizers. A case depends on its seed only.
"""

import argparse
import random
from collections import Counter
from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor

from heedful.decoding.stepper import KernelPromptStepper, PromptStepper, SourceStepper
from heedful.model.architecture.decoder_only import DecoderOnlyConfig
from heedful.model.architecture.encoder_decoder import EncoderDecoderConfig
from heedful.model.architecture.encoder_only import EncoderOnlyConfig
from heedful.model.cpu import kernels, training
from heedful.model.cpu.decoding import Lowered, lower
from heedful.model.cpu.kernels import Panels
from heedful.model.cpu.loss import cross_entropy_
from heedful.model.cpu.reading import reader
from heedful.model.feedforward import FUNCTIONS, GATED
from heedful.model.int8 import quantize_int8
from heedful.objectives import vocabulary_cross_entropy
from tests.model.cpu.both import randomised

VOCAB = 61


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next has the next one")
    options = parser.parse_args()
    if kernels.NATIVE is None:
        raise SystemExit(f"no kernels: {kernels.MISSING}")
    counts = run(range(options.seed, options.seed + options.cases))
    print(f"{kernels.NATIVE.PROCESSOR}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))


def run(seeds: range) -> Counter[str]:
    """How many cases of each kind there were."""
    counts: Counter[str] = Counter()
    before = torch.get_num_threads()
    try:
        for seed in seeds:
            numbers = random.Random(seed)
            torch.manual_seed(seed)
            torch.set_num_threads(numbers.choice([1, 1, 2, 3]))
            kind = numbers.choice([*KINDS, misfits])
            try:
                counts[f"{kind.__name__}: {kind(numbers)}"] += 1
            except Exception as error:
                again = f"python -m tests.model.cpu.fuzz --cases 1 --seed {seed}"
                raise AssertionError(f"{kind.__name__}: {again}") from error
    finally:
        torch.set_num_threads(before)
    return counts


def close(found: Tensor, wanted: Tensor, error: float) -> None:
    """Within an error relative to the largest number."""
    largest = float(wanted.abs().max()) if wanted.numel() else 1.0
    torch.testing.assert_close(found.double(), wanted.double(), atol=error * max(1.0, largest), rtol=error)


def size(numbers: random.Random, most: int = 300) -> int:
    """Few, many, or at the edge of a panel, a tile or a block."""
    edges = [one for base in (8, 16, 32, 64, 96, 192, 256) for one in (base - 1, base, base + 1) if one <= most]
    return numbers.choice([numbers.randint(1, min(9, most)), numbers.randint(1, most), numbers.choice(edges)])


def stack(numbers: random.Random, heads: int, *, positions: list[str], layers: int = 2) -> dict:
    hidden = numbers.choice([16, 32, 48, numbers.randint(1, 50)])
    activation = numbers.choice([*FUNCTIONS, *GATED])
    kind = numbers.choice(positions)
    return {
        "layers": numbers.randint(1, layers),
        "placement": numbers.choice(["pre", "post"]),
        "embedding_norm": numbers.random() < 0.3,
        "dropout": 0.0,
        "norm": {"kind": numbers.choice(["layer", "rms"])},
        "attention": {"heads": heads, "bias": numbers.random() < 0.5},
        "feedforward": {"hidden": hidden, "activation": activation, "bias": numbers.random() < 0.5},
        "position": {"kind": kind, **({"length": 160} if kind == "learned" else {})},
    }


def translator(numbers: random.Random, positions: list[str]) -> torch.nn.Module:
    heads, head = numbers.randint(1, 3), numbers.choice([8, 16, 16, 24, 32])
    encoder, decoder = (stack(numbers, heads, positions=positions) for _ in range(2))
    tie = numbers.choice(["none", "inputs", "output"])
    config = {"vocab": VOCAB, "width": heads * head, "encoder": encoder, "decoder": decoder, "tie": tie}
    return randomised(EncoderDecoderConfig(**config).build())


def sources(numbers: random.Random, most: int = 40) -> tuple[Tensor, Tensor | None]:
    batch, length = numbers.randint(1, 5), size(numbers, most)
    valid = None if numbers.random() < 0.3 else torch.arange(length) < torch.randint(1, length + 1, (batch, 1))
    return torch.randint(0, VOCAB, (batch, length)), valid


@torch.inference_mode()
def writes(numbers: random.Random) -> str:
    """A decoder, step by step, with beams that fork and sentences that leave."""
    model = translator(numbers, ["sinusoidal", "learned", "none", "rotary", "alibi", "relative_bias"])
    error = 1e-4
    if numbers.random() < 0.3:
        quantize_int8(model, least=0)
        error = 3e-3
    fast = lower(model)
    if not isinstance(fast, Lowered):
        return "left to the modules"
    source, valid = sources(numbers, 140)
    length = numbers.randint(1, 6)
    slow, quick = (SourceStepper(model, source, valid, length=length, quick=one) for one in (None, fast))
    sentences = rows = len(source)
    for _ in range(numbers.randint(1, 9)):
        tokens = torch.randint(0, VOCAB, (rows,))
        close(quick.advance(tokens), slow.advance(tokens), error)
        beams, each = numbers.randint(1, 4), rows // sentences
        left = sorted(numbers.sample(range(sentences), numbers.randint(1, sentences)))
        kept = (torch.randint(0, each, (len(left), beams)) + torch.tensor(left)[:, None] * each).flatten()
        for one in (slow, quick):
            one.select(kept, None if len(left) == sentences else torch.tensor(left))
        sentences, rows = len(left), len(kept)
    return "as the modules"


@torch.inference_mode()
def continues(numbers: random.Random) -> str:
    """A language model: prompts of any lengths, then step by step, while rows fork and leave."""
    groups, shared, head = numbers.randint(1, 3), numbers.randint(1, 3), numbers.choice([8, 16, 24, 32])
    decoder = stack(numbers, groups * shared, positions=["learned", "none", "rotary", "alibi", "relative_bias"])
    window = numbers.choice([None, None, numbers.randint(1, 40)])
    decoder["attention"] |= {"kv_heads": groups, "head_width": head, "window": window}
    config = {"vocab": VOCAB, "width": 8 * numbers.randint(1, 9), "tie": numbers.choice(["all", "none"])}
    model = randomised(DecoderOnlyConfig(**config, decoder=decoder).build())
    error = 1e-4
    if numbers.random() < 0.3:
        quantize_int8(model, least=0)
        error = 3e-3
    fast = lower(model)
    assert isinstance(fast, Lowered), str(fast)
    rows = numbers.randint(1, 5)
    lengths = torch.tensor([size(numbers, 110) for _ in range(rows)])
    valid = torch.arange(int(lengths.max())) >= lengths.max() - lengths[:, None]
    prompt, valid = torch.randint(0, VOCAB, valid.shape), None if bool(valid.all()) else valid
    length = numbers.randint(1, 6)
    slow = PromptStepper(model, prompt, length=length, valid=valid)
    quick = KernelPromptStepper(fast, prompt, length=length, valid=valid)
    for _ in range(numbers.randint(1, 9)):
        tokens = torch.randint(0, VOCAB, (rows,))
        close(quick.advance(tokens), slow.advance(tokens), error)
        kept = torch.randint(0, rows, (numbers.randint(1, 6),))
        for one in (slow, quick):
            one.select(kept)
        rows = len(kept)
    return "as the modules"


def trains(numbers: random.Random) -> str:
    """The loss of a model and the gradients of all its weights, against the modules in float64."""
    model = translator(numbers, ["sinusoidal", "learned", "none", "rotary", "alibi"]).train().requires_grad_(True)
    source, valid = sources(numbers)
    target = torch.randint(0, VOCAB, (len(source), size(numbers, 40) + 1))
    smoothing = numbers.choice([0.0, 0.1])

    def gradients(one: torch.nn.Module) -> list[Tensor]:
        states = one.decode(target[:, :-1], one.encode(source, valid=valid)).flatten(0, 1)
        loss = vocabulary_cross_entropy(*one.last_linear(states), target[:, 1:].flatten(), smoothing=smoothing).total
        return [loss, *torch.autograd.grad(loss, list(one.parameters()), allow_unused=True)]

    found = gradients(model)
    for one, other in zip(found, gradients(deepcopy(model).double()), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            close(one.detach(), other.detach(), 1e-3)
    return "as the modules"


@torch.inference_mode()
def reads(numbers: random.Random) -> str:
    """An encoder on texts of any length, also none."""
    heads = numbers.randint(1, 3)
    config = {"vocab": VOCAB, "width": heads * numbers.choice([16, 32, 8]), "token_types": numbers.choice([0, 2])}
    encoder = stack(numbers, heads, positions=["sinusoidal", "learned", "none"])
    model = randomised(EncoderOnlyConfig(**config, encoder={"kind": "transformer", **encoder}).build())
    fast = reader(model)
    batch, length = numbers.randint(1, 5), size(numbers, 140)
    source, valid = torch.randint(0, VOCAB, (batch, length)), torch.rand(batch, length) < numbers.random()
    found, wanted = fast(source, valid=valid), model(source, valid=valid)
    close(found[valid], wanted[valid], 1e-4)
    return "as the modules" if fast.reason is None else "left to the modules"


def attends(numbers: random.Random) -> str:
    """Attention and its gradients: causal, masked for each key or each pair, parts of one product or not."""
    batch, heads, head = numbers.randint(1, 3), numbers.randint(1, 3), 16 * numbers.randint(1, 4)
    shared = numbers.randint(1, 3)
    queries, keys, causal = size(numbers, 200), size(numbers, 200), numbers.random() < 0.4
    keys = queries if causal else keys
    parts = [
        torch.randn(batch, length, count, head).transpose(1, 2).requires_grad_()
        for length, count in ((queries, heads * shared), (keys, heads), (keys, heads))
    ]
    hidden = torch.rand(numbers.choice([1, batch]), 1, numbers.choice([1, queries]), keys) < 0.4
    hidden = (hidden & (torch.arange(keys) > 0)) if not causal and numbers.random() < 0.7 else None
    additive = None if hidden is None else torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)
    y = training.masked_attention(*parts, additive, causal=causal, scale=0.3)
    outer = torch.randn_like(y)
    key, value = (part.double().repeat_interleave(shared, 1) for part in parts[1:])
    scores = parts[0].double() @ key.transpose(-2, -1) * 0.3
    if causal:
        hidden = torch.ones(queries, keys, dtype=torch.bool).triu(1)
    wanted = (scores if hidden is None else scores.masked_fill(hidden, -torch.inf)).softmax(-1) @ value
    close(y.detach(), wanted.detach(), 1e-5)
    found = torch.autograd.grad(y, parts, outer)
    for one, other in zip(found, torch.autograd.grad(wanted, parts, outer.double()), strict=True):
        close(one, other, 1e-4)
    return "as torch in float64"


def multiplies(numbers: random.Random) -> str:
    """A product in float32 or int8, then its rows by number."""
    rows, depth, columns, int8 = size(numbers), size(numbers, 700), size(numbers), numbers.random() < 0.5
    weight, x, y = torch.randn(columns, depth), torch.randn(rows, depth), torch.randn(rows, columns)
    bias, add, relu = torch.randn(columns), numbers.random() < 0.5, numbers.random() < 0.5
    panels = Panels(weight, bias if numbers.random() < 0.5 else None, int8=int8)
    held = panels.rows(torch.randperm(columns)[:7])
    assert held.shape == (min(7, columns), depth)
    wanted = x.double() @ panels.rows(torch.arange(columns)).double().T + (y if add else 0)
    wanted = wanted if panels.bias is None else wanted + bias
    panels.into(y, x, add=add, relu=relu)
    close(y, wanted.relu() if relu else wanted, 1e-3 if int8 else 1e-4)
    return "as torch in float64"


def picks(numbers: random.Random) -> str:
    """The largest numbers of beams, of log-probabilities, with numbers that are hidden."""
    rows, beams, width = numbers.randint(1, 9), numbers.randint(1, 5), size(numbers, 900)
    x = torch.randn(rows, beams * width).masked_fill(torch.rand(rows, beams * width) < 0.2, -torch.inf)
    x[:, 0] = 0.0
    close(kernels.log_softmax(x.clone()).exp(), x.double().softmax(-1), 1e-5)
    offsets, count = torch.randn(rows, beams), numbers.randint(1, min(20, beams * width))
    values, places = kernels.largest(x, count, offsets)
    wanted = (x.unflatten(1, (beams, width)) + offsets[..., None]).flatten(1)
    assert torch.equal(values, wanted.topk(count).values) and torch.equal(wanted.gather(1, places), values)
    return "as torch"


def misfits(numbers: random.Random) -> str:
    """A call that fits, with one tensor or number changed: an error, or an answer, but no crash."""
    call, given = numbers.choice(CALLS)(numbers)
    place = numbers.randrange(len(given))
    given[place] = spoiled(given[place], numbers)
    try:
        call(*given)
    except (ValueError, IndexError, TypeError, RuntimeError, ZeroDivisionError):  # torch's are RuntimeErrors
        return "refused"
    return "taken"


def spoiled(value: object, numbers: random.Random) -> object:
    if isinstance(value, int):
        return numbers.choice([0, -1, value + 1, 2 * value, 10**6])
    assert isinstance(value, Tensor)
    flat = value.flatten()
    changes: list[Callable[[], object]] = [
        lambda: value[:-1], lambda: value[..., :-1], lambda: value[:0], lambda: value[None], lambda: flat,
        lambda: value.double(), lambda: value.T if value.dim() == 2 else flat[::2], lambda: torch.cat([flat, flat]),
        lambda: value.repeat_interleave(2, -1)[..., ::2], lambda: torch.cat([value, value]), lambda: value.half(),
        lambda: value - 1, lambda: value + 100, lambda: value * 0 - 1, lambda: value.float() * torch.nan,
    ]  # fmt: skip
    return numbers.choice(changes)()


def _norm(numbers: random.Random) -> tuple[Callable, list]:
    width = size(numbers, 70)
    given = [torch.randn(size(numbers, 9), width), torch.randn(width), torch.randn(width)]
    return lambda x, weight, bias: kernels.norm(x, weight, bias, rms=False, eps=1e-5), given


def _largest(numbers: random.Random) -> tuple[Callable, list]:
    rows, beams, width = numbers.randint(1, 5), numbers.randint(1, 4), size(numbers, 70)
    return kernels.largest, [torch.randn(rows, beams * width), numbers.randint(1, width), torch.randn(rows, beams)]


def _embed(numbers: random.Random) -> tuple[Callable, list]:
    width, period, int8 = size(numbers, 40), numbers.randint(1, 5), numbers.random() < 0.5
    given = [torch.randint(0, 37, (3 * period,)), torch.randn(37, width), torch.randn(period, width)]
    made = (lambda table: Panels(table, int8=True)) if int8 else (lambda table: table)
    return lambda tokens, table, places: kernels.embed(tokens, made(table), 2.0, places), given


def _product(numbers: random.Random) -> tuple[Callable, list]:
    rows, depth, columns, int8 = size(numbers, 30), size(numbers, 40), size(numbers, 40), numbers.random() < 0.5
    given = [torch.randn(columns, depth), torch.randn(columns), torch.randn(rows, depth), torch.randn(rows, columns)]
    return lambda weight, bias, x, y: Panels(weight, bias, int8=int8).into(y, x), given


def _rows(numbers: random.Random) -> tuple[Callable, list]:
    panels = Panels(torch.randn(37, 5), int8=numbers.random() < 0.5)
    return panels.rows, [torch.randint(0, 37, (4,))]


def _loss(numbers: random.Random) -> tuple[Callable, list]:
    rows, width = size(numbers, 40), size(numbers, 70)
    return lambda x, y: cross_entropy_(x, y, 0.9), [torch.randn(rows, width), torch.randint(0, width, (rows,))]


def _attention(numbers: random.Random) -> tuple[Callable, list]:
    shape, keys = (2, 3, size(numbers, 40), 16), size(numbers, 40)
    given = [torch.randn(shape), torch.randn(2, 3, keys, 16), torch.randn(2, 3, keys, 16), torch.zeros(2, 1, 1, keys)]
    return lambda *parts: training.masked_attention(*parts, causal=False, scale=0.3), given


def _encoder(numbers: random.Random) -> tuple[Callable, list]:
    model = lower(randomised(EncoderDecoderConfig(**TINY).build()))
    layers, length = model.encoder.layers, numbers.randint(1, 20)
    if numbers.random() < 0.5:
        lengths = torch.randint(0, 9, (3,)) + 1
        return layers.encode_packed, [torch.randn(int(lengths.sum()), 32), lengths]
    return layers.encode, [torch.randn(3 * length, 32), torch.zeros(3, length + -length % 8)]


def _step(numbers: random.Random) -> tuple[Callable, list]:
    writing = lower(randomised(EncoderDecoderConfig(**TINY).build())).begin(torch.randint(0, VOCAB, (2, 7)), None, 5)
    for _ in range(numbers.randint(1, 4)):
        writing.advance(torch.randint(0, VOCAB, (2,)))
    step = writing.stack.layers.step
    given = [torch.randn(2, 32), writing.origin, writing.length, writing.additive]
    return lambda x, origin, length, additive: step(writing.texts, x, origin, length, additive=additive), given


def _prompts(numbers: random.Random) -> tuple[Callable, list]:
    kind = numbers.choice(["rotary", "alibi"])
    decoder = {**TINY_STACK, "position": {"kind": kind}}
    model = lower(randomised(DecoderOnlyConfig(vocab=VOCAB, width=32, decoder=decoder).build()))
    writing, lengths = model.continue_from(torch.randint(0, VOCAB, (3, 9)), None, 5), torch.randint(0, 9, (3,)) + 1
    tokens, stack = int(lengths.sum()), writing.stack
    name, more = ("turns", stack.turns(tokens)[:tokens]) if kind == "rotary" else ("biases", stack.biases(9))
    read = stack.layers.read_prompts
    given = [torch.randn(tokens, 32), lengths, 9, more]
    return lambda x, lengths, length, more: read(writing.texts, x, lengths, length, **{name: more}), given


def _source(numbers: random.Random) -> tuple[Callable, list]:
    return kernels.lay_out_source, [torch.randn(3 * size(numbers, 20), 32), 3, 2, 8]


TINY_STACK = {"layers": 1, "attention": {"heads": 2}, "feedforward": {"hidden": 24}}
TINY = {"vocab": VOCAB, "width": 32, "encoder": TINY_STACK, "decoder": TINY_STACK}
CALLS = [_norm, _largest, _embed, _product, _rows, _loss, _attention, _encoder, _step, _prompts, _source]
KINDS = [writes, continues, trains, reads, attends, multiplies, picks]

if __name__ == "__main__":
    main()
