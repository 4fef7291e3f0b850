"""Distributed training: several processes, started by torchrun, train one model. One process is the trivial case."""

import json
import os
import sys
from collections.abc import Sequence
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
        """Whether this is the main process, which reads, writes and logs."""
        return self.rank == 0

    def total(self, number: float) -> float:
        """The sum over all processes."""
        if self.size == 1:
            return number
        value = torch.tensor(number, dtype=torch.float64, device=self.device)
        dist.all_reduce(value)
        return value.item()

    def most(self, number: float) -> float:
        """The largest over all processes."""
        if self.size == 1:
            return number
        value = torch.tensor(number, dtype=torch.float64, device=self.device)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return value.item()

    def agree(self, flag: bool) -> bool:
        """True if it is True in any process, so that all act alike."""
        return self.total(float(flag)) > 0

    def gather(self, texts: Sequence[str]) -> list[str]:
        """The texts of all processes, distributed as `texts[rank::size]`, in the original order."""
        parts = [json.loads(part) for part in self.gather_bytes(json.dumps(list(texts)).encode())]
        return [part[index] for index in range(max(map(len, parts))) for part in parts if index < len(part)]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """The data of each process, by rank."""
        if self.size == 1:
            return [data]
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)
        sizes = [torch.zeros(1, dtype=torch.long, device=self.device) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(mine)], device=self.device))
        room = torch.zeros(int(max(sizes)), dtype=torch.uint8, device=self.device)
        room[: len(mine)] = mine
        rooms = [torch.zeros_like(room) for _ in range(self.size)]
        dist.all_gather(rooms, room)
        return [one[: int(size)].cpu().numpy().tobytes() for one, size in zip(rooms, sizes, strict=True)]

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def leave(self) -> None:
        """Destroy the process group, except gloo's: that occasionally aborts the process (torch 2.13)."""
        if self.size > 1 and self.device.type == "cuda":
            dist.destroy_process_group()


def exit_now(code: int = 0) -> None:
    """End one of several processes immediately after its work is done; for the reason see `leave`."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def join() -> World:
    """The processes that torchrun started, or a single one; on GPUs if there are any."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if size == 1:
        return World(device=device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # The others wait while the main process prepares the data, which may take hours.
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(days=2))
    return World(rank=dist.get_rank(), size=size, device=device)
