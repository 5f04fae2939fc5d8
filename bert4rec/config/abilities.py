"""What can be combined: losses, ways to update the rows of a table, optimizers, shardings, devices; each rule once."""

from typing import Literal, TypeAlias

Updates: TypeAlias = Literal["replicated", "fused", "dense_shards"]

POPULARITY = "popularity"
UNTRAINED = {  # kinds of models that only count → their names in reports
    POPULARITY: "popularity",
    "recent_popularity": "recent popularity",
    "markov": "Markov",
    "transition_graph": "transition graph",
}
SHARDING_TYPES = ("row_wise", "table_wise", "column_wise")


def is_trained(kind: str) -> bool:
    """Whether a kind of model has weights; the others count the training split, and that is all."""
    return kind not in UNTRAINED


def needs_negatives(loss: str) -> bool:
    """Whether a loss compares targets with a few negatives; the exact softmax takes the whole catalogue."""
    return loss != "softmax"


def table_updates(*, mode: str, loss: str, is_scored: bool, sharding_type: str, compute_kernel: str) -> Updates:
    """How the rows of a table are updated; `is_scored`: whether a loss takes its candidates from it.

    "replicated" (`ddp`): every process has them all, under an ordinary optimizer. "fused" (`dmp`): by fbgemm, in
    backward, those that a step has looked up. "dense_shards" (`dmp`): row-wise shards are trained as ordinary
    parameters, where every row has a gradient at every step.
    """
    if mode == "ddp":
        return "replicated"
    has_every_gradient = is_scored and not needs_negatives(loss)
    is_dense = has_every_gradient and sharding_type == "row_wise" and compute_kernel == "fused"
    return "dense_shards" if is_dense else "fused"


def has_optimizer(name: str, updates: Updates, device_type: str) -> bool:
    """Whether rows that are updated so can have that optimizer: fbgemm has no fused Adam on CPU."""
    return not (name == "adam" and updates == "fused" and device_type == "cpu")


def keeps_its_arithmetic(optimizer: str, sharding_type: str) -> bool:
    """Whether a fused `optimizer` computes on shards what it computes on whole tables.

    Row-wise Adagrad is another algorithm when a row is cut.
    """
    return not (optimizer == "rowwise_adagrad" and sharding_type == "column_wise")


def has_kernel(name: str, mode: str, device_type: str) -> bool:
    """Whether tables can stand there: beside "fused" only sharded ones, with CUDA ("auto": perhaps)."""
    return name == "fused" or (mode == "dmp" and device_type in ("cuda", "auto"))
