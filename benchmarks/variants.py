"""Which attention learns what? All variants on three corpora, by `heedful compare`: same data, seeds and training time.

    python benchmarks/variants.py --out runs/variants                     everything: about two hours on two cores
    python benchmarks/variants.py --out runs/variants --only mini --budget 40s --seeds 2

    mini      the generated English-German corpus of the demo, 20,000 pairs: BLEU on combinations unseen in training
    listops   nested expressions and their value (../shared/data/listops), read as text, written as a digit: exact match
              is BLEU's, since a target is one token
    prose     ten novels by character (../shared/data/prose), a language model: validation loss

Texts are short, so this shows what the attentions learn, not what they save: see attention.py for that.
"""

import argparse
import gzip
import os
import subprocess
import sys
from pathlib import Path

DATA = Path(os.environ.get("HEEDFUL_DATA", Path(__file__).parents[2] / "shared" / "data"))
LISTOPS = 400  # tokens of an expression at most


def encoder(keys: str) -> str:
    return " ".join(f"model.encoder.{key}" for key in keys.split())


def decoder(keys: str) -> str:
    return " ".join(f"model.decoder.{key}" for key in keys.split())


PAIRS = {
    "window": encoder("attention.window=16 attention.mix=window"),
    "longformer": encoder("attention.window=16 attention.mix=longformer"),
    "bigbird": encoder("attention.mix=bigbird attention.mix.block=8"),
    "linformer": encoder("attention.mix=linformer length=512"),
    "performer": encoder("attention.mix=performer"),
    "linear": encoder("attention.mix=linear"),
    "lsh": encoder("attention.mix=lsh"),
    "relative": encoder("position=relative") + " " + decoder("position=relative"),
    "recurrent": "model.encoder=recurrent model.decoder=recurrent",
    "convolutional": "model.encoder=convolutional model.decoder=convolutional",
}
TEXT = {
    "window": decoder("attention.window=64 attention.mix=window"),
    "performer": decoder("attention.mix=performer attention.dropout=0"),
    "linear": decoder("attention.mix=linear attention.dropout=0"),
    "lsh": decoder("attention.mix=lsh attention.dropout=0"),
    "transformer_xl": decoder("attention.mix=transformer_xl position=none") + " task.windows=segments task.memory=64",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=["mini", "listops", "prose"], default=["mini", "listops", "prose"])
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--variants", nargs="+", help="only these, beside the baseline")
    parser.add_argument("--keys", nargs="+", default=[], help="recipe keys for all, such as training.batch_tokens=2048")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        words, variants = {"mini": mini, "listops": listops, "prose": prose}[name](options.out)
        chosen = {one: keys for one, keys in variants.items() if not options.variants or one in options.variants}
        command = [sys.executable, "-m", "heedful", "compare", *words, *options.keys]
        command += ["--out", str(options.out / name), "--markdown"]
        command += ["--budget", options.budget, "--seeds", str(options.seeds)]
        command += [word for one, keys in chosen.items() for word in ("--variant", f"{one}: {keys}")]
        print(f"\n### {name}, {options.budget} each\n", flush=True)
        subprocess.run(command, check=True)


def mini(out: Path) -> tuple[list[str], dict[str, str]]:
    subprocess.run([sys.executable, "-m", "heedful", "corpus", "mini", "--out", str(out / "corpus")],
                   check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    files = [out / "corpus" / f"{name}.tsv" for name in ("train", "valid", "test")]
    return [str(files[0]), "--valid", str(files[1]), "--test", str(files[2])], PAIRS


def listops(out: Path) -> tuple[list[str], dict[str, str]]:
    file = out / "listops.tsv"
    with gzip.open(DATA / "listops" / "d20s.tsv.gz", "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    plain = [(" ".join(expression.replace("(", " ").replace(")", " ").split()), answer) for answer, expression in rows]
    kept = [(expression, answer) for expression, answer in plain if len(expression.split()) <= LISTOPS]
    file.write_text("".join(f"{expression}\t{answer}\n" for expression, answer in kept), encoding="utf-8")
    return [str(file), "tokenizer.vocab=300", "data.max_length=511"], PAIRS


def prose(out: Path) -> tuple[list[str], dict[str, str]]:
    file = out / "prose.txt"
    file.write_bytes(gzip.decompress((DATA / "prose" / "train.txt.gz").read_bytes())[:2_000_000])
    return [str(file), "--recipe", "char-gpt"], TEXT


if __name__ == "__main__":
    main()
