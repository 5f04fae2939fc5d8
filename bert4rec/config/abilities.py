"""Rules of valid combinations: losses, updates of table rows, optimizers, shardings, devices."""

from typing import Literal, TypeAlias

Updates: TypeAlias = Literal["replicated", "fused", "dense_shards"]

SHARDING_TYPES = ("row_wise", "table_wise", "column_wise")


def needs_negatives(loss: str) -> bool:
    """Return whether a loss compares targets with sampled negatives, not with the catalogue or ratings."""
    return loss not in ("softmax", "mse")


def table_updates(
    *, mode: str, device_type: str, loss: str, is_scored: bool, sharding_type: str, compute_kernel: str,
    optimizer: str, weight_decay: float,
) -> Updates:  # fmt: skip
    """Return how the rows of a table are updated; `is_scored`: whether a loss takes its candidates from it.

    "replicated" (`ddp`): every process has them all, under an ordinary optimizer. "fused" (`dmp`): by fbgemm, in
    backward, those that a step has looked up. "dense_shards" (`dmp`): row-wise shards are trained as ordinary
    parameters, where every row changes at every step, by a gradient or by `weight_decay`, or where fbgemm does not have
    the `optimizer`: Adam on CPU.
    """
    if mode == "ddp":
        return "replicated"
    has_every_gradient = is_scored and loss == "softmax"
    wants_dense = has_every_gradient or weight_decay > 0 or (optimizer == "adam" and device_type == "cpu")
    return "dense_shards" if wants_dense and can_be_dense(sharding_type, compute_kernel) else "fused"


def can_be_dense(sharding_type: str, compute_kernel: str) -> bool:
    """Return whether such shards can be trained as ordinary parameters."""
    return sharding_type == "row_wise" and compute_kernel == "fused"


def has_optimizer(name: str, updates: Updates, device_type: str) -> bool:
    """Return whether the optimizer exists for such updates: fbgemm has no fused Adam on CPU."""
    return not (name == "adam" and updates == "fused" and device_type == "cpu")


def supports_column_sharding(optimizer: str, sharding_type: str) -> bool:
    """Return whether a fused `optimizer` computes on shards what it computes on whole tables.

    Row-wise Adagrad is another algorithm when a row is cut.
    """
    return not (optimizer == "rowwise_adagrad" and sharding_type == "column_wise")


def has_kernel(name: str, mode: str, device_type: str) -> bool:
    """Return whether the kernel exists: others than "fused" are for sharded tables on CUDA ("auto": possibly)."""
    return name == "fused" or (mode == "dmp" and device_type in ("cuda", "auto"))
