"""`heedful merge`: an adapter and its base as one model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.model.architecture import Model

LEFT = {"model.safetensors", "base.json", "asked.json", "metrics.jsonl", "training.png", ".lock", "input"}


def merge(
    adapters: Annotated[
        list[Path], typer.Argument(metavar="ADAPTER...", help="Folders of adapters, all of the same base.")
    ],
    *,
    out: Annotated[Path, typer.Option(help="The model folder to write.")],
    weights: Annotated[
        str, typer.Option(help="How much of each adapter, such as 0.5,0.5; by default all of it.", show_default=False)
    ] = "",
) -> None:
    """Write an adapter and its base as one model; of several adapters, the sum of their changes.

    Prints how far the merged model is from the adapter beside its base, on random tokens, before it is written.

    Examples:

      heedful merge runs/adapter --out runs/merged

      heedful merge runs/law runs/medicine --weights 0.7,0.3 --out runs/both
    """
    from heedful.bases import base_of, is_adapter
    from heedful.checkpoint import load_model, load_whole

    for folder in adapters:
        if not is_adapter(folder):
            raise ValueError(f"{folder} is not the folder of an adapter: there is no base.json in it")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; choose another --out")
    shares = _shares(weights, len(adapters))
    bases = [base_of(folder) for folder in adapters]
    if len({base.digest for base in bases}) > 1:
        raise ValueError("these adapters have different bases: " + ", ".join(str(base.folder) for base in bases))
    model = load_whole(adapters[0])
    if len(adapters) == 1 and shares == [1.0]:
        largest, equal = _differences(load_model(adapters[0], beside=True), model)
        print(f"merged and beside differ by at most {largest:.1e} in their outputs; best tokens equal: {equal:.2%}")
    else:
        _add(model, [load_whole(folder).state_dict() for folder in adapters], shares, bases[0].folder)
    _write(model, adapters[0], out)
    print(f"{out}: {sum(parameter.numel() for parameter in model.parameters()):,} parameters")


def _shares(weights: str, count: int) -> list[float]:
    try:
        found = [float(one) for one in weights.split(",")] if weights else [1.0] * count
    except ValueError:
        found = []
    if len(found) != count:
        raise ValueError(f"--weights takes a number for each of the {count} adapters, such as 0.5,0.5, not {weights!r}")
    return found


def _add(model: "Model", merged: "list[dict[str, Tensor]]", shares: list[float], base: Path) -> None:
    """Set the weights to those of the base, and the shares of each adapter's change of them."""
    from heedful.bases import weights_of
    from heedful.checkpoint import load_whole

    before, _ = weights_of(base, list(merged[0]), model.config, load_whole)
    new = sorted(set(merged[0]) - set(before))
    if new:
        raise ValueError(f"these adapters have parts that the base does not have ({new[0]}), which cannot be added up")
    model.load_state_dict({
        name: tensor + sum(share * (one[name] - tensor) for share, one in zip(shares, merged, strict=True))
        for name, tensor in before.items() if name in merged[0]
    })  # fmt: skip


def _differences(beside: "Model", merged: "Model") -> tuple[float, float]:
    """The largest difference of the outputs for random tokens, and the share of places with the same largest one."""
    import torch

    from heedful.model.architecture import SequenceToSequence

    vocab = getattr(merged.config, "vocab", 2)
    tokens = torch.randint(vocab, (4, 16), generator=torch.Generator().manual_seed(0))
    rows = min(getattr(merged.config, "source_vocab", None) or vocab, vocab)
    inputs = (tokens % rows, tokens) if isinstance(merged, SequenceToSequence) else (tokens,)
    with torch.inference_mode():
        first, second = beside(*inputs), merged(*inputs)
    return float((first - second).abs().max()), float((first.argmax(-1) == second.argmax(-1)).float().mean())


def _write(model: "Model", adapter: Path, out: Path) -> None:
    """The whole model, with what else the adapter's folder has."""
    import shutil

    import yaml

    from heedful.checkpoint import read_config, save_weights, state_of
    from heedful.files import in_place, locked, write_text

    out.mkdir(parents=True, exist_ok=True)
    with locked(out / ".lock", "a training or a merge"):
        for file in sorted(adapter.iterdir()):
            if file.is_file() and file.name not in LEFT and file.name != "config.yaml":
                with in_place(out / file.name) as temporary:
                    shutil.copyfile(file, temporary)
        save_weights(out, state_of(model))
        recipe = {**read_config(adapter), "adapter": None, "start_from": ""}
        write_text(out / "config.yaml", yaml.safe_dump(recipe, sort_keys=False))
