"""Valid folders with one thing changed: opened and used, or refused in one line, quickly and without much memory.

    python -m tests.security.fuzz --cases 2000

Each case runs in a process of its own, with limits on memory and time, and ends as `opened` (with finite results),
`refused` (ValueError or OSError, one line), or in a failure, which is printed with the seed that repeats it.
"""

import argparse
import json
import math
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import torch
import yaml

import heedful
from heedful.decoding.generation import GenerationConfig
from heedful.exchange import ctranslate2, hugging_face, llama2c, published, sentence_transformers, sentencepiece
from heedful.exchange import gguf as gguf_files
from heedful.families.bert import bert
from heedful.families.llama import llama
from heedful.model.create import create
from heedful.search import index as search_index
from heedful.search.documents import Document
from heedful.text.tokenizer import TokenizerConfig, train_tokenizer

FIXTURES = Path(__file__).parents[1] / "fixtures" / "v0_1"
SECONDS, MEMORY = 1.0, 500 << 20  # of CPU time and of memory, for opening and a first use
TEXT = ["the quick brown fox", "jumps over the lazy dog", "eins zwei drei"] * 9
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{chr(ord(name) - 1)}'] * 9)}]\n" for name in "bcdefghijk"
)
NASTY = [
    None, True, -1, 0, 1, 3, 10**6, 10**9, 10**12, 2**63, 10**30, -5, 0.5, 1e308, math.nan, math.inf, "", "x", "§",
    "x" * 10_000, "../../etc/passwd", [], {}, [[]], [1] * 1000, {"kind": "x"}, {"kind": "../../x"}, [[[[[[[]]]]]]],
    [None], ["x"], {"x": [1, {"y": None}]},
]  # fmt: skip


def translator(folder):
    shutil.copytree(FIXTURES / "translator", folder)
    (folder / "sentences.json").write_text('{"several": 0.1}')


def use_translator(folder):
    found = heedful.load(folder, streams=1).translate(["ab cd"], GenerationConfig(num_beams=2, max_new_tokens=5))
    return [found[0].score]


def generator(folder):
    shutil.copytree(FIXTURES / "generator", folder)


def use_generator(folder):
    ((found,),) = heedful.load(folder, streams=1).generate(["ab"], GenerationConfig(num_beams=1, max_new_tokens=5))
    return [found.score]


def reader():
    """A small BERT with a classifier, and its tokenizer."""
    special = ["<mask>", "<cls>", "<sep>"]
    tokenizer = train_tokenizer(TEXT, TokenizerConfig(kind="character"), vocab=300, extra=special)
    heads = [{"kind": "sequence_classification", "classes": 3}]
    plain = bert(width=16, hidden=24, layers=2, heads=2)
    torch.manual_seed(0)
    config = type(plain).model_validate({**plain.model_dump(), "vocab": tokenizer.vocab, "heads": heads})
    return create(config), tokenizer


def classifier(folder):
    from heedful.checkpoint import save_weights, state_of
    from heedful.data.prepare import save_tokenizers

    model, tokenizer = reader()
    folder.mkdir()
    save_weights(folder, state_of(model))
    save_tokenizers(folder, [tokenizer])
    recipe = {"task": {"kind": "classification"}, "model": model.config.model_dump(), "data": {"max_length": 64}}
    (folder / "config.yaml").write_text(yaml.safe_dump(recipe))
    (folder / "labels.json").write_text(json.dumps({"label": ["a", "b", "c"]}))


def use_classifier(folder):
    return list(heedful.load(folder).predict(["fox and dog"])[0]["scores"].values())


def hugging_face_folder(folder):
    tokenizer = train_tokenizer(TEXT, TokenizerConfig(), vocab=300)
    model = create(llama(width=16, hidden=24, layers=2, heads=2, vocab=tokenizer.vocab))
    hugging_face.save(model, folder, "llama", details={"rope_scaling": None, "eos_token_id": 2})
    hugging_face.save_tokenizer(tokenizer, folder, length=64, types=False)


