"""A model of a config: laid out without memory, then given its first weights.

model = create(config)                    # first weights as in the paper
model = create(config, scheme="gpt2")
"""

import torch

from heedful.model.architecture import ArchitectureConfig, Model
from heedful.model.initialise import Scheme, initialise

UNMARKED = (torch.bool, torch.uint8, torch.complex64, torch.complex128)  # nothing marks these as not yet set


def create(config: ArchitectureConfig, *, scheme: Scheme = "xavier", device: torch.device | str = "cpu") -> Model:
    """A model with its first weights: filled with NaN, then by each part, then looked through for what is left of
    it."""
    model = layout(config)
    _refuse_unsaved(model)
    # As `to_empty` does it, which would import a library for symbolic mathematics: half a second and 40 MB.
    model._apply(lambda meta: _unset(meta, device))
    initialise(model, scheme)
    _refuse_unset(model)
    return model


def layout(config: ArchitectureConfig) -> Model:
    """The model on the meta device: names and shapes without memory, however large it is."""
    with torch.device("meta"):
        return config.build()


def _unset(meta: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    empty = torch.empty(meta.shape, dtype=meta.dtype, device=device)
    return empty.zero_() if empty.dtype in UNMARKED else empty.fill_(_mark(empty.dtype))


def _mark(dtype: torch.dtype) -> float:
    """What no part gives a tensor: NaN, or the lowest whole number."""
    return torch.nan if dtype.is_floating_point else torch.iinfo(dtype).min


def _refuse_unsaved(model: Model) -> None:
    """A buffer that is in no file would be missing where the model is opened."""
    saved = model.state_dict()
    for name, _ in model.named_buffers():
        if name not in saved:
            raise TypeError(f"the buffer {name} is not persistent, so it would be lost; compute it when it is needed")


def _refuse_unset(model: Model) -> None:
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in state.items():
        if tensor.dtype in UNMARKED:
            continue
        left = tensor.isnan() if tensor.is_floating_point() else tensor == _mark(tensor.dtype)
        if bool(left.any()):
            owner = model.get_submodule(name.rpartition(".")[0])
            raise TypeError(
                f"{name} was given no first value; let {type(owner).__name__} set it in a method `first_weights`"
            )
