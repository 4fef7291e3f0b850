"""`heedful import` and `heedful export`: other people's model folders in, ours out."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from heedful.exchange.hugging_face import Opened
    from heedful.model.architecture import Model
    from heedful.text.tokenizer import Tokenizer

TASKS = {
    "sequence_classification": "classification",
    "token_classification": "tagging",
    "answer_span": "question_answering",
    "masked_lm": "masked_lm",
}


def import_model(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER_OR_FILE", help="Hugging Face folder, sentence-transformers folder, or GGUF file."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The model folder to write.")],
    base: Annotated[
        Path | None, typer.Option(help="For an adapter of PEFT: the model that it belongs to, in any of these layouts.")
    ] = None,
) -> None:
    """Turn a published model, or an adapter of PEFT, into a Heedful model folder, which every other command opens.

    Examples:

      heedful import opus-mt-en-de --out runs/en-de

      heedful import SmolLM2-135M-Instruct.Q4_1.gguf --out runs/smollm2

      heedful import their-adapter --base runs/smollm2 --out runs/adapter
    """
    import yaml

    from heedful.checkpoint import save_weights, state_of
    from heedful.data.prepare import save_tokenizers
    from heedful.exchange import peft, published
    from heedful.files import locked, write_text
    from heedful.model.architecture import SequenceToSequence

    _refuse_model(out)
    if peft.is_peft(source):
        _import_adapter(source, base, out)
        return
    if base is not None:
        raise ValueError(
            f"{source} holds no adapter of PEFT's (adapter_config.json), so it has no base; leave --base out"
        )
    if not published.is_published(source):
        raise ValueError(f"{source} is not {published.LAYOUTS}")
    opened = published.load(source)
    tokenizers = published.load_tokenizers(source, columns=2 if isinstance(opened.model, SequenceToSequence) else 1)
    recipe = _recipe(opened, source, _layout(source, tokenizers))
    rows = getattr(opened.model.config, "vocab", None)
    if rows and tokenizers and tokenizers[-1].vocab > rows:
        raise ValueError(
            f"{source}: the tokenizer has {tokenizers[-1].vocab:,} tokens, but the model has {rows:,} rows for them; "
            "remove the added tokens from tokenizer.json"
        )
    with locked(out / ".lock", "a training or an import"):
        _refuse_model(out)
        save_weights(out, state_of(opened.model))
        save_tokenizers(out, tokenizers)
        if labels := published.labels(source):
            write_text(out / "labels.json", json.dumps(labels, indent=2, ensure_ascii=False))
        write_text(out / "README.md", f"# A {recipe['task']['kind']} model\n\nImported from {source.name}.\n")
        write_text(out / "config.yaml", yaml.safe_dump(recipe, sort_keys=False))
    count = sum(parameter.numel() for parameter in opened.model.parameters())
    print(f"{out}: {recipe['task']['kind']}, {count:,} parameters, vocabulary {tokenizers[-1].vocab:,}")
    if note := published.remark(source):
        print(note)


def _import_adapter(source: Path, base: Path | None, out: Path) -> None:
    """An adapter of PEFT's, beside its base."""
    import yaml

    from heedful.bases import Base, digest_of, is_ours
    from heedful.checkpoint import load_whole, read_config, save_weights
    from heedful.data.prepare import load_tokenizers, save_tokenizers
    from heedful.exchange import peft, published
    from heedful.files import locked, write_text
    from heedful.model.architecture import SequenceToSequence
    from heedful.training.recipe import parse_recipe

    if base is None:
        raise ValueError(f"{source} holds an adapter; name the model that it belongs to: --base MODEL")
    if is_ours(base):
        recipe, model = read_config(base), load_whole(base)
        tokenizers = load_tokenizers(base, columns=2 if recipe["task"]["kind"] == "translation" else 1)
    else:
        opened = published.load(base)
        model = opened.model
        tokenizers = published.load_tokenizers(base, columns=2 if isinstance(model, SequenceToSequence) else 1)
        recipe = _recipe(opened, base, _layout(base, tokenizers))
    adapter, state = peft.read(source, model)
    recipe = {**recipe, "adapter": adapter.model_dump(mode="json"), "start_from": str(base)}
    with locked(out / ".lock", "a training or an import"):
        _refuse_model(out)
        Base(base, digest_of(base)).write(out)
        save_weights(out, state)
        save_tokenizers(out, tokenizers)
        write_text(out / "README.md", f"# An adapter ({adapter.kind}) of {base.name}\n\nImported from {source.name}.\n")
        written = parse_recipe(recipe).model_dump(mode="json")
        write_text(out / "config.yaml", yaml.safe_dump(written, sort_keys=False))
    count = sum(tensor.numel() for tensor in state.values())
    print(f"{out}: adapter {adapter.kind} of {base}, {count:,} parameters")


def _refuse_model(out: Path) -> None:
    if (out / "config.yaml").exists():
        raise ValueError(f"{out} already holds a model; choose another --out")


def _layout(source: Path, tokenizers: Sequence["Tokenizer"]) -> str:
    """Where a published model expects the tokens of languages: mBART's layout is ours of that name. mBART-50, of the
    same family, has another, and starts every text with </s>, as no layout of ours does."""
    from heedful.exchange import published

    if not (tokenizers and tokenizers[-1].languages):
        return ""
    kind, class_name = published.family(source)
    return "mbart" if kind == "mbart" and not class_name.startswith("MBart50") else ""


