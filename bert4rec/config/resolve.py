"""Resolve every "auto" setting for a device, a dataset and a world size."""

import os
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from bert4rec.config.kinds import KINDS, has_optimizer, needs_negatives, supports_column_sharding, table_updates
from bert4rec.config.load import with_changes
from bert4rec.config.tables import FULL_SOFTMAX_UP_TO, WINDOW_LENGTHS, Config
from bert4rec.runtime.errors import SettingsError, pluralize

AVERAGE_AGE = 0.1
ENOUGH_STEPS, FEWEST_STEPS = 64, 16  # steps per epoch: with fewer windows, batches are smaller (docs/results.md)
FEW_STEPS = 5  # steps per epoch below which a warning is given
LARGEST_PER_DEVICE = 64
LEARNING_RATE = 0.001  # of AdamW, and of the tables beside Muon
MUON_RATE, LARGEST_RATE = 0.000125, 0.012  # of Muon, for each window of a step, and at most (docs/results.md)
WEIGHT_DECAY = 0.1  # of Muon (docs/results.md)
FEWEST_NEGATIVES = 256  # of a draw
# Positions that share a negative: with 4 the validations are worse than with 2, and with 8 a model learns several times
# more slowly (docs/results-archive.md).
MOST_SHARING = 4
MOVED_FROM = 0.15  # change of a share of the rows in the last weeks, above which a model needs to know the time
# Share of held-out targets that their users have seen, above which seen items are recommended; by item, the share of
# its users who return to it.
MANY_REPEATS = 0.05
FEW_MISSED = 0.01  # share of validation targets that the choice by item may miss


class Facts(NamedTuple):
    """The facts of a dataset that "auto" settings depend on.

    `typical_length`: three quarters of the histories are at most so long. `n_windows`: training windows of the resolved
    length. `repeats`: the share of held-out targets that their users have seen before. 0 means unknown, and is treated
    as many interactions, and windows of the shortest automatic length. `missed`: the share of validation targets that
    are missed if seen items are left out by item; None if none is, or if it is not counted. `moved`: by how much a
    share of the rows has changed in the last weeks. `times`: model.times of the run whose weights are taken, "" without
    one. `prior`: the sources that are counted.
    """

    n_items: int
    n_rows: int = 0
    typical_length: int = 0
    n_windows: int = 0
    repeats: float = 0.0
    missed: float | None = None
    moved: float = 0.0
    times: str = ""
    prior: Sequence[str] = ()


def resolve(config: Config, device_type: str, facts: Facts, world_size: int = 1) -> Config:
    """Return the settings with every "auto" resolved by the device, the `facts` of a dataset and the world size.

    Raises `SettingsError` for settings that the device or the dataset does not support.
    """
    config = _resolve_sizes(resolve_seen_items(config, facts), facts, world_size)
    parallelism = config.parallelism
    optimizer = parallelism.sparse_optimizer
    updates_with = partial(
        table_updates, mode=parallelism.mode, device_type=device_type, loss=config.training.loss,
        is_scored=config.model.head == "tied", sharding_type=parallelism.sharding_type,
        compute_kernel=parallelism.compute_kernel, weight_decay=parallelism.sparse_weight_decay,
    )  # fmt: skip
    if optimizer == "auto":  # Adagrad if only Adam would prevent fused updates
        is_whole = supports_column_sharding("rowwise_adagrad", parallelism.sharding_type)
        has_adam = has_optimizer("adam", updates_with(optimizer="rowwise_adagrad"), device_type)
        optimizer = "adam" if has_adam else "rowwise_adagrad" if is_whole else "adagrad"
    updates = updates_with(optimizer=optimizer)
    if not has_optimizer(optimizer, updates, device_type):
        raise SettingsError(
            'parallelism.sparse_optimizer = "adam": fbgemm has no fused Adam on CPU; there, mode = "dmp" needs '
            'sharding_type = "row_wise" for it; otherwise valid: "sgd", "adagrad", "rowwise_adagrad", or --mode=ddp'
        )
    if parallelism.table_precision != "fp32" and updates == "dense_shards":
        raise SettingsError(
            f'parallelism.table_precision = "{parallelism.table_precision}": only fbgemm can update such rows, but '
            'these settings need an ordinary optimizer; set it to "fp32", or take a sampled loss, '
            "sparse_weight_decay = 0 and, on CPU, another sparse_optimizer than adam"
        )
    if config.training.compile and device_type == "cpu" and not _has_compiler():
        raise SettingsError(
            "training.compile = true: torch.compile needs a C++ compiler on CPU; install g++, or set it to false"
        )
    rate = parallelism.sparse_learning_rate
    if rate == "auto":
        dense = LEARNING_RATE if config.training.optimizer == "muon" else config.training.rate
        rate = 0.02 if "adagrad" in optimizer else dense
    # An average doubles the memory of tables, which fused updates are for, and decaying rates need none.
    is_averaged = updates != "fused" and config.training.lr_schedule == "constant"
    config = _decide(config, "training", average_age=AVERAGE_AGE if is_averaged else 0.0)
    changed = {"sparse_optimizer": optimizer, "sparse_learning_rate": rate, "device": device_type}
    # This checks conflicts again: the resolved optimizer must fit the sharding type and the kernel.
    return with_changes(config, "parallelism", changed)


