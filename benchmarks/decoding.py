"""Decoding speed, compared with CTranslate2 and transformers on the same weights. Run `sh peers.sh` first.

    python benchmarks/decoding.py                          all cells, as a table
    python benchmarks/decoding.py --sizes tiny --engines heedful ct2-float32-2x1

Random weights, exported to Marian's format and converted to CTranslate2. Each engine runs in its own process and
environment, and generates 24 tokens per sentence. The first figure of a cell is sentences per second, the best of all
rounds; engines take turns. The last rows are upper bounds for float32 on this machine: matrix products only, at the
rate of a large one; and reading the weights from memory at every step, which a small model beats, since it stays in
the cache.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
CELLS = [(1, 1), (1, 32), (5, 1), (5, 32), (5, 64)]  # beam, batch
ENGINES = {
    "heedful": "heedful",
    "heedful-int8": "heedful",
    "ct2-float32": "huggingface",
    "ct2-float32-2x1": "huggingface",
    "ct2-int8-2x1": "huggingface",
    "transformers": "huggingface",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "base"], choices=["tiny", "base"])
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--cells", nargs="+", default=[f"{beam}x{batch}" for beam, batch in CELLS])
    parser.add_argument("--turns", type=int, default=2, help="turns of each engine per cell")
    parser.add_argument("--rounds", type=int, default=2, help="timed runs per turn, after a warm-up run")
    parser.add_argument("--inside", help=argparse.SUPPRESS)  # a function of this file, run in a peer's environment
    options, rest = parser.parse_known_args()
    if options.inside:
        globals()[options.inside](*rest)
        return
    cells = [tuple(map(int, cell.split("x"))) for cell in options.cells]
    for size in options.sizes:
        prepare(size)
        table(size, options.engines, cells, options.turns, options.rounds)


def table(size: str, engines: list[str], cells: list[tuple[int, ...]], turns: int, rounds: int) -> None:
    """Engines take turns at each cell: the load of a shared machine changes from minute to minute."""
    rates: dict[tuple[str, tuple[int, ...]], list[float]] = {}
    written: dict[tuple[str, tuple[int, ...]], list[list[int]]] = {}
    memory = dict.fromkeys(engines, 0)
    for cell in cells:
        for turn in range(turns):
            for engine in engines:
                if engine == "transformers" and turn:  # slow, and far behind
                    continue
                found = run(engine, "decode", size, engine, *map(str, cell), str(rounds))
                rates.setdefault((engine, cell), []).extend(len(found["written"]) / one for one in found["seconds"])
                written[engine, cell] = found["written"]
                memory[engine] = max(memory[engine], int(found["memory"]))
                print(size, cell, engine, f"{max(rates[engine, cell]):,.1f}", file=sys.stderr)
    print(f"\n{size}: sentences/s, best (worst) round, and how much of the output equals heedful's\n")
    print("| engine | " + " | ".join(f"beam {beam} batch {batch}" for beam, batch in cells) + " | memory, MB |")
    print("|---|" + "---:|" * (len(cells) + 1))
    for engine in engines:
        row = []
        for cell in cells:
            same = ""
            if engine != "heedful" and ("heedful", cell) in written:
                pairs = list(zip(written["heedful", cell], written[engine, cell], strict=True))
                same = f", {100 * sum(one == other for one, other in pairs) // len(pairs)} %"
            row.append(f"{max(rates[engine, cell]):,.1f} ({min(rates[engine, cell]):,.1f}){same}")
        print(f"| {engine} | " + " | ".join(row) + f" | {memory[engine] / 1e6:,.0f} |", flush=True)
    for name, limit in limits(size, cells).items():
        print(f"| {name} | " + " | ".join(f"{one:,.1f}" for one in limit) + " | |", flush=True)
    for ours, theirs in (("heedful", "ct2-float32"), ("heedful-int8", "ct2-int8"), ("heedful", "transformers")):
        others = [engine for engine in engines if engine.startswith(theirs)]
        if ours in engines and others:
            shares = [max(rates[ours, cell]) / max(max(rates[other, cell]) for other in others) for cell in cells]
            shown = ", ".join(f"{share:.2f}" for share in shares)
            print(f"\n{ours} / the better of {' and '.join(others)}: {shown}")


def limits(size: str, cells: list[tuple[int, ...]]) -> dict[str, list[float]]:
    """Upper bounds in sentences per second, by the machine's GEMM rate and its memory read rate."""
    import torch
    from work import OUT, SIZES, THREADS, VOCAB, gemm_rate, read_rate

    torch.set_num_threads(THREADS)
    products, reading, of = gemm_rate(), read_rate(), SIZES[size]
    network = 2 * of.width * of.hidden
    decoder = of.layers * (6 * of.width**2 + network) + VOCAB * of.width  # weights, each used once per token
    source = of.layers * (4 * of.width**2 + network + 2 * of.width**2)  # per source token
    arithmetic, memory = [], []
    for beam, batch in cells:
        rows = _rows(batch)
        tokens = sum(len(row) + 1 for row in rows) / len(rows)
        arithmetic.append(products / (2 * (decoder * OUT * beam + source * tokens)))
        memory.append(batch * reading / (4 * decoder * OUT))
    return {"limit of products": arithmetic, "limit of reading": memory}


