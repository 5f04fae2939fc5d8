"""Raw interactions → dataset folder: `python preprocessing.py [--config=FILE] [--table.key=value …]`."""

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.config import Config, Preprocessing, load_config, parse_command_line, usage
from bert4rec.errors import DataError, UserError
from bert4rec.prepare.dataset import clear_target, write_dataset
from bert4rec.prepare.negatives import popular_negatives, train_counts, uniform_negatives
from bert4rec.prepare.oracle import oracle_ranks
from bert4rec.prepare.sequences import (
    MIN_EVALUATED,
    dense_ids,
    drop_low_ratings,
    drop_rare_items,
    drop_users,
    in_time_order,
    keep_repeats,
    leave_one_out,
    mark_validated,
    number_rows,
    to_histories,
    windows,
    with_dense_ids,
)
from bert4rec.prepare.sources import Interactions, read_interactions
from bert4rec.vocabulary import FIRST_ITEM_ID

TRAIN = ["torchx", "run", "-s", "local_cwd", "dist.ddp", "-j", "1x2", "--script", "train.py"]


def main(argv: Sequence[str]) -> int:
    """Run the command line `argv` and return the exit status: 0, or 2 for bad settings or input, 130 when stopped."""
    if "--help" in argv or "-h" in argv:
        print(usage("preprocessing.py"))
        return 0
    try:
        prepare(load_config(*parse_command_line(argv)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped: no dataset was written", file=sys.stderr)
        return 130
    print(f"next: {shlex.join([*TRAIN, '--', *argv] if argv else TRAIN)}")
    return 0


def prepare(config: Config) -> Path:
    """Make the dataset folder that `config` describes, telling the progress, and return its path."""
    datasets.disable_progress_bars()
    folder, started = config.data.folder, time.monotonic()
    clear_target(folder)
    source = read_interactions(
        **config.data.model_dump(exclude={"dataset_dir", "separator", "has_header", "time_unit", "extends"}),
        seed=config.preprocessing.seed,
    )
    _say(started, f"read {source.n_rows:,} rows, {source.n_users:,} users, {source.n_items:,} items")
    users, items, histories = _histories(source, config)
    metadata = _metadata(source, config, users, items)
    _say(started, f"kept {metadata['rows']:,} rows, {len(users):,} users, {len(items):,} items")
    splits, counts = _splits(histories, config, n_items=len(items))
    metadata |= {
        "train_windows": len(splits["train"]),
        "train_positions": int(counts.sum()),
        "validation_users": len(splits["validation"]),
        "test_users": len(splits["test"]),
        "has_times": "times" in histories.columns,
        "has_ratings": "ratings" in histories.columns,
    }
    _say(started, f"cut {len(splits['train']):,} windows and drew the negatives")
    tables = {"users": users, "items": _item_table(items, counts, source.titles)}
    if source.oracle and metadata["rows"] == source.n_rows:
        ranks = oracle_ranks(source.oracle, splits["test"], users=users, items=items)
        if ranks is None:
            _say(started, "left oracle.parquet out: too many users × items to rank")
        else:
            tables["oracle"] = ranks
    size = write_dataset(folder, splits=splits, tables=tables, metadata=metadata)
    _say(started, f"wrote {folder}")
    _summary(folder, metadata, size)
    return folder


def _histories(source: Interactions, config: Config) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """The dense ids of users and of items, and the histories."""
    settings = config.preprocessing
    backwards = settings.reverse_file_order
    kept = (
        source.frame
        .pipe(number_rows, reverse=config.data.source == "goodreads" if backwards == "auto" else backwards)
        .pipe(drop_low_ratings, min_rating=settings.min_rating)
        .pipe(keep_repeats, which=settings.repeats)
        .pipe(drop_rare_items, min_interactions=settings.min_item_interactions)
        .pipe(
            drop_users,
            min_interactions=settings.min_user_interactions,
            max_interactions=settings.max_user_interactions,
        )
    )  # fmt: skip
    everything = source.catalogue if settings.min_item_interactions == 1 else None
    users, items = pl.collect_all(
        [
            dense_ids(kept, "user"),
            dense_ids(kept, "item", first=FIRST_ITEM_ID, seed=settings.seed, everything=everything),
        ]
    )
    if not len(users):
        raise DataError(_nothing_left(source, settings))
    ordered = kept.pipe(with_dense_ids, users.lazy(), items.lazy()).pipe(in_time_order)
    return users, items, ordered.pipe(to_histories).collect()


def _nothing_left(source: Interactions, settings: Preprocessing) -> str:
    filters = ("min_rating", "min_item_interactions", "min_user_interactions", "max_user_interactions")
    shown = ", ".join(f"{name} = {getattr(settings, name)}" for name in filters)
    return f"0 of {source.n_rows} rows and {source.n_users} users pass [preprocessing] {shown}; relax these filters"


def _splits(
    histories: pl.DataFrame, config: Config, *, n_items: int
) -> tuple[dict[str, pl.DataFrame], NDArray[np.int64]]:
    """The three splits, and the training positions of each item."""
    settings = config.preprocessing
    marked = mark_validated(histories.lazy(), n_users=settings.validation_users, seed=settings.seed)
    train, validation, test = pl.collect_all(leave_one_out(marked))
    if not len(test):
        raise DataError(
            f"none of the {len(histories)} users has {MIN_EVALUATED} interactions, as leave-one-out needs: "
            "no test could be made; bring longer histories, or relax the filters of [preprocessing]"
        )
    counts = train_counts(train, n_items=n_items)
    whole = histories.join(test.select("user"), on="user", how="semi", maintain_order="left")
    n, seed = settings.n_eval_negatives, settings.seed
    popular = popular_negatives(whole, counts, n=n, seed=seed)
    uniform = uniform_negatives(whole, n_items=n_items, n=n, seed=seed)
    test = test.with_columns(
        pl.Series("popular_negatives", popular).arr.to_list(), pl.Series("uniform_negatives", uniform).arr.to_list()
    )
    negatives = test.select("user", "popular_negatives", "uniform_negatives")
    cut = train.lazy().pipe(windows, max_len=config.model.max_len, step=config.window_step).collect()
    validation = validation.join(negatives, on="user", how="left", maintain_order="left")
    return {"train": cut, "validation": validation, "test": test}, counts


def _item_table(items: pl.DataFrame, counts: NDArray[np.int64], titles: pl.DataFrame | None) -> pl.DataFrame:
    table = items.with_columns(pl.Series("train_count", counts))
    if titles is None:
        return table
    return table.join(titles, left_on="original", right_on="item", how="left", maintain_order="left")


def _metadata(source: Interactions, config: Config, users: pl.DataFrame, items: pl.DataFrame) -> dict[str, Any]:
    return {
        "source": config.data.source,
        "max_len": config.model.max_len,
        "preprocessing": config.preprocessing.recipe,
        "rows_read": source.n_rows,
        "users_read": source.n_users,
        "items_read": source.n_items,
        "rows": int(users["count"].sum()),
        "users": len(users),
        "items": len(items),
    }


def _say(started: float, text: str) -> None:
    print(f"[{time.monotonic() - started:6.1f} s] {text}", flush=True)


def _summary(folder: Path, metadata: dict[str, Any], size: int) -> None:
    for name in ("rows", "users", "items"):
        print(f"{name:18}{metadata[f'{name}_read']:>15,} read {metadata[name]:>15,} kept")
    for name in ("train_windows", "validation_users", "test_users"):
        print(f"{name.replace('_', ' '):18}{metadata[name]:>15,}")
    print(f"dataset folder    {folder} ({size / 1e6:,.1f} MB)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
