"""Example users as people read them: original ids, and titles where they are known."""

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from bert4rec.dataset.reader import Dataset
from bert4rec.dataset.schema import FIRST_ITEM_ID, USERS
from bert4rec.evaluation.examples import Example
from bert4rec.inference.item_ids import ItemIds

LAST = 8  # items of a history


def described(dataset: Dataset, examples: Sequence[Example]) -> dict[str, Any]:
    """Return the content of `examples.json`: each user's last items, target and recommendations, with original ids."""
    ids = ItemIds.read(dataset.folder)
    names = _names(dataset, [example.user for example in examples])

    def items(of: Any) -> list[dict[str, Any]]:
        indices = [int(item) - FIRST_ITEM_ID for item in of]
        return [
            {"item": item, "title": title} for item, title in zip(ids.of(indices), ids.titles_of(indices), strict=True)
        ]

    users = [
        {
            "user": names[example.user],
            "rank": example.rank,
            "n_history": len(example.history),
            "history": items(example.history[-LAST:]),
            "target": items([example.target])[0],
            "recommendations": [
                item | {"score": score}
                for item, score in zip(items(example.items), example.scores.tolist(), strict=True)
            ],
        }
        for example in examples
    ]
    return {"n_items": dataset.n_items, "n_test_users": len(dataset.splits["test"]), "users": users}


def _names(dataset: Dataset, users: Sequence[int]) -> dict[int, Any]:
    """Return the original ids of users."""
    table = pq.read_table(dataset.folder / USERS, columns=["user", "original"], filters=[("user", "in", list(users))])
    return dict(zip(table["user"].to_pylist(), table["original"].to_pylist(), strict=True))
