"""Compute the memory of a training from its shapes; nothing is allocated.

Resident memory (weights, gradients, optimizer states) is exact: it equals the bytes that the running model reports. The
memory of a step is estimated with measured factors: the peaks of real processes, in multiples of the tensors that cause
them (docs/scaling.md). The memory of the CUDA runtime is not measured; comments mark these numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

from torchrec.modules.embedding_configs import EmbeddingConfig

from bert4rec.config.kinds import Updates, needs_negatives, table_updates
from bert4rec.models.item_features import CANDIDATE, LOOKUPS
from bert4rec.models.losses import LossSettings, rows_of_tile
from bert4rec.models.prior import source_bytes
from bert4rec.models.ranking_model import RankingModel, model_class
from bert4rec.models.tables import is_of_table, set_precision
from bert4rec.runtime.files import MIB
from bert4rec.sharding.muon import is_for_muon

FLOAT, ID = 4, 8  # bytes of a weight, gradient or score, and of an id
BYTES = {"fp32": FLOAT, "fp16": 2, "bf16": 2}  # of a value in a table or a message

# Limits of the program itself.
PIECE_BYTES = 64 * MIB  # of a shard that is read from or written to the disk
ROWS_PER_LOOKUP = 65_536  # item vectors per lookup in an evaluation

# Measured peaks of a process.
ID_BYTES = 128  # for each id that a process looks up: it passes through sorting, messages and permutations as int64
SERVED_ID_BYTES = 16  # for each id that a process serves to other processes
LOOKUP_COPIES = 4  # of looked-up vectors that pass through TorchRec without a gradient
VECTOR_COPIES = 2  # of looked-up vectors, and of their copies at the positions: values and gradient
ENCODER_COPIES = 1.6  # ratio of the peak of backward to the kept activations, with memory that cannot be reused
SCORE_COPIES = 3  # of the scores of a sampled loss: scores, softmax, gradient
HIDDEN_COPIES = 3  # of gathered hidden states: values, gradient in pieces, gradient concatenated
SHARED_COPIES = 4  # of the gradients of all groups' rows: gathered, concatenated, sorted, rows looked up; not measured
UPDATE_COPIES = {"sgd": 0, "adagrad": 1, "rowwise_adagrad": 1, "adam": 0, "adamw": 2, "muon": 4}  # of a weight

FEATURE_COPIES = 3  # of the vectors of a part of the catalogue: with features, their product, and a gradient
ITEM_COUNT = 4  # bytes per item of the counts of the popularity baseline, which a host's processes share
CPU_PROCESS, CPU_LIBRARIES = 275 * MIB, 130 * MIB  # interpreter and heap; pages that a host's processes share
GPU_CONTEXT, GPU_HOST_PROCESS = 1536 * MIB, 3072 * MIB  # CUDA and NCCL on the GPU, in host memory: not measured

CACHE_SET = 32  # rows per set of fbgemm's cache
CACHE_LOAD_FACTOR = 0.2  # share of a table's rows in GPU memory with fused_uvm_caching; the default of TorchRec

TABLES, TABLE_STATE = "table weights", "table optimizer state"
DENSE_PART, GRADIENTS, AVERAGE = "dense part", "table gradients", "average of the weights"
COUNTED_PRIOR = "counted prior"
STEP, PROCESS = "activations and copies", "the process itself"

Bytes: TypeAlias = dict[str, int]
"""Use of memory → bytes, of a GPU or of a host."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The inputs of a plan, except the available memory.

    - `kind` of model, with its keywords in `model`.
    - `local_world_size`: processes per host.
    - `batch_size`: sequences per process and step.
    - `negatives_shared_by`: processes that share a draw of `n_train_negatives`.
    - `sparse_optimizer` updates the tables, `optimizer` the dense part. If `trains` is False, the model is only
      evaluated, without gradients and updates.
    - `sharding_group_size`: processes per copy of the tables; with 0, all processes share one copy.
    - `averages`: whether a moving average of the weights is kept in addition.
    - `prior`: the sources whose weights between items the evaluation adds up.
    - `window_length`: mean length of the dataset's windows, 0 if unknown.
    """

    kind: str
    model: Mapping[str, Any]
    mode: str
    device_type: str
    world_size: int
    local_world_size: int
    sparse_optimizer: str
    optimizer: str
    batch_size: int
    mask_prob: float
    loss: str = "softmax"
    n_train_negatives: int = 0
    negatives_shared_by: int | Literal["all"] = "all"
    sharding_type: str = "row_wise"
    compute_kernel: str = "fused"
    sparse_weight_decay: float = 0.0
    table_precision: str = "fp32"
    messages: str = "fp32"
    sharding_group_size: int = 0
    window_length: float = 0.0
    trains: bool = True
    averages: bool = False
    prior: Sequence[str] = ()

    @cached_property
    def built(self) -> RankingModel:
        """Return the model on `meta`, which holds no weights."""
        model = model_class(self.kind)(**self.model, loss=LossSettings(self.loss))
        set_precision(model.tables, self.table_precision)
        return model

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without the model, which the receiver builds."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def tables(self) -> dict[str, EmbeddingConfig]:
        """Return the tables that can be sharded, by name."""
        return {table.config.name: table.config for table in self.built.tables}

    @property
    def group_size(self) -> int:
        """Return the number of processes that share one copy of the tables: those of a group, or all."""
        return self.sharding_group_size or self.world_size

    @property
    def n_groups(self) -> int:
        """Return the number of groups of processes, each with a sharded copy of the tables."""
        return self.world_size // self.group_size

    @property
    def n_positions(self) -> int:
        """Return the maximum number of positions per process and step.

        If the mean window length is known, this is the mean number plus three standard deviations, with the largest
        variance that windows of this mean and maximum length can have (Bhatia and Davis 2000).
        """
        most = self.built.n_positions(self.batch_size)
        if not self.window_length or "max_len" not in self.model:
            return most
        mean, longest = self.window_length, self.model["max_len"]
        deviation = math.sqrt(max(0.0, self.batch_size * mean * (longest - mean)))
        return min(most, math.ceil(self.batch_size * mean + 3 * deviation))

    @property
    def n_targets(self) -> int:
        """Return the number of positions to predict per process and step."""
        return self.built.kind.n_targets(self.batch_size, self.n_positions, mask_prob=self.mask_prob)

    @property
    def n_items(self) -> int:
        """Return the number of items in the catalogue."""
        return int(self.model["n_items"])

    @property
    def scores_whole_catalogue(self) -> bool:
        """Return whether the loss is a softmax over all items of the item table; each process scores its share."""
        return self.has_tied_scores and self.loss == "softmax"

    @property
    def has_tied_scores(self) -> bool:
        """Return whether items are scored through the item table itself."""
        return CANDIDATE in self.tables["item"].feature_names

    @cached_property
    def updates(self) -> dict[str, Updates]:
        """Return how the rows of each table are updated."""
        return {
            name: table_updates(
                mode=self.mode, device_type=self.device_type, loss=self.loss,
                is_scored=any(feature.endswith(CANDIDATE) for feature in table.feature_names),
                sharding_type=self.sharding_type,
                compute_kernel=self.compute_kernel, optimizer=self.sparse_optimizer,
                weight_decay=self.sparse_weight_decay,
            )
            for name, table in self.tables.items()
        }  # fmt: skip

    @property
    def n_candidates(self) -> int:
        """Return the number of items whose vectors a process looks up to score them, per step."""
        if not (self.has_tied_scores and self.trains):
            return 0  # a layer of scores is replicated, and an evaluation looks up the catalogue in parts
        if self.scores_whole_catalogue:
            return 0 if self.updates["item"] == "dense_shards" else math.ceil(self.n_items / self.group_size)
        return self.n_targets + (self.n_train_negatives if needs_negatives(self.loss) else 0)

    @property
    def lookups_per_step(self) -> dict[str, int]:
        """Return feature → maximum number of distinct ids that a process looks up per step."""
        n_rows = {name: table.num_embeddings for table in self.tables.values() for name in table.feature_names}
        n_ids = self.built.lookups_per_step(n_positions=self.n_positions, n_candidates=self.n_candidates)
        n_items = {role: min(n_ids.get(role, 0), self.n_items) for role in LOOKUPS}
        if self.trains and self.scores_whole_catalogue:
            n_items[CANDIDATE] = math.ceil(self.n_items / self.group_size)
        n_ids |= self.values_of(n_items)
        return {name: min(n, n_rows[name]) for name, n in n_ids.items() if name in n_rows}

    def values_of(self, n_items: Mapping[str, int]) -> dict[str, int]:
        """Return lookup → number of values in feature tables, for `n_items` by lookup of items; at most all of them."""
        features = self.model.get("features")
        tables = {} if features is None else features.sizes.tables
        return {
            f"{name}_{role}": min(bag.n_values, math.ceil(n * bag.per_item))
            for name, bag in tables.items() for role, n in n_items.items()
        }  # fmt: skip


class Shard(NamedTuple):
    """The position and size of a shard of a table, its rank, and its bytes of weights and optimizer state."""

    table: str
    rank: int
    row: int
    n_rows: int
    column: int
    n_columns: int
    weight_bytes: int
    state_bytes: int


def shard(job: Job, table: str, rank: int, place: tuple[int, int], size: tuple[int, int]) -> Shard:
    """Return the shard of a table at `place` (row, column) of `size` (rows, columns), on `rank`."""
    weights, whole = (size[0] * size[1] * n_bytes for n_bytes in (BYTES[job.table_precision], FLOAT))
    state = {"sgd": 0, "adagrad": whole, "rowwise_adagrad": size[0] * FLOAT, "adam": 2 * whole}
    state_bytes = state[job.sparse_optimizer] + step_count_bytes(job, table)
    return Shard(table, rank, place[0], size[0], place[1], size[1], weights, state_bytes)


def step_count_bytes(job: Job, table: str) -> int:
    """Return the bytes of a table's step count: ordinary optimizers except SGD have one per weight, fused ones none."""
    return FLOAT if job.updates[table] != "fused" and job.sparse_optimizer != "sgd" else 0


