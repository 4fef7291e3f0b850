"""Creating a model from its config: first on the meta device, without memory, then with initialised weights.

model = create(config)                    # initialised as in the paper
model = create(config, scheme="gpt2")
"""

from collections.abc import Mapping
from pathlib import Path

import torch

from heedful.bounded import Held, opening
from heedful.model.architecture import ArchitectureConfig, Model
from heedful.model.initialise import Scheme, initialise
from heedful.model.stack import StackConfig

FLOATING = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
UNMARKED = (torch.bool, torch.uint8, torch.complex64, torch.complex128)  # no value of these can mark them as unset


def create(config: ArchitectureConfig, *, scheme: Scheme = "xavier", device: torch.device | str = "cpu") -> Model:
    """A model with initialised weights. They are filled with NaN, then set by each part, then checked: a NaN that is
    left was never set."""
    model = layout(config)
    _refuse_unsaved(model)
    # Like `to_empty`, which would import a library for symbolic mathematics: half a second and 40 MB.
    model._apply(lambda meta: _unset(meta, device))
    initialise(model, scheme)
    _refuse_unset(model)
    return model


def layout(config: ArchitectureConfig) -> Model:
    """The model on the meta device: names and shapes, without memory for weights."""
    with torch.device("meta"):
        return config.build()


def layout_within(config: ArchitectureConfig, held: Mapping[str, Held], place: Path) -> Model:
    """The layout of a stranger's config, if the tensors `held` by the file `place` may be its weights: every layer has
    a tensor of its own, and all parameters together are not many more than the numbers in the file: some that are zero
    may be left out. Each one's size is compared before it is read."""
    for name, stack in vars(config).items():
        layers = getattr(stack, "layers", 0) if isinstance(stack, StackConfig) else 0
        if layers > len(held) and not getattr(stack, "share_layers", False):
            raise ValueError(f"{place} holds {len(held)} tensors, too few for the {layers} layers of the {name}")
    with opening(place):
        needed, found = sum(config.parameters().values()), sum(one.count for one in held.values())
    if needed > 2 * found:
        raise ValueError(f"{place} holds {found:,} numbers, too few for the {needed:,} parameters of the model")
    with opening(place):
        return layout(config)


def refuse_misfits(model: Model, held: Mapping[str, Held], place: Path) -> None:
    """ValueError unless a file holds exactly the weights of a model: names, shapes and kinds of numbers."""
    ours = model.state_dict()
    for name in sorted({*ours, *held}):
        if name not in held:
            raise ValueError(f"{place} does not fit config.yaml: it has no {name}")
        if name not in ours:
            raise ValueError(f"{place} does not fit config.yaml: it has {name}, and the model does not")
        if held[name].shape != ours[name].shape:
            there, here = list(held[name].shape), list(ours[name].shape)
            raise ValueError(f"{place} does not fit config.yaml: {name} is {there} there and {here} in the model")
    floating = {held[name].dtype for name, tensor in ours.items() if tensor.is_floating_point()}
    if len(floating) > 1 or not floating <= {"F32", "F16", "BF16", "F64"}:
        raise ValueError(f"{place} must hold weights of one floating type, not {', '.join(sorted(floating))}")
    wrong = [name for name, one in ours.items() if not one.is_floating_point() and held[name].dtype in FLOATING]
    if wrong:
        raise ValueError(f"{place}: {wrong[0]} must hold whole numbers, not {held[wrong[0]].dtype}")


def _unset(meta: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    empty = torch.empty(meta.shape, dtype=meta.dtype, device=device)
    return empty.zero_() if empty.dtype in UNMARKED else empty.fill_(_mark(empty.dtype))


def _mark(dtype: torch.dtype) -> float:
    """The marker of unset values, which no part uses: NaN, or the smallest integer."""
    return torch.nan if dtype.is_floating_point else torch.iinfo(dtype).min


def _refuse_unsaved(model: Model) -> None:
    """A buffer that is not saved would be missing when the model is loaded."""
    saved = model.state_dict()
    for name, _ in model.named_buffers():
        if name not in saved:
            raise TypeError(f"the buffer {name} is not persistent, so it would be lost on saving; compute it on demand")


def _refuse_unset(model: Model) -> None:
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in state.items():
        if tensor.dtype in UNMARKED:
            continue
        left = tensor.isnan() if tensor.is_floating_point() else tensor == _mark(tensor.dtype)
        if bool(left.any()):
            owner = model.get_submodule(name.rpartition(".")[0])
            raise TypeError(f"{name} was not initialised; set it in a method `first_weights` of {type(owner).__name__}")
