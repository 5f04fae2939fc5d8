"""Published figures are found by the counts of a dataset, and are those of the papers."""

import pytest

from bert4rec.report.html.published import known_file, published

ML_1M = {"users": 6040, "items": 3416, "rows": 999_611, "split": "leave_one_out"}


def test_a_file_is_known_by_its_counts_and_its_split() -> None:
    file = known_file(ML_1M)
    assert file is not None
    assert file["name"].startswith("MovieLens 1M")
    assert known_file(ML_1M | {"rows": 999_610}) is None
    assert known_file(ML_1M | {"split": "time"}) is None


def test_lowest_first_each_with_its_source() -> None:
    file = known_file(ML_1M)
    assert file is not None
    rows = published(file, "full")
    assert [row.ndcg for row in rows] == sorted(row.ndcg for row in rows)
    (dross,) = [row for row in rows if (row.hit_rate, row.ndcg) == (0.2843, 0.1537)]
    assert (dross.model, dross.url) == ("BERT4Rec", "https://arxiv.org/abs/2309.07602")
    assert [row.model for row in published(file, "popular")] == ["BERT4Rec, TorchRec", "BERT4Rec", "BERT4Rec, RecTools"]
    assert published(file, "popular", n_negatives=99) == []
    assert published(file, "full", n_negatives=99) == rows


@pytest.mark.parametrize(("users", "items", "rows"), [(35598, 18357, 296_337), (1090, 3646, 52_551)])
def test_the_sparse_files_are_known(users: int, items: int, rows: int) -> None:
    file = known_file({"users": users, "items": items, "rows": rows, "split": "leave_one_out"})
    assert file is not None
    assert published(file, "full")