def dense_bytes(job: Job) -> tuple[int, int]:
    """Return the bytes of weights and of optimizer state of the dense part, which every process holds."""
    sizes = _dense_sizes(job)
    if job.optimizer == "sgd":
        return sum(sizes), 0
    by_muon = _dense_sizes(job, by_muon=True) if job.optimizer == "muon" else []
    return sum(sizes), 2 * sum(sizes) - sum(by_muon) + FLOAT * (len(sizes) - len(by_muon))


def peak_bytes(job: Job, shards: Sequence[Shard]) -> tuple[Bytes, Bytes]:
    """Return the peak bytes of a process with `shards`, on its GPU ({} on CPU) and on its host."""
    on_device, on_host = resident_bytes(job, shards)
    passing = max(_passing(job, shards), _streaming(job, shards))
    saving = max([2 * PIECE_BYTES, *_dense_sizes(job)])  # and reading weights back
    counts = ITEM_COUNT * job.n_items // job.local_world_size
    n_own = math.ceil(job.n_items / job.world_size)
    prior = {COUNTED_PRIOR: sum(source_bytes(name, job.n_items, n_own) for name in job.prior)}
    if job.device_type == "cpu":
        process = CPU_PROCESS + CPU_LIBRARIES // job.local_world_size
        return {}, on_host | prior | {STEP: max(passing, saving), PROCESS: process + counts}
    on_host |= {STEP: saving, PROCESS: GPU_HOST_PROCESS + counts}
    return on_device | prior | {STEP: passing, PROCESS: GPU_CONTEXT}, on_host