def _resolve_sizes(config: Config, facts: Facts, world_size: int) -> Config:
    """Return the settings with [model], the loss, batch size, optimizer and negatives resolved."""
    config = resolve_model(_resolve_loss(config, facts.n_items), facts)
    is_transformer = KINDS[config.model.kind].is_transformer
    per_device, optimizer = _per_device(config, facts, world_size), "muon" if is_transformer else "adamw"
    config = _decide(config, "training", per_device_train_batch_size=per_device, optimizer=optimizer)
    config = _decide(config, "training", **_rates(config, world_size))
    return _decide(config, "training", **_negatives(config, facts.n_items, world_size))


def _resolve_loss(config: Config, n_items: int) -> Config:
    training = config.training
    loss = training.loss
    if loss == "auto":
        has_softmax = n_items <= FULL_SOFTMAX_UP_TO and KINDS[config.model.kind].has_products(config.model.form)
        loss = "softmax" if has_softmax else "sampled_softmax"
    if needs_negatives(loss) and n_items == 1:
        raise SettingsError(
            f'training.loss = "{loss}": the catalogue has a single item, which leaves no negatives; set training.loss '
            '= "softmax"'
        )
    if needs_negatives(loss) and training.n_train_negatives != "auto" and training.n_train_negatives >= n_items:
        raise SettingsError(
            f"training.n_train_negatives = {training.n_train_negatives}: the catalogue has {n_items} items; "
            f'draw {n_items - 1} at most, or set training.loss = "softmax"'
        )
    return with_changes(config, "training", {"loss": loss})


def resolve_model(config: Config, facts: Facts) -> Config:
    """Return the settings with [model] resolved, which is enough to evaluate any kind of model."""
    length, is_normalized = max_len(config, facts.typical_length), KINDS[config.model.kind].is_causal
    chosen = {"max_len": length, "dropout": _dropout(config, facts), "input_norm": is_normalized}
    return _decide(config, "model", **chosen, times=resolve_times(config, facts))


def resolve_times(config: Config, facts: Facts) -> str:
    """Return `model.times`; "auto": "history" if shares have moved by at least `MOVED_FROM`, else "none"."""
    if config.model.times != "auto":
        return config.model.times
    if not KINDS[config.model.kind].is_transformer:
        return "none"
    return facts.times or ("history" if facts.moved >= MOVED_FROM else "none")


def max_len(config: Config, typical_length: int) -> int:
    """Return the length of windows; "auto": the smallest of `WINDOW_LENGTHS` that the typical history fits into.

    If none is long enough, the last one, since older items hardly improve a model.
    """
    if config.model.max_len != "auto":
        return config.model.max_len
    length = next((length for length in WINDOW_LENGTHS if typical_length <= length), WINDOW_LENGTHS[-1])
    return max(length, config.training.sliding_step)


def resolve_seen_items(config: Config, facts: Facts) -> Config:
    """Return the settings with `evaluation.seen_items` resolved."""
    return _decide(config, "evaluation", seen_items=_seen_items(facts))


def _decide(config: Config, table: str, **values: Any) -> Config:
    """Return `config` with these values for the settings of `table` that are "auto"."""
    settings = getattr(config, table)
    return with_changes(config, table, {name: values[name] for name in values if getattr(settings, name) == "auto"})


