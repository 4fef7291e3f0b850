"""Mixed precision: the data type in which a step is computed. Weights and optimizer state stay in float32."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class Precision:
    """`auto` selects bfloat16 if the hardware supports it, float16 on other GPUs, and float32 elsewhere."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = choose(device) if name == "auto" else name
        self.device = device.type
        # float16 has a narrow exponent range: the loss is scaled up so that small gradients do not vanish.
        self.scaler = torch.amp.GradScaler(self.device, enabled=self.name == "float16")

    def compute(self) -> AbstractContextManager[Any]:
        if self.name == "float32":
            return nullcontext()
        return torch.autocast(self.device, dtype=getattr(torch, self.name))

    def state(self) -> dict[str, Any]:
        return dict(self.scaler.state_dict())

    def restore(self, state: dict[str, Any]) -> None:
        if state:
            self.scaler.load_state_dict(state)


def choose(device: torch.device) -> str:
    """What `auto` means on this device."""
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    if device.type == "cpu" and torch.cpu._is_amx_tile_supported():
        return "bfloat16"
    return "float32"
