"""All uses of private interfaces of TorchRec, fbgemm and torch.

Another release may rename any of them. tests/sharding/test_torchrec_internals.py lists the versions for which they were
checked, and fails if the pinned versions change.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen as Kernel
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties
from torch.distributed._shard.sharding_spec import ShardMetadata
from torch.distributed.remote_device import _remote_device
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.planner.constants import DEFAULT_PERF_ESTIMATOR
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.types import KernelConfig, Perf, Storage, Topology, TopologyFactory, TrainerConfig
from torchrec.distributed.types import ShardingPlan

__all__ = [
    "Kernel", "Perf", "Shard", "ShardMetadata", "ShardedTensor", "ShardedTensorMetadata", "Storage",
    "TensorProperties", "Topology",
]  # fmt: skip


def sharded_tensor(
    local: list[Shard], metadata: ShardedTensorMetadata, like: ShardedTensor | None = None
) -> ShardedTensor:
    """Return a tensor with the shards `local` on this process, created without messages.

    It is distributed over the processes of `like`, by default over all.
    """
    group = like._process_group if like is not None else None
    return ShardedTensor._init_from_local_shards_and_global_metadata(local, metadata, process_group=group)


def kernels(model: nn.Module) -> list[Kernel]:
    """Return fbgemm's kernels that look up and update this process's rows of the sharded tables in `model`."""
    sharded = [module for module in model.modules() if isinstance(module, ShardedEmbeddingCollection)]
    lookups = [lookup for collection in sharded for lookup in collection._lookups]
    return [module for lookup in lookups for module in lookup.modules() if isinstance(module, Kernel)]


def lookup_of_whole_table(collection: nn.Module, shape: tuple[int, int]) -> Callable[..., Tensor] | None:
    """Return fbgemm's lookup in a sharded `collection` of one table of this `shape`, if one kernel has all of it."""
    found = kernels(collection)
    is_whole = [tuple(each[:2]) for kernel in found for each in kernel.embedding_specs] == [shape]
    return found[0].__call__ if is_whole else None


def set_step_count(kernel: Kernel, n: int) -> None:
    """Set the step count to `n`: the next training lookup is step `n` + 1, for the bias correction of fused Adam."""
    kernel.iter_cpu.fill_(n)
    kernel.iter.fill_(n)


def repeat_step(kernel: Kernel) -> None:
    """Give the next lookup the same step number as the last one."""
    set_step_count(kernel, int(kernel.iter_cpu) - 1)


def n_features(kernel: Kernel) -> int:
    """Return the number of features that a kernel looks up."""
    return len(kernel.feature_table_map)


def move_plan(plan: ShardingPlan, first: int, processes_per_host: int) -> ShardingPlan:
    """Return a `plan` of the processes 0, 1, … for the processes `first`, `first` + 1, …

    TorchRec numbers GPUs by process; a process that sees one GPU has its shards on GPU 0.
    """
    moved, n_gpus = copy.deepcopy(plan), 1 if torch.cuda.device_count() == 1 else processes_per_host
    for module in moved.plan.values():
        for sharding in module.values():
            sharding.ranks = [first + rank for rank in sharding.ranks]
            for shard in sharding.sharding_spec.shards:
                rank, device = first + shard.placement.rank(), shard.placement.device()
                device = "cpu" if device.type == "cpu" else f"{device.type}:{rank % n_gpus}"
                shard.placement = _remote_device(f"rank:{rank}/{device}")
    return moved


def give_a_row_to_empty_kernel(kernel: Kernel) -> None:
    """Give a CPU kernel without rows one row: fbgemm treats an empty table as one that is not on the CPU.

    No lookup reaches the row, and no state dict contains it.
    """
    if kernel.use_cpu and not kernel.weights_host.numel():
        del kernel.weights_host  # a buffer: no gradients would pass through it to other processes
        kernel.weights_host = nn.Parameter(torch.zeros(kernel.max_D, dtype=kernel.weights_precision.as_dtype()))