def resident_bytes(job: Job, shards: Sequence[Shard]) -> tuple[Bytes, Bytes]:
    """Return the resident bytes on GPU and host: weights, gradients and optimizer states."""
    weights, state = sum(part.weight_bytes for part in shards), sum(part.state_bytes for part in shards)
    dense, dense_state = dense_bytes(job)
    tables = {TABLES: weights, TABLE_STATE: state}
    # In ddp the all-reduced buckets; the gradients are views of them.
    has_buckets = [part for part in shards if job.trains and job.updates[part.table] != "fused"]
    tables[GRADIENTS] = sum(part.weight_bytes for part in has_buckets)
    replicated = {DENSE_PART: (2 if job.trains else 1) * dense + dense_state}  # with its buckets
    if job.averages:
        replicated[AVERAGE] = weights + dense
    if job.device_type == "cpu":
        return {}, tables | replicated
    if job.compute_kernel == "fused":
        return tables | replicated, {}
    # fbgemm keeps the tables in host memory, and their state too, unless it is one value per row.
    row_state = state if job.sparse_optimizer == "rowwise_adagrad" else 0
    on_device = {TABLES: sum(_cache_bytes(job, part) for part in shards), TABLE_STATE: row_state}
    return on_device | replicated, {TABLES: weights, TABLE_STATE: state - row_state}


