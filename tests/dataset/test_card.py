"""The card of a dataset: its head, how the rows were split, its tables, the rules of the evaluation."""

from typing import Any

import pytest

from bert4rec.dataset.card import dataset_card

LISTS = ["user", "items", "times"]
EVALUATED = [*LISTS, "target", "popular_negatives", "uniform_negatives"]
NOBODY = {"users": 0, "of": 0}


def card_of(
    split: str = "leave_one_out", n_evaluated: int = 1_500, tables: tuple[str, ...] = ("users", "items")
) -> list[str]:
    """The lines of the card of a small dataset."""
    metadata: dict[str, Any] = {
        "source": "table", "order": {"by": "file", "column": None, "newest_first": False}, "users": 2_000, "items": 3,
        "rows": 50_000, "rows_read": 50_000, "bad_rows": {}, "dropped": {}, "users_read": 2_000, "items_read": 3,
        "density": 0.5, "time_span": None, "train_windows": 2_100, "test_users": n_evaluated, "max_len": 40,
        "validation_users": n_evaluated, "split_instant": 1_600_000_000,
        "repeated_targets": {"test": {"users": 305, "of": 1_500}, "validation": {"users": 3, "of": 12}},
        "left_out": {"test": {"users": 1_500, "of": 1_500}, "validation": NOBODY},
        "lengths": {"min": 2, "median": 2.5, "mean": 2.5, "max": 3, "histogram": [[2, 3, 2_000]]},
        "preprocessing": {"split": split, "sliding_step": 20, "n_eval_negatives": 100},
    }  # fmt: skip
    splits = {"train": (2_100, LISTS), "validation": (n_evaluated, EVALUATED), "test": (n_evaluated, EVALUATED)}
    return dataset_card(metadata, splits, tables).splitlines()


@pytest.mark.parametrize(("n_evaluated", "names"), [(1_500, ["train", "validation", "test"]), (0, ["train"])])
def test_the_head_names_the_splits_that_have_rows(n_evaluated: int, names: list[str]) -> None:
    card = card_of(n_evaluated=n_evaluated)
    assert card[: card.index("---", 1) + 3] == [
        "---",
        "pretty_name: table interactions for sequential recommendation",
        "tags:",
        "- sequential-recommendation",
        "- bert4rec",
        "configs:",
        "- config_name: default",
        "  data_files:",
        *(line for name in names for line in (f"  - split: {name}", f"    path: {name}/*.arrow")),
        "---",
        "",
        "# table: interactions for sequential recommendation",
    ]


@pytest.mark.parametrize(
    ("split", "how"),
    [
        (
            "leave_one_out",
            "split by leave-one-out: a user's last item is the test target, of 1,500 users the last but one is the "
            "validation target, all earlier ones are for training.",
        ),
        (
            "time",
            "split by time: the first item of a user from second 1600000000 on is the test target, of 1,500 users the "
            "last one before is the validation target, all earlier ones are for training.",
        ),
        ("none", "all of them for training."),
    ],
)
def test_how_the_rows_were_split_stands_behind_the_counts(split: str, how: str) -> None:
    counts = "2,000 users, 3 items and 50,000 interactions of the source `table`"
    assert f"{counts}, {how} The terms of the source hold" in card_of(split)


def test_only_columns_and_tables_that_are_there_are_explained() -> None:
    assert [line for line in card_of(tables=("items", "oracle")) if line.startswith("| ")] == [
        "| split | rows | columns |",
        "| train | 2,100 | `user`, `items`, `times` |",
        "| validation | 1,500 | `user`, `items`, `times`, `target`, `popular_negatives`, `uniform_negatives` |",
        "| test | 1,500 | `user`, `items`, `times`, `target`, `popular_negatives`, `uniform_negatives` |",
        "| column | meaning |",
        "| `user` | dense user id, from 0 |",
        "| `items` | dense item ids, oldest first: a window (train), or the whole history before the target |",
        "| `times` | seconds, parallel to `items` |",
        "| `target` | the item to predict |",
        "| `popular_negatives` | unseen items, drawn in proportion to their training positions; none for a user with "
        "too few |",
        "| `uniform_negatives` | unseen items, all equally likely; none for a user with too few |",
        "| file | content |",
        "| `items.parquet` | dense id, original id, interactions, training positions and, where known, title of every "
        "item |",
        "| `oracle.parquet` | rank of each test target for who knows how the synthetic rows were made: in full and "
        "among negatives (null where there are none) |",
        "| `metadata.json` | settings, counts, and a checksum of every file |",
        "| preprocessing | value |",
        "| `split` | `leave_one_out` |",
        "| `sliding_step` | `20` |",
        "| `n_eval_negatives` | `100` |",
    ]


def test_the_rules_of_the_evaluation_say_for_how_many_they_matter_and_are_left_out_where_there_is_none() -> None:
    card = "\n".join(card_of())
    assert "305 of 1,500 (20.3 %) test targets and 3 of 12 (25.0 %) validation targets are items" in card
    assert "A user has 100 of each kind, none of them from the whole of its history." in card
    assert "negatives: 1,500 of 1,500 (100.0 %) test users and\n  0 of 0 (0.0 %) validation users.\n" in card
    headings = ["## Evaluation", "## Settings", "## How to open it"]
    assert [line for line in card_of() if line.startswith("##")] == headings
    assert [line for line in card_of("none", 0) if line.startswith("##")] == headings[1:]


@pytest.mark.parametrize(("split", "n_evaluated", "opened"), [("time", 1_500, "test"), ("none", 0, "train")])
def test_what_it_says_to_open_has_rows(split: str, n_evaluated: int, opened: str) -> None:
    card = card_of(split, n_evaluated)
    shown = f'{opened} = load_from_disk("table/{opened}")  # the path of this folder, and the split'
    assert card[card.index(shown) + 1] == f"print({opened}[0])"