def choices(config: Config, facts: Facts, world_size: int) -> Iterator[str]:
    """Yield a line for each setting that the `facts` will resolve, with its value and the reason."""
    if config.evaluation.seen_items == "auto" and facts.repeats:
        share = f"{100 * facts.repeats:.1f} % of held-out targets are items that the user has seen before"
        again = ", and nearly all are items that people take again" if _seen_items(facts) == "by_item" else ""
        yield f'evaluation.seen_items = "{_seen_items(facts)}": {share}{again}'
    if not KINDS[config.model.kind].is_trained:
        return
    training = _resolve_sizes(config, facts, world_size).training
    if needs_negatives(training.loss) and config.training.n_train_negatives == "auto":
        yield f"training.n_train_negatives = {training.n_negatives}: at most {MOST_SHARING} positions share a negative"
    if not KINDS[config.model.kind].is_transformer:
        return
    if config.model.times == "auto" and resolve_times(config, facts) != "none":
        moved = f"in its last weeks shares of the rows have moved by {100 * facts.moved:.0f} points (bert4rec describe)"
        reason = "as in the run whose weights are taken" if facts.times else moved
        yield f'model.times = "{resolve_times(config, facts)}": {reason}; --model.times=none leaves the times out'
    if config.model.prior == "auto" and facts.prior:
        yield f'model.prior = "auto": {", ".join(facts.prior)}, if they pay; --model.prior=none counts nothing'
    if config.model.max_len == "auto" and facts.typical_length:
        lengths = f"three quarters of the histories have at most {pluralize(facts.typical_length, 'item')}"
        yield f"model.max_len = {max_len(config, facts.typical_length)}: {lengths}"
    if config.model.dropout == "auto":
        an_item = f"{facts.n_rows / facts.n_items:.0f} interactions on average"
        yield f"model.dropout = {_dropout(config, facts)}: an item has {an_item}"
    if config.training.per_device_train_batch_size == "auto":
        n, windows = _per_device(config, facts, world_size), pluralize(facts.n_windows, "window")
        steps = pluralize(-(-facts.n_windows // (n * world_size)), "step")
        yield f"training.per_device_train_batch_size = {n}: {windows} to train on, {steps} an epoch"


def slow_settings(config: Config) -> Iterator[str]:
    """Yield a warning for each resolved setting that makes a training slower on its device."""
    if config.parallelism.device != "cpu":  # measured on CPU: docs/performance.md
        return
    if config.training.precision == "bf16":
        slower = 'slower than "fp32" on CPU (MovieLens 1M: 1.5 times)'
        yield f'training.precision = "bf16": {slower}; faster: --precision=fp32'
    if config.training.compile:
        yield "training.compile = true: slower on CPU (MovieLens 1M: 1.1 times); faster: --training.compile=false"


def _seen_items(facts: Facts) -> str:
    if facts.repeats <= MANY_REPEATS:
        return "leave_out"
    return "keep" if facts.missed is None or facts.missed > FEW_MISSED else "by_item"


def _per_device(config: Config, facts: Facts, world_size: int) -> int:
    """Return the batch size for the number of examples in an epoch: windows, or pairs of a user and an item."""
    kind = KINDS[config.model.kind]
    n_examples = facts.n_windows if kind.is_transformer else facts.n_rows
    if not n_examples:
        return LARGEST_PER_DEVICE
    global_batch = max(n_examples // ENOUGH_STEPS, min(kind.smallest_batch, n_examples // FEWEST_STEPS))
    most = max(1, global_batch // world_size)
    return min(LARGEST_PER_DEVICE, 2 ** (most.bit_length() - 1))


def _rates(config: Config, world_size: int) -> dict[str, float]:
    """Return the learning rate and the weight decay of the dense parameters, by their optimizer.

    The learning rate of Muon is in proportion to the windows of a step.
    """
    if config.training.optimizer != "muon":
        return {"learning_rate": LEARNING_RATE, "weight_decay": 0.0}
    rate = min(LARGEST_RATE, MUON_RATE * config.training.per_device * world_size)
    return {"learning_rate": rate, "weight_decay": WEIGHT_DECAY}


def _negatives(config: Config, n_items: int, world_size: int) -> dict[str, Any]:
    """Return the number of negatives of a draw and the processes that share it: enough for the positions of a step."""
    training, kind = config.training, KINDS[config.model.kind]
    n_positions = training.per_device * (config.max_len if kind.is_transformer else 1)
    n_targets = kind.n_targets(training.per_device, n_positions, mask_prob=training.mask_prob)
    shared_by = training.negatives_shared_by
    n_sharing = min(shared_by, world_size) if isinstance(shared_by, int) else world_size if shared_by == "all" else 1
    enough = max(FEWEST_NEGATIVES, 2 ** (-(-n_sharing * n_targets // MOST_SHARING) - 1).bit_length())
    n = min(enough, max(1, n_items - 1))
    is_enough = world_size * n_targets <= MOST_SHARING * n or n >= n_items - 1
    # Of a number that is set, any number of processes takes one draw, and so trains the same model.
    is_shared = is_enough or training.n_train_negatives != "auto"
    return {"n_train_negatives": n, "negatives_shared_by": "all" if is_shared else 1}


def _dropout(config: Config, facts: Facts) -> float:
    """Return the dropout, which is higher if items have fewer interactions."""
    levels = KINDS[config.model.kind].dropout
    return next(dropout for least, dropout in levels if not facts.n_rows or facts.n_rows >= least * facts.n_items)


def _has_compiler() -> bool:
    return any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++")))
