"""How fast language models write and read prompts: ours beside transformers, CTranslate2 and llama.cpp, on the same
weights.

    python benchmarks/writing.py SmolLM2-135M-Instruct.Q4_1.gguf
    python benchmarks/writing.py SmolLM2-135M-Instruct.Q4_1.gguf --random    of GPT-2's size, with that file's tokenizer

Every engine gets the same token ids, runs in a process of its own, and takes turns with the others. "writing": tokens
per second after prompts of 16 tokens, 64 each; "prompt": tokens read per second of a prompt of 256. In brackets: how
many of the continuations equal our float32's. The last row is what reading all float32 weights once per step allows on
this machine. Needs gguf; ctranslate2 and xllamacpp are left out, by name, if they are not installed.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PROMPT, OUT, LONG = 16, 64, 256
CELLS = {"writing, batch 1": (1, PROMPT, OUT), "writing, batch 16": (16, PROMPT, OUT), "prompt": (1, LONG, 1)}
ENGINES = ["heedful float32", "heedful int8", "transformers float32", "ctranslate2 float32", "ctranslate2 int8"]
ENGINES += ["llama.cpp float32", "llama.cpp int8"]
PACKAGES = {"ctranslate2": "ctranslate2", "llama.cpp": "xllamacpp"}
Rows = list[list[int]]
Write = Callable[[Rows, int], Rows | list[str]]  # what was written, as token ids or as text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file of a LLaMA-style model")
    parser.add_argument("--random", action="store_true", help="random weights, of GPT-2's size")
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where the model is kept in the formats of the engines")
    parser.add_argument("--agreement", action="store_true", help="only how often int8 continues as float32 does")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        measure(*options.inside, options.out)
        return
    with tempfile.TemporaryDirectory() as temporary:
        out = options.out or Path(temporary)
        if not (out / "hf").exists():
            prepare(options.model, out, options.random)
        if options.agreement:
            agreement(out)
            return
        table([one for one in options.engines if runs(one, out)], options.turns, options.model, out)


def runs(engine: str, out: Path) -> bool:
    package = PACKAGES.get(engine.split()[0])
    if package and importlib.util.find_spec(package) is None:
        print(f"{engine}: {package} is not installed")
        return False
    return not engine.startswith("llama.cpp") or (out / "int8.gguf").exists()


def table(engines: list[str], turns: int, model: str, out: Path) -> None:
    from work import read_rate

    rates: dict[tuple[str, str], float] = {}
    written: dict[tuple[str, str], list[str]] = {}
    for cell in CELLS:
        for _ in range(turns):
            for engine in engines:
                words = [sys.executable, __file__, model, "--out", str(out), "--inside", engine, cell]
                done = subprocess.run(words, capture_output=True, text=True, env=environment())
                if done.returncode:
                    sys.exit(f"{engine} failed:\n{done.stderr[-2000:]}")
                found = json.loads(done.stdout.splitlines()[-1])
                rates[engine, cell] = max(found["rate"], rates.get((engine, cell), 0))
                written[engine, cell] = found["written"]
                print(cell, engine, f"{found['rate']:.1f}", file=sys.stderr)
    print(f"| {model.rpartition('/')[2]}, tokens/s | " + " | ".join(CELLS) + " |")
    print("|---|" + "---:|" * len(CELLS))
    for engine in engines:
        cells = []
        for cell, (_, _, new) in CELLS.items():
            wanted, own = written[engines[0], cell], written[engine, cell]
            same = sum(one == other for one, other in zip(wanted, own, strict=True))
            note = f" ({same}/{len(own)})" if new > 1 and engine != engines[0] else ""
            cells.append(f"{rates[engine, cell]:,.1f}{note}")
        print(f"| {engine} | " + " | ".join(cells) + " |")
    weights = sum(file.stat().st_size for file in (out / "hf").glob("*.safetensors"))
    print(f"| limit of reading float32 | {read_rate() / weights:,.1f} | {16 * read_rate() / weights:,.1f} | |")


def agreement(out: Path) -> None:
    """Of 100 prompts: how many continuations by int8 weights equal those by float32, for several lengths."""
    prompts = prompts_of(out, 100, PROMPT)
    pairs = list(zip(*(heedful(out, kind, 100)(prompts, OUT) for kind in ("float32", "int8")), strict=True))
    for length in (8, 16, 32, OUT):
        same = sum(one[:length] == other[:length] for one, other in pairs)
        print(f"{length} tokens: {same} of {len(pairs)} continuations of int8 are those of float32")


def environment() -> dict[str, str]:
    found = {**os.environ, "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**found, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}


def measure(engine: str, cell: str, out: Path) -> None:
    """Prints tokens per second, the best of three, and what was written."""
    from work import best_of

    rows, prompt, new = CELLS[cell]
    write = START[engine.split()[0]](out, engine.split()[1], rows)
    prompts = prompts_of(out, rows, prompt)
    written = write(prompts, new)
    texts = [row if isinstance(row, str) else text_of(row, new, out) for row in written]
    seconds = min(best_of(lambda: write(prompts, new), rounds=3, least=0.5))
    print(json.dumps({"rate": rows * (new if new > 1 else prompt) / seconds, "written": texts}))


def text_of(row: list[int], new: int, out: Path) -> str:
    from tokenizers import Tokenizer

    assert len(row) == new, f"{len(row)} tokens, not {new}"
    return str(Tokenizer.from_file(str(out / "hf" / "tokenizer.json")).decode(row))


def prompts_of(out: Path, rows: int, length: int) -> Rows:
    from tokenizers import Tokenizer

    text = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    ids = Tokenizer.from_file(str(out / "hf" / "tokenizer.json")).encode(text).ids
    return [ids[row * 17 : row * 17 + length] for row in range(rows)]


def prepare(model: str, out: Path, random: bool) -> None:
    import torch

    from heedful.exchange import hugging_face, published
    from heedful.families.gpt2 import gpt2
    from heedful.model.initialise import initialise

    (tokenizer,) = published.load_tokenizers(model, columns=1)
    if random:
        torch.manual_seed(1)
        config = gpt2(width=768, layers=12, heads=12).model_copy(update={"vocab": tokenizer.vocab})
        built = config.build()
        initialise(built, "normal")
        hugging_face.save(built, out / "hf", "gpt2")
    else:
        opened = published.load(model)
        hugging_face.save(opened.model, out / "hf", opened.family, details=opened.details)
        for name in ("float32", "int8"):
            write_gguf(Path(model), out / f"{name}.gguf", name)
    hugging_face.save_tokenizer(tokenizer, out / "hf", length=1024, types=False)


def write_gguf(source: Path, target: Path, kind: str) -> None:
    """A copy of a GGUF file with its matrices in another type."""
    import gguf

    reader, to = (
        gguf.GGUFReader(source),
        gguf.GGMLQuantizationType.F32 if kind == "float32" else gguf.GGMLQuantizationType.Q8_0,
    )
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        many = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if many else None)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim > 1 and kind == "int8":
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, to), raw_dtype=to)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def heedful(out: Path, kind: str, batch: int) -> Write:
    from heedful.decoding.generation import GenerationConfig
    from heedful.decoding.runner import Request, numbered
    from heedful.exchange import hugging_face, published
    from heedful.generator import Generator
    from heedful.model.int8 import quantize_int8

    model = hugging_face.load(out / "hf").model.eval().requires_grad_(False)
    (tokenizer,) = published.load_tokenizers(out / "hf", columns=1)
    if kind == "int8":
        quantize_int8(model)
    tool = Generator(model, tokenizer)  # type: ignore[arg-type]

    def write(prompts: Rows, new: int) -> Rows:
        config = GenerationConfig(num_beams=1, min_new_tokens=new, max_new_tokens=new)
        jobs = numbered(prompts, [Request("") for _ in prompts])
        found = tool.runner.run([(config, jobs)], batch_tokens=1 << 20)
        return [found[number][0].tokens for number in range(len(prompts))]

    return write


def transformers(out: Path, kind: str, batch: int) -> Write:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(out / "hf", dtype=torch.float32).eval()

    @torch.inference_mode()
    def write(prompts: Rows, new: int) -> Rows:
        ids = torch.tensor(prompts)
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=new, max_new_tokens=new,
            pad_token_id=0,
        )  # fmt: skip
        return [row[ids.shape[1] :] for row in found.tolist()]

    return write


def ctranslate2(out: Path, kind: str, batch: int) -> Write:
    import ctranslate2
    from transformers import AutoTokenizer

    to = out / f"ctranslate2-{kind}"
    if not to.exists():
        ctranslate2.converters.TransformersConverter(str(out / "hf")).convert(str(to), quantization=kind)
    model = ctranslate2.Generator(str(to), inter_threads=1, intra_threads=2, compute_type=kind)
    tokenizer = AutoTokenizer.from_pretrained(out / "hf")

    def write(prompts: Rows, new: int) -> Rows:
        words = [tokenizer.convert_ids_to_tokens(row) for row in prompts]
        found = model.generate_batch(
            words, max_length=new, min_length=new, include_prompt_in_result=False, sampling_topk=1
        )
        return [one.sequences_ids[0] for one in found]

    return write


def llama_cpp(out: Path, kind: str, batch: int) -> Write:
    import xllamacpp as xlc

    how = xlc.CommonParams()
    how.model.path, how.n_ctx, how.n_parallel, how.warmup = str(out / f"{kind}.gguf"), 512 * batch, batch, False
    how.cpuparams.n_threads = how.cpuparams_batch.n_threads = 2
    if kind == "float32":
        how.cache_type_k = how.cache_type_v = xlc.ggml_type.GGML_TYPE_F32
    server = xlc.Server(how)

    def one(row: list[int], new: int) -> str:
        asked = {"prompt": row, "n_predict": new, "top_k": 1, "temperature": 0, "ignore_eos": True}
        found: dict[str, Any] = server.handle_completions({**asked, "cache_prompt": False})
        assert found["usage"]["completion_tokens"] == new, found["usage"]
        return str(found["choices"][0]["text"])

    def write(prompts: Rows, new: int) -> list[str]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda row: one(row, new), prompts))

    return write


START: dict[str, Callable[[Path, str, int], Write]] = {
    "heedful": heedful,
    "transformers": transformers,
    "ctranslate2": ctranslate2,
    "llama.cpp": llama_cpp,
}

if __name__ == "__main__":
    main()