def make_topology(*, world_size: int, local_world_size: int, device_type: str, hbm: int, ddr: int) -> Topology:
    """Return the planner's topology; `hbm` and `ddr` are the bytes of GPU and host memory of each process."""
    trainer = TrainerConfig(
        world_size=world_size,
        local_world_size=local_world_size,
        ddr_cap_bytes=ddr,
        hbm_cap_bytes=hbm if device_type == "cuda" else None,
    )
    return TopologyFactory.create_topology(trainer, kernel_config=KernelConfig(compute_device=device_type))


def perf_estimator(topology: Topology, constraints: Mapping[str, ParameterConstraints]) -> Any:
    """Return the planner's own estimator of times, which fills `perf` of the shards of its options."""
    return EmbeddingPerfEstimatorFactory.create(DEFAULT_PERF_ESTIMATOR, topology=topology, constraints=constraints)


def with_input_lengths(option: Any, lengths: Sequence[float]) -> Any:
    """Return a copy of the planner's `option` with its first shard only, and other input `lengths` of its features."""
    changed = copy.copy(option)
    changed.shards, changed.input_lengths = copy.deepcopy(option.shards[:1]), list(lengths)
    return changed


class ChosenOptions:
    """Replaces the planner's report, and keeps the chosen options."""

    options: list[Any]  # one per table

    def log(self, *, best_plan: list[Any], **_: Any) -> None:
        """Keep the planner's choice; called by the planner."""
        self.options = best_plan


def local_parts(value: Any) -> list[Tensor]:
    """Return this process's parts of a ShardedTensor, or any other tensor as one part."""
    return [shard.tensor for shard in value.local_shards()] if isinstance(value, ShardedTensor) else [value]


def placed_parts(table: Any) -> Iterator[tuple[Tensor, int, int]]:
    """Yield this process's parts of a `table`, each with its first row and column."""
    if not isinstance(table, ShardedTensor):
        yield table, 0, 0
        return
    for shard in table.local_shards():
        row, column = shard.metadata.shard_offsets
        yield shard.tensor, row, column


def local_bytes(values: Iterable[Any]) -> int:
    """Return the bytes of this process's parts of all the tensors."""
    return sum(part.numel() * part.element_size() for value in values for part in local_parts(value))


def lerp_each(values: list[Tensor], others: list[Tensor], share: float) -> None:
    """Move each of `values` in place towards the one of `others` by the `share`; on a GPU with few kernels in all."""
    torch._foreach_lerp_(values, others, share)


def copy_of(value: Any) -> Any:
    """Return a copy of a tensor, sharded in the same way."""
    if not isinstance(value, ShardedTensor):
        return value.detach().clone()
    local = [Shard(shard.tensor.detach().clone(), shard.metadata) for shard in value.local_shards()]
    return sharded_like(value, local, value.metadata().shards_metadata)


def one_shard_tensor(values: Tensor) -> ShardedTensor:
    """Return a ShardedTensor with one shard, which is `values` itself, on this process."""
    shard = Shard(values, ShardMetadata([0] * values.dim(), list(values.shape), "rank:0/cpu"))
    metadata = ShardedTensorMetadata([shard.metadata], values.size(), TensorProperties(dtype=values.dtype))
    return sharded_tensor([shard], metadata)


def sharded_like(table: ShardedTensor, local: list[Shard], every: list[ShardMetadata]) -> ShardedTensor:
    """Return a tensor on the processes of `table`, with other shards, and possibly with its first dimensions only.

    `local` are the shards of this process, `every` the metadata of the shards of all processes.
    """
    size = table.size()[: len(every[0].shard_sizes)]
    # torch refuses shards in pinned memory unless the properties say so.
    is_pinned = any(shard.tensor.is_pinned() for shard in local)
    properties = replace(table.metadata().tensor_properties, pin_memory=is_pinned)
    metadata = ShardedTensorMetadata(every, size, properties)
    return sharded_tensor(local, metadata, like=table)