def computed(output):
    """What a model computes by itself; decoding and heads refuse numbers that are not finite (test_strangers)."""
    if not output.isfinite().all():
        raise ValueError("weights that are finite, but too large")
    return output.flatten()[:50].tolist()


def use_published(folder):
    opened = published.load(folder)
    tokenizer = published.load_tokenizers(folder, columns=1)[0]
    rows = tokenizer.encode(["fox"])
    if tokenizer.vocab > opened.model.config.vocab:
        raise ValueError("the tokenizer is another model's")
    published.labels(folder)
    return computed(opened.model.eval()(torch.tensor(rows)))


def sentence_folder(folder):
    model, tokenizer = reader()
    hugging_face.save(model, folder, "bert")
    hugging_face.save_tokenizer(tokenizer, folder, length=64, types=True)
    sentence_transformers.write(folder, sentence_transformers.Pooling(max_length=64), width=16)


def use_sentence_folder(folder):
    pooling = sentence_transformers.read(folder)
    assert 1 <= pooling.max_length <= 1 << 31
    return use_published(folder)


def ctranslate2_folder(folder):
    folder.mkdir()
    width, hidden, vocab = 8, 12, 7
    sizes = {"encoder/embeddings/weight": (vocab, width), "decoder/embeddings/weight": (vocab, width),
             "decoder/projection/weight": (vocab, width), "decoder/projection/bias": (vocab,)}  # fmt: skip
    for side, looks in (("encoder", [("self_attention", 3)]), ("decoder", [("self_attention", 3), ("attention", 0)])):
        layer = f"{side}/layer_0"
        for name, fused in looks:
            parts = [3 * width, width] if fused else [width, 2 * width, width]
            for number, rows in enumerate(parts):
                sizes |= {f"{layer}/{name}/linear_{number}/weight": (rows, width)}
                sizes |= {f"{layer}/{name}/linear_{number}/bias": (rows,)}
        sizes |= {f"{layer}/ffn/linear_0/weight": (hidden, width), f"{layer}/ffn/linear_0/bias": (hidden,)}
        sizes |= {f"{layer}/ffn/linear_1/weight": (width, hidden), f"{layer}/ffn/linear_1/bias": (width,)}
        for place in [f"{side}/layer_norm", f"{layer}/ffn/layer_norm", *(f"{layer}/{n}/layer_norm" for n, _ in looks)]:
            sizes |= {f"{place}/gamma": (width,), f"{place}/beta": (width,)}
    found = struct.pack("<I", 4) + _text("TransformerBase") + struct.pack("<II", 1, len(sizes) + 1)
    for name, shape in sizes.items():
        count = math.prod(shape)
        found += _text(name) + struct.pack(f"<B{len(shape)}IBI", len(shape), *shape, 0, 4 * count)
        found += struct.pack(f"<{count}f", *(0.01 * (number % 7) for number in range(count)))
    found += _text("decoder/projection/weight_scale") + struct.pack("<BIBIf", 1, 1, 0, 4, 1.0)
    (folder / "model.bin").write_bytes(found)
    (folder / "shared_vocabulary.txt").write_text("\n".join("abcdefg") + "\n")


def _text(text):
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def use_ctranslate2(folder):
    model = ctranslate2.load(folder).model
    return computed(model(torch.tensor([[1, 2]]), torch.tensor([[1]])))


def llama2c_file(folder):
    folder.mkdir()
    width, hidden, layers, vocab, length = 8, 12, 2, 11, 16
    count = vocab * width + layers * (2 * width + 4 * width * width + 3 * width * hidden) + width + length * width // 2
    numbers = [0.01 * (number % 9) for number in range(count)]
    data = struct.pack("<7i", width, hidden, layers, 2, 2, vocab, length) + struct.pack(f"<{count}f", *numbers)
    (folder / "model.bin").write_bytes(data)


def use_llama2c(folder):
    return computed(llama2c.load(folder / "model.bin").eval()(torch.tensor([[1, 2]])))


