"""2D parallelism: tables are sharded within groups of processes, and every group has a copy of them.

Rank r is in group r // size. Groups are consecutive: a group of 8 is a host of 8 GPUs, and looked-up vectors stay
within the host. The replicas of a shard, one in each group, stay equal: all make the same update from the gradients of
all groups, at each step.

TorchRec's 2D environment shards within a group. Its DMPCollection is not used: it averages the copies every few steps,
on CUDA only, which is exact for SGD alone.
"""

from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torchrec.distributed.types import ShardingEnv2D

from bert4rec.feed.batch import even_lengths
from bert4rec.runtime.collectives import Partition
from bert4rec.sharding.torchrec_internals import Kernel, n_features, repeat_step

ID_BITS = 48  # bits of a row's id in a key; the higher bits are the number of the feature


class Groups(NamedTuple):
    """This process's partitions: of the `shards` of its group, the `replicas` of its shard, and the `world`.

    In the `world`, its part of the rows is a part of its shard.
    """

    shards: Partition
    replicas: Partition
    world: Partition

    def environment(self, device_type: str) -> ShardingEnv2D | None:
        """Return TorchRec's sharding environment of the group; None if there is one group."""
        if self.replicas.n_processes == 1:
            return None
        ranks = torch.arange(self.world.n_processes).view(self.replicas.n_processes, -1)
        groups: list[Any] = [self.replicas.group, self.shards.group]
        mesh = DeviceMesh.from_group(groups, device_type, mesh=ranks, mesh_dim_names=("replicate", "shard"))
        environment = ShardingEnv2D(
            sharding_pg=groups[1], replica_pg=groups[0], global_pg=dist.group.WORLD, device_mesh=mesh,
            use_inter_host_allreduce=True,
        )  # fmt: skip
        environment.output_dtensor = False  # checkpoints take the shards of a group, as without groups
        return environment


def make_groups(size: int, timeout: timedelta) -> Groups:
    """Return the groups of `size` processes; every process calls this. `timeout` limits each message."""
    rank, n_processes = dist.get_rank(), dist.get_world_size()
    if size == n_processes:
        world = Partition(rank, n_processes)
        return Groups(world, Partition(), world)
    ranks = torch.arange(n_processes).view(-1, size)
    shard_group, _ = dist.new_subgroups_by_enumeration(ranks.tolist(), timeout=timeout)
    replica_group, _ = dist.new_subgroups_by_enumeration(ranks.T.tolist(), timeout=timeout)
    number, member = divmod(rank, size)
    place = member * len(ranks) + number
    return Groups(
        Partition(member, size, shard_group),
        Partition(number, len(ranks), replica_group),
        Partition(rank, n_processes, place=place),
    )


def share_gradients(kernel: Kernel, replicas: Partition) -> None:
    """Update every replica of the rows of `kernel` with the mean gradient of all replicas.

    When backward reaches the rows of this process, the ids and gradients of the rows that the replicas have looked up
    are gathered; these rows are looked up again and updated. Messages contain gradients of one step's rows, not tables.
    """
    kernel.register_forward_hook(_Sharing(replicas), with_kwargs=True)


class _Sharing:
    def __init__(self, replicas: Partition) -> None:
        self._replicas, self._is_repeated = replicas, False

    def __call__(self, kernel: Kernel, _: Any, keywords: dict[str, Any], vectors: Tensor) -> Tensor | None:
        if self._is_repeated or not vectors.requires_grad:
            return None
        keys = _keys(keywords["indices"], keywords["offsets"], n_features(kernel))
        leaf = vectors.detach().requires_grad_()
        shared: Tensor = _Shared.apply(leaf, lambda gradient: self._update(kernel, keys, gradient))  # type: ignore[no-untyped-call]
        return shared

    def _update(self, kernel: Kernel, keys: Tensor, gradient: Tensor) -> None:
        """Update the tables as if this had been the lookup of all groups."""
        counts = self._replicas.counts(len(keys), keys.device)
        every, _ = self._replicas.concatenate(keys, counts)
        gradients, _ = self._replicas.concatenate(gradient / self._replicas.n_processes, counts)
        order = every.argsort(stable=True)  # by feature, as fbgemm requires, then by row
        every = every[order]
        # The numbers of rows by feature stay on the device.
        bounds = torch.searchsorted(every, torch.arange(n_features(kernel) + 1, device=keys.device) << ID_BITS)
        lengths = even_lengths(bounds.diff()[:, None], keys.device).flatten()
        repeat_step(kernel)
        self._is_repeated = True
        try:
            with torch.enable_grad():
                vectors = kernel(indices=every & (2**ID_BITS - 1), offsets=F.pad(lengths.cumsum(0), (1, 0)))
        finally:
            self._is_repeated = False
        torch.autograd.backward([vectors], [gradients[order]])


class _Shared(Function):
    """The identity; its backward calls `update` with the gradient and stops."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, update: Any) -> Tensor:
        ctx.update = update
        return vectors.view_as(vectors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        ctx.update(gradient)
        return None, None


def _keys(ids: Tensor, offsets: Tensor, n_features: int) -> Tensor:
    """Return a key for each of the concatenated `ids` [N] of several features: feature number and id in one integer."""
    n_rows = (len(offsets) - 1) // n_features
    counts = offsets[::n_rows].diff() if n_rows else offsets.new_zeros(n_features)
    features = torch.arange(n_features, device=ids.device).repeat_interleave(counts, output_size=len(ids))
    return ids.long() + (features << ID_BITS)