def run(engine: str, *arguments: str) -> dict[str, list]:  # type: ignore[type-arg]
    """Run a function of this file in the environment of an engine."""
    python = HERE / ".peers" / ENGINES[engine] / "bin" / "python"
    if not python.exists():
        sys.exit(f"{python} does not exist; run: sh benchmarks/peers.sh")
    function, *rest = arguments
    done = subprocess.run(
        [str(python), __file__, "--inside", function, *rest], capture_output=True, text=True, env=environment()
    )
    if done.returncode:
        sys.exit(f"{engine} failed:\n{done.stderr[-2000:]}")
    found: dict[str, list] = json.loads(done.stdout.splitlines()[-1])  # type: ignore[type-arg]
    return found


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def folder(size: str, kind: str) -> Path:
    return HERE / ".peers" / "models" / f"{size}-{kind}"


def prepare(size: str) -> None:
    if not folder(size, "marian").exists():
        run("heedful", "write_marian", size)
    if not folder(size, "ct2").exists():
        run("ct2-float32", "write_ctranslate2", size)


def write_marian(size: str) -> None:
    """Random weights, the same for all. Marian's decoder starts from the padding vector, which is zero."""
    import torch
    from work import EOS, PAD, SIZES, VOCAB, say

    from heedful.exchange.hugging_face import save
    from heedful.families.vaswani import vaswani
    from heedful.model.initialise import initialise

    of = SIZES[size]
    torch.manual_seed(1)
    config = vaswani(vocab=VOCAB, width=of.width, hidden=of.hidden, heads=of.heads, layers=of.layers, dropout=0.0)
    model = config.build()
    initialise(model, "xavier")
    with torch.no_grad():
        model.embedding.weight[PAD] = 0
    details = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD, "forced_eos_token_id": None}
    save(model, folder(size, "marian"), "vaswani", details={**details, "max_position_embeddings": 512})
    say(written=[])


