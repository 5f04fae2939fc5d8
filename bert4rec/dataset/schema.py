"""What both sides of the disk agree on: ids, files, columns and their types.

No special id depends on the catalogue's size, so a grown catalogue keeps its ids. The writer, the reader and the check
take all of it from here; docs and the dataset card describe it.
"""

import pyarrow as pa

DATASET_FORMAT = 1  # version of the dataset folder

PAD_ID = 0
MASK_ID = 1
FIRST_ITEM_ID = 2
MOST_IDS = 2**31 - 1 - FIRST_ITEM_ID  # users or items: ids are 32-bit

TRAIN, VALIDATION, TEST = SPLITS = ("train", "validation", "test")  # folders, as `datasets` saves them
STATE = "state.json"  # in each of them: the names of its files
USERS, ITEMS, ORACLE = "users.parquet", "items.parquet", "oracle.parquet"
METADATA = "metadata.json"
CARD = "README.md"

MIN_EVALUATED = 3  # interactions, for leave-one-out: one to train on, one for validation, one for the test

PROTOCOLS = ("popular", "uniform")  # of negatives
NEGATIVES = tuple(f"{name}_negatives" for name in PROTOCOLS)
RATINGS = "ratings"
TIMES, TARGET_TIME = "times", "target_time"
LISTS = {"items": pa.int32(), TIMES: pa.int64(), RATINGS: pa.float32()}
"""Parallel lists of a row, oldest first → the type of an element; times and ratings only where the source has them."""


def columns(split: str, *, has_times: bool, has_ratings: bool) -> dict[str, pa.DataType]:
    """Return the columns of a split with their types, in their order.

    >>> list(columns("train", has_times=True, has_ratings=False))
    ['user', 'items', 'times']
    >>> list(columns("test", has_times=False, has_ratings=False))
    ['user', 'items', 'target', 'popular_negatives', 'uniform_negatives']
    """
    is_there = {"items": True, TIMES: has_times, RATINGS: has_ratings}
    lists = {name: pa.list_(kind) for name, kind in LISTS.items() if is_there[name]}
    target = {"target": pa.int32(), **({TARGET_TIME: pa.int64()} if has_times else {})}
    held_out = {**target, **dict.fromkeys(NEGATIVES, pa.list_(pa.int32()))}
    return {"user": pa.int32(), **lists, **(held_out if split != TRAIN else {})}


def table_rows(n_items: int) -> int:
    """Return the rows of an item table of `n_items` items: the items and the special ids before them."""
    return FIRST_ITEM_ID + n_items
