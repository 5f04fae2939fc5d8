"""Describe the kinds of models, and which losses, row updates, optimizers, shardings and devices fit together.

`Kind` holds the properties of a kind, so that no other code depends on its name. Imports no torch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

POPULARITY = "popularity"
RECENT_POPULARITY = "recent_popularity"
EASE = "ease"
SEEN: Mapping[str, bool | Literal["by_item"]] = {"keep": False, "leave-out": True, "by-item": "by_item"}
"""Values of --seen and of a request, and of leave_out_seen."""
Updates: TypeAlias = Literal["replicated", "fused", "dense_shards"]
SHARDING_TYPES = ("row_wise", "table_wise", "column_wise")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of model; `name` is its value of model.kind. The defaults are those of a kind that only counts."""

    name: str
    title: str  # in reports
    model: str = ""  # the class, with its module; "" = not trained, with a scorer in models/baselines.py
    is_transformer: bool = False  # whether it scores any history; else it knows only the users of its dataset
    is_causal: bool = False  # whether a position attends only to earlier positions and itself
    has_mask_token: bool = False  # whether a mask token after the history predicts the next item
    settings: tuple[str, ...] = ()  # keys of [model] that are keywords of the class
    size_arguments: tuple[str, ...] = ("n_items",)  # keywords of the class for the sizes of its tables
    dropout: tuple[tuple[int, float], ...] = ((0, 0.1),)  # (least mean interactions per item, dropout)
    smallest_batch: int = 64  # on all ranks together
    is_in_run_names: bool = True  # whether default run names contain it
    needs_features: bool = False  # whether the dataset must have item features
    most_items: int = 0  # items of the catalogue that it can count, 0 = any number
    reads_order: bool = False  # whether scores depend on the order of the history

    @property
    def is_trained(self) -> bool:
        """Return whether it has weights; a kind without weights only counts the training split."""
        return bool(self.model)

    @property
    def learns_pairs(self) -> bool:
        """Return whether it is trained on pairs of a user and an item, rated or not, instead of windows."""
        return self.is_trained and not self.is_transformer

    @property
    def sample_name(self) -> str:
        """Return the name of a training sample: "window" or "pair"."""
        return "window" if self.is_transformer else "pair"

    @property
    def examples(self) -> str:
        """Return the unit of the training throughput: "sequences" or "pairs"."""
        return "sequences" if self.is_transformer else "pairs"

    def n_targets(self, batch_size: int, n_positions: int, *, mask_prob: float) -> int:
        """Return how many of `n_positions` of `batch_size` examples are predicted; of masked ones the mean."""
        if not self.has_mask_token:
            return n_positions
        return min(n_positions, math.ceil(n_positions * mask_prob) + batch_size)

    def has_products(self, form: str) -> bool:
        """Return whether its scores are products of two vectors, as the exact softmax needs; `form` is model.form."""
        return self.is_transformer or form != "neural"


_transformer = partial(
    Kind,
    is_transformer=True,
    reads_order=True,
    settings=(
        "embed_dim", "n_heads", "n_layers", "ffn_dim", "max_len", "dropout", "positions", "input_norm", "times",
        "head",
    ),
    dropout=((100, 0.1), (30, 0.3), (0, 0.5)),
    smallest_batch=16,
)  # fmt: skip


KINDS = {
    kind.name: kind
    for kind in (
        _transformer(
            name="bert4rec",
            title="Bert4Rec",
            model="bert4rec.models.sequence_model.Bert4Rec",
            has_mask_token=True,
            dropout=((100, 0.1), (0, 0.2)),  # lower, since masking drops items already (docs/results.md)
            smallest_batch=64,  # larger, since only a fifth of its positions are predicted
            is_in_run_names=False,
        ),
        _transformer(name="sasrec", title="SASRec", model="bert4rec.models.sequence_model.SASRec", is_causal=True),
        Kind(
            name="matrix_factorization",
            title="Matrix factorisation",
            model="bert4rec.models.matrix_factorization.MatrixFactorization",
            settings=("embed_dim", "form", "dropout"),
            size_arguments=("n_items", "n_users"),
        ),
        Kind(name=POPULARITY, title="popularity"),
        Kind(name="recent_popularity", title="recent popularity"),
        Kind(name="markov", title="Markov", reads_order=True),
        Kind(name="transition_graph", title="transition graph", reads_order=True),
        Kind(name=EASE, title="EASE", most_items=20_000),
        Kind(name="content_neighbours", title="content neighbours", needs_features=True),
    )
}
UNTRAINED = tuple(name for name, kind in KINDS.items() if not kind.is_trained)
OPTIONAL_BASELINES = tuple(name for name in UNTRAINED if name != POPULARITY)  # every report has popularity anyway

# Pydantic reads the valid names from `KINDS`; a type checker cannot.
if TYPE_CHECKING:
    KindName: TypeAlias = str
    UntrainedName: TypeAlias = str
else:
    KindName, UntrainedName = Literal[tuple(KINDS)], Literal[UNTRAINED]


def needs_negatives(loss: str) -> bool:
    """Return whether a loss compares targets with sampled negatives, not with the catalogue or ratings."""
    return loss not in ("softmax", "mse")


def table_updates(
    *, mode: str, device_type: str, loss: str, is_scored: bool, sharding_type: str, compute_kernel: str,
    optimizer: str, weight_decay: float,
) -> Updates:  # fmt: skip
    """Return how the rows of a table are updated; `is_scored`: whether a loss takes its candidates from the table.

    "replicated" (`ddp`): every rank has all rows, and an ordinary optimizer updates them. "fused" (`dmp`): fbgemm
    updates the rows that a step has looked up, during backward. "dense_shards" (`dmp`): row-wise shards are ordinary
    parameters. This is used if every row changes at every step, by a gradient or by `weight_decay`, or if fbgemm lacks
    the `optimizer` (Adam on CPU).
    """
    if mode == "ddp":
        return "replicated"
    has_every_gradient = is_scored and loss == "softmax"
    wants_dense = has_every_gradient or weight_decay > 0 or (optimizer == "adam" and device_type == "cpu")
    return "dense_shards" if wants_dense and can_be_dense(sharding_type, compute_kernel) else "fused"


def can_be_dense(sharding_type: str, compute_kernel: str) -> bool:
    """Return whether shards of this type and kernel can be trained as ordinary parameters."""
    return sharding_type == "row_wise" and compute_kernel == "fused"


def has_optimizer(name: str, updates: Updates, device_type: str) -> bool:
    """Return whether the optimizer exists for these updates: fbgemm has no fused Adam on CPU."""
    return not (name == "adam" and updates == "fused" and device_type == "cpu")


def supports_column_sharding(optimizer: str, sharding_type: str) -> bool:
    """Return whether a fused `optimizer` gives the same result on shards as on whole tables.

    Row-wise Adagrad does not if a row is cut.
    """
    return not (optimizer == "rowwise_adagrad" and sharding_type == "column_wise")


def has_kernel(name: str, mode: str, device_type: str) -> bool:
    """Return whether the kernel exists: all but "fused" need sharded tables on CUDA ("auto" may be CUDA)."""
    return name == "fused" or (mode == "dmp" and device_type in ("cuda", "auto"))
