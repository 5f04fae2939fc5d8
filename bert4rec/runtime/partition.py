"""A piece of work cut into one share a process, and what the processes tell each other about it."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Share:
    """This process's place among the `n_processes` that share a work; by default it does all of it.

    With more than one, every process makes the same calls, in the same order.
    """

    rank: int = 0
    n_processes: int = 1

    def of(self, n_things: int) -> range:
        """The consecutive things, of `n_things`, that fall to this process; shares differ by one at most."""
        return range(n_things * self.rank // self.n_processes, n_things * (self.rank + 1) // self.n_processes)

    def largest(self, n_things: int) -> int:
        """The size of the largest share."""
        return -(-n_things // self.n_processes)

    def sum(self, values: Tensor) -> Tensor:
        """`values` of all processes, added up in place."""
        if self.n_processes > 1:
            dist.all_reduce(values)
        return values

    def stack(self, values: Tensor) -> Tensor:
        """`values` [...] of all processes, of one shape, as [n_processes, ...]."""
        if self.n_processes == 1:
            return values[None]
        stacked = values.new_empty(self.n_processes, *values.shape)
        dist.all_gather(list(stacked), values.contiguous())
        return stacked

    def concatenate(self, rows: Tensor) -> tuple[Tensor, slice]:
        """The `rows` [n, ...] of all processes one after another, as many as each has; and where this one's stand."""
        if self.n_processes == 1:
            return rows, slice(0, len(rows))
        counts: list[int] = self.stack(torch.tensor([len(rows)], device=rows.device)).flatten().tolist()
        padding = [0, 0] * (rows.dim() - 1) + [0, max(counts) - len(rows)]
        stacked = self.stack(F.pad(rows, padding))
        first = sum(counts[: self.rank])
        together = torch.cat([part[:count] for part, count in zip(stacked, counts, strict=True)])
        return together, slice(first, first + len(rows))
