"""Options of other tools: they are accepted, or the error names the equivalent here."""

DEVICE = "the first GPU is used where there is one; to use the CPU, set CUDA_VISIBLE_DEVICES= before the command"
ON_CPU = "models run on the CPU; only training uses a GPU"
THREADS = "set OMP_NUM_THREADS=N before the command"
BOTH_FILES = "give the two files one after the other: heedful train train.en train.de --out runs/my-model"

# command -> option -> its equivalent; {} is its value
TAKEN: dict[str, dict[str, list[str]]] = {
    "train": {
        "--steps": ["training.steps={}"],
        "--max-steps": ["training.steps={}"],
        "--epochs": ["--budget", "{}epochs"],
        "--lr": ["training.learning_rate={}"],
        "--learning-rate": ["training.learning_rate={}"],
        "--seed": ["seed={}"],
        "--config": ["--recipe", "{}"],
        "--from": ["data.source_language={}"],
        "--to": ["data.target_language={}"],
        "--warmup": ["training.warmup={}"],
        "--vocab-size": ["tokenizer.vocab={}"],
    }
}
FLAGS: dict[str, dict[str, str]] = {
    "train": {"--fp16": "training.precision=float16", "--bf16": "training.precision=bfloat16"}
}
REFUSED: dict[str, dict[str, str]] = {
    "train": {
        "--batch-size": "batches are counted in tokens: use training.batch_tokens=4096",
        "--resume": "resuming is automatic: rerun the same command with the same --out",
        "--src": BOTH_FILES,
        "--tgt": BOTH_FILES,
        "--device": DEVICE,
        "--threads": THREADS,
    },
    "translate": {
        "--batch-size": "batches are counted in tokens: use --batch-tokens 2048",
        "--src": "name the file with --input",
        "--from": "a model translates in one direction: give the model folder of the one you want",
        "--to": "a model translates in one direction: give the model folder of the one you want",
        "--device": ON_CPU,
        "--threads": THREADS,
        "--model": "give the model folder by itself: heedful translate runs/my-model",
    },
}
for verb in ("distill", "evaluate", "generate", "predict", "score", "serve"):
    REFUSED[verb] = {"--device": ON_CPU, "--threads": THREADS}


def understood(arguments: list[str]) -> list[str]:
    """The arguments with other tools' options replaced; ValueError if one has no equivalent."""
    verb = arguments[0] if arguments else ""
    found: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word == "--":  # no options after this
            return [*found, word, *rest]
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            found.append(word)
        elif name in REFUSED.get(verb, {}):
            raise ValueError(f"{name}: {REFUSED[verb][name]}")
        elif name in FLAGS.get(verb, {}) and not equals:
            found.append(FLAGS[verb][name])
        elif name in TAKEN.get(verb, {}):
            given = value if equals else next(rest, "")
            if not given:
                raise ValueError(f"{name} needs a value")
            found += [part.format(given) for part in TAKEN[verb][name]]
        else:
            found.append(word)
    return found
