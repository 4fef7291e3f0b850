"""Distributed training: several processes, started by torchrun, train one model. One process is the trivial case."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


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

    def gather_rows(self, rows: Tensor) -> Tensor:
        """The rows (first axis) of all processes, one process after the other. Gradients flow back to the process that
        a row came from. All processes must call it."""
        found: Tensor = rows if self.size == 1 else _GatherRows.apply(rows, self.rank, self.size)
        return found

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def leave(self) -> None:
        """Destroy the process group, except gloo's: that occasionally aborts the process (torch 2.13)."""
        if self.size > 1 and self.device.type == "cuda":
            dist.destroy_process_group()


class _GatherRows(torch.autograd.Function):
    """Forward: all rows to all processes. Backward: the gradients of all processes are added, and each takes those of
    its own rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, rank: int, size: int) -> Tensor:
        counts = [torch.zeros(1, dtype=torch.long, device=rows.device) for _ in range(size)]
        dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
        sizes = [int(count) for count in counts]
        room = rows.new_zeros(max(sizes), *rows.shape[1:])
        room[: len(rows)] = rows
        rooms = [torch.zeros_like(room) for _ in range(size)]
        dist.all_gather(rooms, room)
        ctx.own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        return torch.cat([one[:count] for one, count in zip(rooms, sizes, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total[ctx.own], None, None


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