def sync_bytes(job: Job, shards: Sequence[Shard]) -> int:
    """Return the bytes per step that synchronize the `shards` of a process with the copies of other groups.

    They are gradients of the rows that other groups have looked up, or of every row of a dense shard.
    """
    if job.n_groups == 1 or not job.trains:
        return 0
    all_reduced = 2 * (job.n_groups - 1) / job.n_groups  # of each byte, in a ring
    dense_bytes = sum(part.weight_bytes for part in shards if job.updates[part.table] == "dense_shards")
    gathered = _gradients_of_groups(job, shards) * (job.n_groups - 1) / job.n_groups
    return math.ceil(all_reduced * dense_bytes + gathered)


def hidden_bytes(job: Job) -> int:
    """Return the bytes per step of the hidden states that a process receives to score, and of their gradients.

    The processes of a group gather the hidden states, and all-reduce the gradients in a ring.
    """
    if job.loss != "softmax" or not job.trains:
        return 0
    return 3 * (job.group_size - 1) * job.n_targets * job.built.item_table.width * FLOAT


def _gradients_of_groups(job: Job, shards: Sequence[Shard]) -> int:
    """Return the bytes of gradients and ids of the fused rows of this process that all groups look up in a step."""
    if job.n_groups == 1:
        return 0
    n_bytes = 0.0
    for part in (part for part in shards if job.updates[part.table] == "fused"):
        table = job.tables[part.table]
        own = sum(job.lookups_per_step.get(feature, 0) for feature in table.feature_names)
        n_served = own * job.world_size * part.n_rows / table.num_embeddings
        n_bytes += n_served * (part.n_columns * FLOAT + ID)
    return math.ceil(n_bytes)


def _cache_bytes(job: Job, part: Shard) -> int:
    """Return the bytes of fbgemm's cache of a table on the GPU: whole sets of rows, and data per slot and per row."""
    if job.compute_kernel != "fused_uvm_caching":
        return 0
    slots = CACHE_SET * max(1, math.ceil(int(part.n_rows * CACHE_LOAD_FACTOR) / CACHE_SET))
    return slots * (part.n_columns * BYTES[job.table_precision] + 16) + 4 * part.n_rows


def message_bytes(job: Job) -> int:
    """Return the bytes of the vectors that a process receives in messages per step; their gradients take as many.

    Vectors of a process's own rows count too, since they pass through the same messages; only its own share of the
    whole catalogue does not count. The result is 0 for a single process and with ddp.
    """
    if job.mode == "ddp" or job.world_size == 1:
        return 0
    left_out = CANDIDATE if job.scores_whole_catalogue and job.sharding_type == "row_wise" else ""
    values = (
        n * table.embedding_dim
        for table in job.tables.values()
        for feature, n in job.lookups_per_step.items()
        if feature in table.feature_names and feature != left_out
    )
    return BYTES[job.messages] * sum(values)


def _passing(job: Job, shards: Sequence[Shard]) -> int:
    """Return the peak bytes of a step: lookups, and the larger of activations with scores and of the update."""
    kept = ENCODER_COPIES * FLOAT * job.built.activation_numel(job.n_positions, job.n_targets)
    at_once = math.ceil(kept)
    if job.trains:
        updating = _update_bytes(job, shards) + SHARED_COPIES * _gradients_of_groups(job, shards)
        at_once = max(math.ceil(kept + _score_bytes(job, shards)), updating)
    vectors = _lookup_bytes(job, job.lookups_per_step, VECTOR_COPIES, shards) + _gathered_bytes(job)
    return vectors + _next_batch_bytes(job) + at_once


def _gathered_bytes(job: Job) -> int:
    """Return the bytes of looked-up vectors copied to every position, target and negative."""
    n_vectors = job.n_positions + (job.n_candidates if needs_negatives(job.loss) else 0)
    return VECTOR_COPIES * FLOAT * n_vectors * job.built.item_table.width


