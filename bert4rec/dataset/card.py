"""The dataset card: the `README.md` of a dataset folder, for a person and for the Hugging Face hub."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bert4rec.dataset.statistics import describe, share_of

COLUMNS = {
    "user": "dense user id, from 0",
    "items": "dense item ids, oldest first: a window (train), or the whole history before the target",
    "times": "seconds, parallel to `items`",
    "ratings": "parallel to `items`; 0 in Goodreads means not rated",
    "target": "the item to predict",
    "target_time": "when that was, in seconds",
    "popular_negatives": "unseen items, drawn in proportion to their training positions; none for a user with too few",
    "uniform_negatives": "unseen items, all equally likely; none for a user with too few",
}
TABLES = {
    "users": "dense id, original id, interactions of every user",
    "items": "dense id, original id, interactions, training positions and, where known, title of every item",
    "oracle": "rank of each test target for who knows how the synthetic rows were made: in full and among negatives "
    "(null where there are none)",
}
RULES = {
    "leave_one_out": "split by leave-one-out: a user's last item is the test target, of {validation_users:,} users the "
    "last but one is the validation target, all earlier ones are for training.",
    "time": "split by time: the first item of a user from second {split_instant} on is the test target, of "
    "{validation_users:,} users the last one before is the validation target, all earlier ones are for training.",
    "none": "all of them for training.",
}
EVALUATION = """
## Evaluation

- **Seen items.** {repeated_test} test targets and {repeated_validation} validation targets are items that their user
  has seen before. `evaluation.seen_items` says whether seen items are ranked and recommended (`keep`) or not
  (`leave_out`: then these targets count as missed); `auto` keeps them where more than 5 % of the targets are so.
- **Negatives.** A user has {n_negatives} of each kind, none of them from the whole of its history. A user with
  fewer unseen items has none, and is left out of the ranking among negatives: {left_test} test users and
  {left_validation} validation users.
"""
CARD = """\
---
pretty_name: {source} interactions for sequential recommendation
tags:
- sequential-recommendation
- bert4rec
configs:
- config_name: default
  data_files:
{data_files}
---

# {source}: interactions for sequential recommendation

{users:,} users, {items:,} items and {rows:,} interactions of the source `{source}`, {rule} The terms of the source hold
for this dataset too.

```
{report}
```

| split | rows | columns |
|---|---|---|
{splits}

Item ids: 0 = padding, 1 = mask, items from 2, in an order shuffled by the seed.

| column | meaning |
|---|---|
{columns}

| file | content |
|---|---|
{tables}
| `metadata.json` | settings, counts, and a checksum of every file |
{evaluation}
## Settings

Windows are at most {max_len} items long.

| preprocessing | value |
|---|---|
{settings}

## How to open it

```python
from datasets import load_from_disk

{split} = load_from_disk("{source}/{split}")  # the path of this folder, and the split
print({split}[0])
```
"""


def dataset_card(
    metadata: Mapping[str, Any], splits: Mapping[str, tuple[int, Sequence[str]]], tables: Collection[str]
) -> str:
    """The card's text from the counts and settings of `metadata`, rows and columns of the `splits`, and the `tables`.

    Only contents, no time and no path of the machine: the same dataset has the same card.
    """
    present = {name for _, columns in splits.values() for name in columns}
    return CARD.format(
        **metadata,
        rule=RULES[metadata["preprocessing"]["split"]].format(**metadata),
        report=describe(metadata),
        data_files="\n".join(f"  - split: {name}\n    path: {name}/*.arrow" for name, (n, _) in splits.items() if n),
        splits=_rows((name, f"{n:,}", _code(columns)) for name, (n, columns) in splits.items()),
        columns=_rows((f"`{name}`", meaning) for name, meaning in COLUMNS.items() if name in present),
        tables=_rows((f"`{name}.parquet`", meaning) for name, meaning in TABLES.items() if name in tables),
        evaluation=_evaluation(metadata),
        settings=_rows((f"`{key}`", f"`{value}`") for key, value in metadata["preprocessing"].items()),
        split="train" if metadata["preprocessing"]["split"] == "none" else "test",
    )


def _evaluation(metadata: Mapping[str, Any]) -> str:
    """The rules of the evaluation, and for how many users they matter; nothing where nothing is held out."""
    if metadata["preprocessing"]["split"] == "none":
        return ""
    repeated, left_out = metadata["repeated_targets"], metadata["left_out"]
    return EVALUATION.format(
        n_negatives=metadata["preprocessing"]["n_eval_negatives"],
        repeated_test=share_of(repeated["test"]), repeated_validation=share_of(repeated["validation"]),
        left_test=share_of(left_out["test"]), left_validation=share_of(left_out["validation"]),
    )  # fmt: skip


def _rows(rows: Any) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
