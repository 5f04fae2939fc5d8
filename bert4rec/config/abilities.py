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
TRANSFORMERS = ("bert4rec", "sasrec")  # kinds of models
CAUSAL = ("sasrec",)  # of these, where a position sees only what stands before it, and itself


def is_trained(kind: str) -> bool:
    """Whether a kind of model has weights; the others count the training split, and that is all."""
    return kind not in UNTRAINED


def examples_of(kind: str) -> str:
    """What a trained kind of model learns from, as people count it."""
    return "sequences" if kind in TRANSFORMERS else "pairs"


def needs_negatives(loss: str) -> bool:
    """Whether a loss compares targets with a few negatives: neither with the whole catalogue nor with ratings."""
    return loss not in ("softmax", "mse")


def has_products(kind: str, form: str) -> bool:
    """Whether a model's scores are products of two vectors, as the exact softmax wants them."""
    return kind in TRANSFORMERS or form != "neural"


def table_updates(
    *, mode: str, device_type: str, loss: str, is_scored: bool, sharding_type: str, compute_kernel: str,
    optimizer: str, weight_decay: float,
) -> Updates:  # fmt: skip
    """How the rows of a table are updated; `is_scored`: whether a loss takes its candidates from it.

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
    """Whether shards of that type, standing there, can be trained as ordinary parameters."""
    return sharding_type == "row_wise" and compute_kernel == "fused"


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
