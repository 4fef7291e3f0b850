"""Creating a model from its config: first on the meta device, without memory, then with initialised weights.

model = create(config)                    # initialised as in the paper
model = create(config, scheme="gpt2")
"""

import torch

from heedful.model.architecture import ArchitectureConfig, Model
from heedful.model.initialise import Scheme, initialise

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
