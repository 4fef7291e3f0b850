"""Fine-tuning that forgets less: the weights are pulled toward those that training starts from."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from heedful.bases import digest_of
from heedful.data.corpora import part_names
from heedful.data.prepare import Prepared
from heedful.files import in_place
from heedful.model.architecture import Model
from heedful.tasks import Task
from heedful.training.journal import Journal
from heedful.training.parallel import World
from heedful.training.recipe import Recipe

FISHER = "fisher.safetensors"
ROWS = 1000  # of old data, from which it is estimated


class Anchor:
    """Add the gradient of a penalty to that of the loss.

        penalty = 1/2 sum_i (toward_start + elastic F_i) (w_i - w0_i)^2

    toward_start    L2-SP                           Li, Grandvalet and Davoine 2018, equation 2
    elastic         elastic weight consolidation    Kirkpatrick et al. 2017, equation 3

    w0 are the weights of the model that training starts from, and the initial ones of heads that it lacks. They are
    read again from there when a training resumes, so no checkpoint holds them.

    It is part of the gradient, and not, as AdamW's weight decay, a step of its own: so at the minimum it balances the
    loss as in the papers, whatever the learning rate and Adam's scale of the weight.
    """

    def __init__(
        self, model: Model, *, toward_start: float = 0.0, elastic: float = 0.0, fisher: dict[str, Tensor] | None = None
    ) -> None:
        self.start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        self.toward_start, self.elastic, self.fisher = toward_start, elastic, fisher or {}

    @torch.no_grad()
    def pull(self, model: Model) -> None:
        """To be called between the backward pass and the step; weights without a gradient stay where they are."""
        for name, weight in model.named_parameters():
            if weight.grad is None:
                continue
            away = weight - self.start[name]
            if self.toward_start:
                weight.grad.add_(away, alpha=self.toward_start)
            if self.elastic:
                weight.grad.addcmul_(away, self.fisher[name], value=self.elastic)


def anchor_for(
    recipe: Recipe, task: Task, model: Model, prepared: Prepared, out: Path, world: World, journal: Journal
) -> Anchor | None:
    """The anchor that a recipe asks for. `model` has the weights that training starts from."""
    config = recipe.training
    if not config.toward_start and not config.elastic:
        return None
    model.to(world.device)
    fisher = {}
    if config.elastic:
        stores = [part.prepared.folder.name for part in prepared.parts]  # which name what is in them
        origin = " ".join([digest_of(Path(recipe.start_from)), *stores])
        if world.leads and _origin_of(out / FISHER) != origin:
            rows = old_rows(recipe, prepared)
            journal.say(f"finding out which weights matter, from {len(rows):,} rows of old data")
            with in_place(out / FISHER) as path:
                save_file(diagonal_fisher(model, task, rows), path, metadata={"origin": origin})
        world.wait()
        fisher = {name: tensor.to(world.device) for name, tensor in load_file(out / FISHER).items()}
    return Anchor(model, toward_start=config.toward_start, elastic=config.elastic, fisher=fisher)


def _origin_of(file: Path) -> str:
    """The model and the data that a file was made from; nothing if it is missing or damaged."""
    try:
        with safe_open(file, "pt") as opened:
            return str((opened.metadata() or {}).get("origin"))
    except (OSError, SafetensorError):
        return ""


def old_rows(recipe: Recipe, prepared: Prepared) -> np.ndarray:
    """Training rows of the corpora that are replayed, evenly spaced."""
    starts = prepared.mixed("train").starts
    corpora = recipe.data.corpora
    spans = [
        np.arange(starts[part], starts[part + 1])
        for part, (_, number, _) in enumerate(part_names(corpora))
        if corpora[number].replay
    ]
    rows = np.concatenate(spans)
    return rows[:: -(-len(rows) // ROWS)]


def diagonal_fisher(model: Model, task: Task, rows: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
    """How much the loss per token bends along each weight, without dropout.      Kirkpatrick et al. 2017, section 2.1

        F_i = sum over texts (d loss / d w_i)^2 / tokens

    Differs: the targets are those of the data, not drawn from the model (the empirical Fisher).
    """
    was_training = model.training
    model.eval()
    found = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    tokens = 0.0
    for row in rows:
        batch = task.collate(np.array([row]), seed=(0, 0)).to(model.device)
        terms = task.loss(model, batch, state={}).terms.values()
        total = torch.stack([term.total * term.weight for term in terms]).sum()
        total.backward()
        tokens += next(iter(batch.counts.values()))
        for name, weight in model.named_parameters():
            if weight.grad is not None:
                found[name] += weight.grad.float() ** 2
                weight.grad = None
    model.train(was_training)
    return {name: tensor / max(1.0, tokens) for name, tensor in found.items()}