def write_ctranslate2(size: str) -> None:
    from ctranslate2.converters.transformers import MarianMTLoader
    from transformers import MarianMTModel
    from work import VOCAB, say

    model = MarianMTModel.from_pretrained(folder(size, "marian"))
    spec = MarianMTLoader().get_model_spec(model)
    words = ["</s>", "<unk>", *(f"w{index}" for index in range(2, VOCAB - 1))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.eos_token, spec.config.unk_token, spec.config.decoder_start_token = "</s>", "<unk>", "</s>"
    spec.validate()
    spec.optimize()
    folder(size, "ct2").mkdir()
    spec.save(str(folder(size, "ct2")))
    say(written=[])


def decode(size: str, engine: str, beam: str, batch: str, rounds: str) -> None:
    from work import best_of, peak_memory, say

    rows = _rows(int(batch))
    start = {"heedful": ours, "transformers": transformers}.get(engine.partition("-")[0], ctranslate2)
    work = start(size, engine, int(beam), int(batch))
    written: list[list[int]] = []

    def once() -> None:
        written[:] = work(rows)

    seconds = best_of(once, rounds=1 if engine == "transformers" else int(rounds), least=0.3)  # transformers is slow
    say(seconds=seconds, written=written, memory=peak_memory())


def _rows(batch: int) -> list[list[int]]:
    from work import sentences

    return sentences(32 if batch == 1 else 128)


Work = Callable[[list[list[int]]], list[list[int]]]


def ours(size: str, engine: str, beam: int, batch: int) -> Work:
    import torch
    from work import EOS, OUT, PAD, THREADS

    from heedful import translator
    from heedful.decoding.generation import GenerationConfig
    from heedful.exchange.hugging_face import load
    from heedful.model.int8 import quantize_int8

    class Numbers:
        """A stand-in for a tokenizer: a text is its token ids."""

        start, eos, pad, unk, never, lengths = PAD, EOS, PAD, None, (PAD,), ()

        def encode(self, texts: list[str]) -> list[list[int]]:
            return [list(map(int, text.split())) for text in texts]

        def decode(self, rows: list[list[int]]) -> list[str]:
            return [" ".join(map(str, row)) for row in rows]

    torch.set_num_threads(THREADS)
    model = load(folder(size, "marian")).model
    if engine.endswith("int8"):
        quantize_int8(model)
    tool = translator.Translator([model], [Numbers()], streams=translator.cores())  # as `heedful.load` does
    config = GenerationConfig(num_beams=beam, min_new_tokens=OUT, max_new_tokens=OUT)

    def work(rows: list[list[int]]) -> list[list[int]]:
        texts = [" ".join(map(str, row)) for row in rows]
        return [found.tokens for found in tool.translate(texts, config, batch_size=batch, batch_tokens=1 << 30)]

    return work


def ctranslate2(size: str, engine: str, beam: int, batch: int) -> Work:
    import ctranslate2
    from work import OUT

    _, kind, *streams = engine.split("-")
    inter, intra = (2, 1) if streams else (1, 2)
    tool = ctranslate2.Translator(str(folder(size, "ct2")), compute_type=kind, inter_threads=inter, intra_threads=intra)

    def work(rows: list[list[int]]) -> list[list[int]]:
        words = [[*(f"w{token}" for token in row), "</s>"] for row in rows]
        found = tool.translate_batch(
            words, beam_size=beam, max_batch_size=batch, min_decoding_length=OUT, max_decoding_length=OUT
        )
        ids = {"</s>": 0, "<unk>": 1}
        return [[ids.get(word) or int(word[1:]) for word in one.hypotheses[0]] for one in found]

    return work


def transformers(size: str, engine: str, beam: int, batch: int) -> Work:
    import torch
    from transformers import MarianMTModel
    from work import EOS, OUT, PAD, THREADS, padded

    torch.set_num_threads(THREADS)
    model = MarianMTModel.from_pretrained(folder(size, "marian")).eval()

    def work(rows: list[list[int]]) -> list[list[int]]:
        written = []
        for start in range(0, len(rows), batch):
            source = padded([[*row, EOS] for row in rows[start : start + batch]])
            with torch.inference_mode():
                found = model.generate(
                    source, attention_mask=(source != PAD).long(), num_beams=beam, do_sample=False,
                    min_new_tokens=OUT, max_new_tokens=OUT, bad_words_ids=[[PAD]],
                )  # fmt: skip
            written += [row[1 : OUT + 1] for row in found.tolist()]
        return written

    return work


if __name__ == "__main__":
    main()
