"""Several processes, started by torchrun, that train one model together. One process is the same with nobody to ask."""

import os
import sys
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def leads(self) -> bool:
        """One process reads, writes and speaks for all."""
        return self.rank == 0

    def total(self, number: float) -> float:
        """The sum over all processes."""
        if self.size == 1:
            return number
        value = torch.tensor(number, dtype=torch.float64, device=self.device)
        dist.all_reduce(value)
        return value.item()

    def agree(self, flag: bool) -> bool:
        """True if it is so in any process: what all then do together."""
        return self.total(float(flag)) > 0

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def leave(self) -> None:
        """gloo is left as it is: taking it down now and then ends the process with an abort (torch 2.13)."""
        if self.size > 1 and self.device.type == "cuda":
            dist.destroy_process_group()


def exit_now() -> None:
    """End one of several processes at once, its work being done: see `leave` for why not in the usual way."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def join() -> World:
    """The world torchrun made, or one process; the first GPU if there is one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if size == 1:
        return World(device=device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # The others wait while the leading process prepares the data and validates, and that may take hours.
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(days=2))
    return World(rank=dist.get_rank(), size=size, device=device)