def _recipe(opened: "Opened", source: Path, layout: str) -> dict[str, Any]:
    """The resolved recipe of a published model: its architecture, and the task that its heads are for. `layout`: of
    language tokens, if it has any."""
    from heedful.config import kinds
    from heedful.exchange import sentence_transformers
    from heedful.model.architecture import LanguageModel, SequenceToSequence
    from heedful.training.recipe import parse_recipe

    limit = min([256, *opened.model.config.limits().values()])
    data: dict[str, Any] = {"max_length": limit}
    if isinstance(opened.model, LanguageModel):
        task: dict[str, Any] = {"kind": "causal_lm", "context": limit}
    elif isinstance(opened.model, SequenceToSequence):
        task = {"kind": "translation"}
        data = {"max_length": limit - 1 - bool(layout), "language_tokens": layout}
    elif sentence_transformers.has_pooling(source):
        pooling = sentence_transformers.read(source)
        task = {"kind": "embedding", "pooling": pooling.kind, "normalise": pooling.normalise}
        data = {"max_length": pooling.max_length}
    else:
        heads = [head.kind for head in getattr(opened.model.config, "heads", ())]
        found = next((name for head, name in TASKS.items() if head in heads), None)
        if found is None:
            raise ValueError(
                f"{source} has no head that says what it is for; train one: heedful train DATA --start-from {source}"
            )
        task = {"kind": found}
    if task["kind"] not in kinds("tasks"):
        raise ValueError(f"{source} is a model for {task['kind']}, a task that this version does not have")
    made = parse_recipe({"task": task, "data": data, "model": opened.model.config.model_dump()})
    return made.model_dump(mode="json")


def export_model(
    folder: Annotated[Path, typer.Argument(metavar="MODEL", help="A Heedful model folder.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    to: Annotated[
        Literal["hugging_face", "sentence_transformers", "peft"],
        typer.Option(
            help="The layout: that of transformers, of sentence-transformers (sentence vectors), or of PEFT (an "
            "adapter alone). An adapter is merged into its base for the first two."
        ),
    ] = "hugging_face",
) -> None:
    """Write a model folder in another tool's layout, with its tokenizer and the names of its labels.

    Examples:

      heedful export runs/tickets --out tickets-hf

      heedful export runs/vectors --to sentence_transformers --out vectors-st

      heedful export runs/adapter --to peft --out adapter-peft
    """
    from heedful.checkpoint import load_whole, open_tokenizers, read_config
    from heedful.exchange import hugging_face, sentence_transformers

    recipe = read_config(folder)
    task = recipe.get("task") or {"kind": "translation"}
    kind = task["kind"] if isinstance(task, dict) else task
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; choose another --out")
    if to == "peft":
        _export_adapter(folder, out)
        return
    if to == "sentence_transformers" and kind != "embedding":
        raise ValueError(
            f"{folder} is a model for {kind}; only models for embedding have sentence-transformers' layout"
        )
    model = load_whole(folder)
    tokenizers = open_tokenizers(folder, model, columns=2 if kind == "translation" else 1)
    family = hugging_face.family_for(model)
    length = (recipe.get("data") or {}).get("max_length", 256)
    hugging_face.save(model, out, family, details={**_details(tokenizers[-1], model), **_labels(folder, kind)})
    types = bool(getattr(model.config, "token_types", 0))
    hugging_face.save_tokenizer(tokenizers[0], out, length=model.limit or length, types=types)
    if tokenizers[0] is not tokenizers[-1]:
        hugging_face.save_tokenizer(tokenizers[-1], out / "target_tokenizer", length=model.limit or length, types=types)
        print(f"the target has a tokenizer of its own: {out / 'target_tokenizer'}")
    if to == "sentence_transformers":
        pooling = sentence_transformers.Pooling(task["pooling"], task["normalise"], length)
        sentence_transformers.write(out, pooling, width=model.config.width)
    print(f"{out}: a {family} folder")


def _export_adapter(folder: Path, out: Path) -> None:
    from safetensors.torch import load_file

    from heedful.bases import base_of, parse_adapter
    from heedful.checkpoint import load_model, read_config
    from heedful.exchange import peft

    adapter = parse_adapter(read_config(folder))
    if adapter is None:
        raise ValueError(f"{folder} holds a whole model, not an adapter; leave --to peft out")
    base = base_of(folder).folder
    trained = sorted(load_file(folder / "model.safetensors"))
    peft.write(load_model(folder, beside=True), adapter, trained, out, base=str(base))
    print(
        f"{out}: an adapter of PEFT's; its base is {base}, as a folder of transformers: heedful export {base} --out ..."
    )


def _details(tokenizer: "Tokenizer", model: "Model") -> dict[str, Any]:
    """The ids of special tokens, as config.json states them."""
    from heedful.model.architecture import SequenceToSequence

    found = {f"{role}_token_id": tokenizer.special(role) for role in ("bos", "eos", "pad")}
    if isinstance(model, SequenceToSequence):
        found["decoder_start_token_id"] = tokenizer.start
    return {name: index for name, index in found.items() if index is not None}


def _labels(folder: Path, kind: str) -> dict[str, Any]:
    """The names of the classes, and what kind of problem it is."""
    from heedful.bounded import read_json

    try:
        data = read_json(folder / "labels.json")
    except FileNotFoundError:
        data = []
    names = next(iter(data.values()), []) if isinstance(data, dict) else data
    found: dict[str, Any] = {}
    if names:
        found["id2label"] = {str(index): name for index, name in enumerate(names)}
        found["label2id"] = {name: index for index, name in enumerate(names)}
    problems = {"classification": "single_label_classification", "regression": "regression"}
    return {**found, **({"problem_type": problems[kind]} if kind in problems else {})}