def _next_batch_bytes(job: Job) -> int:
    """Return the bytes of the prefetched batch on a GPU: ids, indices, positions and targets."""
    if job.device_type == "cpu" or not job.trains:
        return 0
    n_scored = job.n_candidates if needs_negatives(job.loss) else 0
    return ID * (2 * (job.n_positions + job.n_targets + n_scored) + job.batch_size)


def _lookup_bytes(job: Job, n_ids: Mapping[str, int], copies: int, shards: Sequence[Shard]) -> int:
    """Return the bytes of `n_ids` lookups per feature: the larger of a process's own vectors and those it serves."""
    n_bytes = 0
    for name, table in job.tables.items():
        own = sum(n_ids.get(feature, 0) for feature in table.feature_names)
        parts = [part for part in shards if part.table == name and job.mode == "dmp"]
        served = [(own * job.group_size * part.n_rows / table.num_embeddings, part.n_columns) for part in parts]
        n_served = math.ceil(max((ids for ids, _ in served), default=0))
        values = max(own * table.embedding_dim, math.ceil(sum(ids * columns for ids, columns in served)))
        n_bytes += copies * FLOAT * values + ID_BYTES * own + SERVED_ID_BYTES * n_served
    return n_bytes


def _score_bytes(job: Job, shards: Sequence[Shard]) -> int:
    """Return the bytes of scores in memory, and of hidden states and vectors gathered or copied for them."""
    if job.loss != "softmax":
        n_scores = job.n_train_negatives + 1 if needs_negatives(job.loss) else 1
        return SCORE_COPIES * FLOAT * job.n_targets * n_scores * job.built.score_numel_factor
    share, gathered = math.ceil(job.n_items / job.group_size), job.n_targets * job.group_size
    vectors = share * job.built.item_table.width * FLOAT
    if job.has_tied_scores and job.updates["item"] == "dense_shards":
        vectors = sum(part.weight_bytes for part in shards if part.table == "item")
    tile = FLOAT * share * min(gathered, rows_of_tile(share, job.device_type))
    vectors += _feature_bytes(job, share)
    # Vectors of tables and their gradients are counted elsewhere, those of a layer of scores are not.
    layer_bytes = 0 if job.has_tied_scores else VECTOR_COPIES * vectors
    return HIDDEN_COPIES * FLOAT * gathered * job.built.item_table.width + tile + vectors + layer_bytes


def _feature_bytes(job: Job, n_items: int) -> int:
    """Return the bytes of the features of `n_items` items of the catalogue, and of the vectors and gradients with them.

    The features are a sparse matrix, kept with its transpose, and the ready-made vectors.
    """
    features = job.model.get("features")
    if features is None:
        return 0
    matrices = 2 * (ID + FLOAT) * sum(bag.per_item for bag in features.sizes.bags) + 2 * ID
    width = job.built.item_table.width
    return math.ceil(n_items * (matrices + FLOAT * (features.sizes.width + FEATURE_COPIES * width)))


def _update_bytes(job: Job, shards: Sequence[Shard]) -> int:
    """Return the bytes of copies of the largest weight: a gradient per feature before their sum, or the update's."""
    copies = UPDATE_COPIES[job.sparse_optimizer]
    largest = UPDATE_COPIES[job.optimizer] * max(_dense_sizes(job), default=0)
    for name, table in job.tables.items():
        weight = sum(part.weight_bytes for part in shards if part.table == name)
        if job.updates[name] != "fused":
            n_gradients = len(table.feature_names) if job.updates[name] == "replicated" else 0
            largest = max(largest, max(copies, n_gradients) * weight)
    return largest


def _streaming(job: Job, shards: Sequence[Shard]) -> int:
    """Return the peak bytes of an evaluation, which looks up the catalogue in parts."""
    n_rows = min(ROWS_PER_LOOKUP, job.n_items)
    if not job.has_tied_scores:
        return LOOKUP_COPIES * FLOAT * n_rows * job.built.item_table.width
    return _lookup_bytes(job, {CANDIDATE: n_rows} | job.values_of({CANDIDATE: n_rows}), LOOKUP_COPIES, shards)


def _dense_sizes(job: Job, *, by_muon: bool = False) -> list[int]:
    """Return the bytes of each weight of the dense part; or only of those that Muon updates, if it is used."""
    dense = ((name, value) for name, value in job.built.named_parameters() if not is_of_table(name))
    return [value.numel() * FLOAT for name, value in dense if not by_muon or is_for_muon(name, value)]
