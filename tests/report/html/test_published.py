"""Published figures are found by the counts of a dataset and the checksum of its file, and are those of the papers."""

import pytest

from bert4rec.report.html.published import known_file, published

ML_1M = {"users": 6040, "items": 3416, "rows": 999_611, "split": "leave_one_out"}


def test_a_file_is_known_by_its_checksum_with_its_counts_and_its_split() -> None:
    sha256 = "b725f3acb3986fe3130bffd1e77a74d182a1f51799567a236dbd60270f95b0a2"
    for digest, words in (
        (sha256, "the checksum of its file"), ("", "its counts alone, not by the checksum of its file"),
        (sha256[::-1], "its counts alone, not by the checksum of its file"),
    ):  # fmt: skip
        known = known_file(ML_1M | {"file_sha256": digest})
        assert known is not None
        assert (known[0]["name"][:12], known[1]) == ("MovieLens 1M", words)
    assert known_file(ML_1M | {"rows": 999_610}) is None
    assert known_file(ML_1M | {"split": "time"}) is None


def test_lowest_first_each_with_its_source() -> None:
    known = known_file(ML_1M)
    assert known is not None
    file, _ = known
    rows = published(file, "full")
    assert [row.ndcg for row in rows] == sorted(row.ndcg for row in rows)
    (dross,) = [row for row in rows if (row.hit_rate, row.ndcg) == (0.2843, 0.1537)]
    assert (dross.model, dross.url) == ("BERT4Rec", "https://arxiv.org/abs/2309.07602")
    assert [row.model for row in published(file, "popular")] == ["BERT4Rec, TorchRec", "BERT4Rec", "BERT4Rec, RecTools"]
    assert published(file, "popular", n_negatives=99) == []
    assert published(file, "full", n_negatives=99) == rows


@pytest.mark.parametrize(("users", "items", "rows"), [(35598, 18357, 296_337), (1090, 3646, 52_551)])
def test_the_sparse_files_are_known(users: int, items: int, rows: int) -> None:
    known = known_file({"users": users, "items": items, "rows": rows, "split": "leave_one_out"})
    assert known is not None
    assert published(known[0], "full")
