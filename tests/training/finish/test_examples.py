"""Example users by the ids and titles of the data."""

from pathlib import Path

import numpy as np

from bert4rec.dataset.reader import open_dataset, read_metadata
from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.evaluation.examples import Example
from bert4rec.training.finish.examples import described
from tests.conftest import prepare_log


def test_ids_and_titles_are_those_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "titles.csv").write_text("item,title\n1,<One>\n4,Four\n")
    folder = prepare_log(tmp_path, **{"data.titles_path": tmp_path / "titles.csv"})
    metadata = read_metadata(folder)
    dataset = open_dataset(folder, max_len=metadata["max_len"], preprocessing=metadata["preprocessing"])
    ids = {original: FIRST_ITEM_ID + index for index, original in enumerate(dataset.originals(8))}
    history = np.array([ids[item] for item in (1, 2, 3, 4, 5, 6, 7, 8, 1)], np.int32)
    items = np.array([ids[4], ids[5]], np.int32)
    content = described(dataset, [Example(3, history, ids[4], 1, items, np.array([2.0, 1.5]))])
    titles = {1: "<One>", 4: "Four"}

    def item(name: int) -> dict[str, object]:
        return {"item": name, "title": titles.get(name, "")}

    assert content == {
        "n_items": 8,
        "n_test_users": 6,
        "users": [
            {
                "user": "d",
                "rank": 1,
                "n_history": 9,
                "history": [item(name) for name in (2, 3, 4, 5, 6, 7, 8, 1)],  # the last eight
                "target": item(4),
                "recommendations": [item(4) | {"score": 2.0}, item(5) | {"score": 1.5}],
            }
        ],
    }