def gguf_file(folder):
    from gguf import GGUFWriter

    folder.mkdir()
    width, hidden, vocab = 8, 12, 11
    writer = GGUFWriter(folder / "model.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>", "▁", *"abcdefg"]
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(number) for number in range(vocab)])
    writer.add_token_types([2, 3, 3, *[1] * 8])
    sizes = {"token_embd": (vocab, width), "output_norm": (width,)}
    sizes |= {f"blk.0.attn_{part}": (width, width) for part in ("q", "k", "v", "output")}
    sizes |= {"blk.0.ffn_gate": (hidden, width), "blk.0.ffn_up": (hidden, width), "blk.0.ffn_down": (width, hidden)}
    sizes |= {"blk.0.attn_norm": (width,), "blk.0.ffn_norm": (width,)}
    for name, shape in sizes.items():
        writer.add_tensor(f"{name}.weight", (torch.arange(math.prod(shape)) % 7 / 100).reshape(shape).numpy())
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()


def use_gguf(folder):
    file = folder / "model.gguf"
    model = gguf_files.load(file).model
    rows = gguf_files.tokenizer(file).encode(["ab"])
    return computed(model.eval()(torch.tensor(rows))) if max(rows[0]) < model.config.vocab else []


def sentencepiece_file(folder):
    folder.mkdir()
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *((one, -1.0, 1) for one in ["▁", *"abcd", "ab"])]
    found = b""
    for text, score, kind in pieces:
        inner = b"\x0a" + bytes([len(text.encode())]) + text.encode() + b"\x15" + struct.pack("<f", score)
        inner += b"\x18" + bytes([kind])
        found += b"\x0a" + bytes([len(inner)]) + inner
    (folder / "spiece.model").write_bytes(found + b"\x12\x02\x18\x02" + b"\x1a\x02\x18\x01")


def use_sentencepiece(folder):
    made = sentencepiece.backend(sentencepiece.read(folder / "spiece.model"))
    return [float(index) for index in made.encode("ab").ids]


def index_folder(folder):
    search_index.build([Document(str(n), "title", text) for n, text in enumerate(TEXT[:3])], folder)


def use_index(folder):
    hits = search_index.Index(folder, load=lambda model: None).search("fox", by="words")
    return [hit.score for hit in hits]


KINDS = {
    "translator": (translator, use_translator),
    "generator": (generator, use_generator),
    "classifier": (classifier, use_classifier),
    "hugging_face": (hugging_face_folder, use_published),
    "sentence_transformers": (sentence_folder, use_sentence_folder),
    "ctranslate2": (ctranslate2_folder, use_ctranslate2),
    "llama2c": (llama2c_file, use_llama2c),
    "gguf": (gguf_file, use_gguf),
    "sentencepiece": (sentencepiece_file, use_sentencepiece),
    "index": (index_folder, use_index),
}


