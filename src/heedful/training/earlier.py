"""What an earlier start in a run folder was asked for: a resumed training must be the same."""

from pathlib import Path
from typing import Any

from heedful.bounded import read_object
from heedful.training.recipe import differences, parse_recipe

# Keys that may change when a training is resumed: they affect what is shown, not the result.
FREE = ("training.log_every", "training.samples", "data.source_language", "data.target_language")


def earlier(out: Path) -> dict[str, Any] | None:
    """The arguments of an earlier start in this folder."""
    path = out / "asked.json"
    if not path.exists():
        if (out / "model.safetensors").exists():
            raise ValueError(f"{out} holds a model that was not trained here; choose another --out")
        return None
    return _asked(path)


def _asked(path: Path) -> dict[str, Any]:
    data = read_object(path)
    if not isinstance(data.get("recipe"), dict) or not isinstance(data.get("data"), dict):
        raise ValueError(f"{path} is damaged: it does not hold the recipe and the files of a training")
    return {"budget": "", **data}


def refuse_changes(known: dict[str, Any], asked: dict[str, Any], out: Path) -> None:
    # Keys that were added since, with a default, are not a change.
    known = {**known, "recipe": parse_recipe(known["recipe"]).model_dump(mode="json")}
    changed = [line for line in differences(known, asked) if not _is_free(line, known)]
    if not changed:
        return
    if changed == [line for line in changed if line.startswith("data.")]:
        raise ValueError(f"the files have changed since {out} was started; give the same ones, or choose another --out")
    listed = "; ".join(line.removeprefix("recipe.") for line in changed)
    raise ValueError(f"{out} was started with another recipe ({listed}); use the old values, or choose another --out")


def _is_free(line: str, known: dict[str, Any]) -> bool:
    key = line.partition(":")[0].removeprefix("recipe.")
    if key == "training.steps":  # allowed if the learning rate does not depend on it
        return known["recipe"]["training"]["schedule"] in ("inverse_sqrt", "constant") and not known["budget"]
    return key in FREE