def change(folder, draw):
    """Change one thing; what was changed."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "README.md")
    weights = {path: 3 if path.suffix in (".json", ".yaml") else 1 for path in files}
    (path,) = draw.choices(files, [weights[path] for path in files])
    if path.suffix in (".json", ".yaml") and draw.random() < 0.75:
        return f"{path.name}: {_change_value(path, draw)}"
    data = bytearray(path.read_bytes())
    how = draw.choice(["flip", "flip", "header", "truncate", "empty", "swap", "junk", "pipe", "missing"])
    if how in ("flip", "header") and data:
        place = draw.randrange(min(len(data), 64) if how == "header" else len(data))
        data[place] = draw.choice([0, 255, data[place] ^ (1 << draw.randrange(8))])
        path.write_bytes(data)
        return f"{path.name}: byte {place} is {data[place]}"
    if how == "truncate":
        path.write_bytes(data[: draw.randrange(len(data) + 1)])
    elif how == "swap":
        shutil.copyfile(draw.choice(files), folder / "other")
        (folder / "other").replace(path)
    elif how == "junk":
        texts = [LAUGHS, "[" * 100_000, "{" * 100_000 + "}", '{"a":' * 5000, "- " * 30_000, "\0" * 100, "1" * 10_000]
        path.write_text(draw.choice(texts))
    elif how in ("pipe", "missing"):
        path.unlink()
        if how == "pipe":
            os.mkfifo(path)
    else:
        path.write_bytes(b"")
    return f"{path.name}: {how}"


def _change_value(path, draw):
    is_json = path.suffix == ".json"
    data = json.loads(path.read_text()) if is_json else yaml.safe_load(path.read_text())
    places = list(_places(data))
    place, key = draw.choice(places)
    value = draw.choice(NASTY)
    if draw.random() < 0.1:
        del place[key]
        value = "removed"
    else:
        place[key] = value
    path.write_text(json.dumps(data) if is_json else yaml.safe_dump(data))
    return f"{key} = {value!r:.60}"


def _places(data):
    """Every place in nested data that may hold something else; of long lists and tables, a few."""
    if isinstance(data, dict | list):
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        for key in keys[:60]:
            yield data, key
            yield from _places(data[key])


def run_case(kind, original, seed):
    """One case in a process of its own: (outcome, what was changed, details)."""
    draw = random.Random(f"{kind} {seed}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "it"
        shutil.copytree(original, folder)
        changed = change(folder, draw)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            _limited(kind, folder, write)
        os.close(write)
        with os.fdopen(read) as said:
            text = said.read()
        _, status = os.waitpid(child, 0)
    if not text:
        return "died", changed, f"by signal {signal.Signals(os.WTERMSIG(status)).name}" if status & 127 else str(status)
    outcome, details = json.loads(text)
    return outcome, changed, details


def _limited(kind, folder, write):
    """Open and use a folder within the limits, and write down how it went."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
    signal.alarm(30)  # for what waits without working
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # panics of libraries print, too
    warnings.simplefilter("ignore")
    start = time.process_time()
    try:
        numbers = KINDS[kind][1](folder)
        outcome = ("opened", "") if all(map(math.isfinite, numbers)) else ("not finite", str(numbers[:5]))
    except (ValueError, OSError) as error:
        lines = len(str(error).splitlines())
        outcome = ("refused", str(error)) if lines == 1 and type(error).__name__ != "ValidationError" else (
            "many lines", str(error))  # fmt: skip
    except BaseException as error:
        outcome = ("traceback", f"{type(error).__name__}: {error}")
    if time.process_time() - start > SECONDS:
        outcome = ("slow", f"{time.process_time() - start:.1f} s, {outcome}")
    os.write(write, json.dumps(outcome).encode()[:60_000])
    os._exit(0)


def run(cases, *, kinds=tuple(KINDS), start=0):
    """The outcomes of so many cases, counted by kind, and a line for each failure."""
    torch.set_num_threads(1)  # a process that is forked has no other threads
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    counts, failures = {}, []
    with tempfile.TemporaryDirectory() as temporary:
        for kind in kinds:
            original = Path(temporary) / kind
            KINDS[kind][0](original)
            counts[kind] = Counter()
            for seed in range(start, start + cases // len(kinds)):
                outcome, changed, details = run_case(kind, original, seed)
                counts[kind][outcome] += 1
                if outcome not in ("opened", "refused"):
                    failures.append(f"{kind} {seed}: {changed}: {outcome}: {details}"[:600])
    return counts, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--start", type=int, default=0)
    given = parser.parse_args()
    kinds, every = given.kinds.split(","), 0
    print("| kind | opened | refused | failed |\n|---|---|---|---|")
    for kind in kinds:
        counts, failures = run(given.cases // len(kinds), kinds=(kind,), start=given.start)
        print(f"| {kind} | {counts[kind]['opened']} | {counts[kind]['refused']} | {len(failures)} |", flush=True)
        print("".join(f"{line}\n" for line in failures), end="", file=sys.stderr, flush=True)
        every += len(failures)
    sys.exit(bool(every))


if __name__ == "__main__":
    main()
