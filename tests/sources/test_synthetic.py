"""Synthetic rows have the structure that they promise, and the oracle knows it."""

import numpy as np
import polars as pl
import pytest
from datasets import load_from_disk

from bert4rec.runtime.errors import DataError
from bert4rec.sources import synthetic
from bert4rec.sources.synthetic import Oracle, noise, oracle_ranks, structured
from tests.folders import id_table
from tests.preparation import Prepare

NEGATIVES, LIST = ("popular_negatives", "uniform_negatives"), pl.List(pl.Int32)
ORACLE = Oracle(
    cluster=np.zeros(5, np.int64), weight=np.array([3.0, 1.0, 2.0, 2.0, 2.0]),
    current=np.array([0, 0]), following=np.array([0, 0]), popularity=np.array([1.0]),
)  # fmt: skip
ITEMS = pl.DataFrame({"item": [2, 3, 4, 5, 6], "original": [5, 1, 4, 3, 2]})
USERS = pl.DataFrame({"user": [0, 1], "original": [1, 2]})


def test_ranks_count_better_items_and_give_ties_to_the_lower_id(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = {"items": [[4], [1]], "popular_negatives": [[1, 3], [2, 0]], "uniform_negatives": [[3, 0], [2, 3]]}
    test = pl.DataFrame({"user": [0, 1], "target": [2, 4], **lists}).cast(dict.fromkeys(NEGATIVES, LIST))
    none = test.with_columns(pl.lit([], LIST).alias(name) for name in NEGATIVES)
    # weights by dense id: 0 → 2, 1 → 3, 2 → 2 (first target), 3 → 2, 4 seen by the first user
    found, without = [(0, 3, 2, 2), (1, 4, 3, 3)], [(0, 3, None, None), (1, 4, None, None)]
    some = pl.concat([none[:1], test[1:]])
    for cells_at_once in (1, 9, 10):  # blocks of users
        monkeypatch.setattr(synthetic, "CELLS_AT_ONCE", cells_at_once)
        for held_out, ranks in ((test, found), (none, without), (some, [without[0], found[1]])):
            assert oracle_ranks(ORACLE, held_out, users=USERS, items=ITEMS).rows() == ranks  # type: ignore[union-attr]
    monkeypatch.setattr(synthetic, "MAX_CELLS", 9)
    assert oracle_ranks(ORACLE, test, users=USERS, items=ITEMS) is None


COUNTS = {"n_users": 1500, "n_items": 1000, "n_rows": 45_000}


def test_rows_are_seeded_without_repeats_with_times_that_increase_and_heavy_tailed_lengths() -> None:
    rows, _ = structured(**COUNTS, seed=1)
    assert rows.equals(structured(**COUNTS, seed=1)[0])
    assert not rows.equals(structured(**COUNTS, seed=2)[0])
    assert abs(len(rows) - COUNTS["n_rows"]) < 0.05 * COUNTS["n_rows"]
    assert rows["user"].unique().sort().to_list() == list(range(1, COUNTS["n_users"] + 1))
    assert rows["item"].is_between(1, COUNTS["n_items"]).all()
    assert not rows.select("user", "item").is_duplicated().any()
    assert rows.select(pl.col("time").diff().over("user")).drop_nulls()["time"].min() >= 1
    lengths = rows.group_by("user").len()["len"]
    assert lengths.min() >= synthetic.MIN_LENGTH
    assert lengths.max() > 2.5 * lengths.mean() > 2.5 * lengths.median()


def test_the_oracle_is_calibrated() -> None:
    """The score of what really came next is, on average, what a calibrated distribution expects of itself."""
    rows, oracle = structured(**COUNTS, seed=1)
    last_of_user = rows["user"] != rows["user"].shift(-1, fill_value=0)
    last = rows.filter(last_of_user)["item"].to_numpy() - 1
    seen = rows.filter(~last_of_user)["item"].to_numpy() - 1
    lengths = rows.filter(~last_of_user).group_by("user", maintain_order=True).len()["len"].to_numpy().astype(np.int64)
    scores = oracle.scores(np.arange(len(last)), seen, np.concatenate([[0], lengths.cumsum()]))
    chances = np.maximum(scores, 0)
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-9)
    found, expected = chances[np.arange(len(last)), last], (chances**2).sum(axis=1)
    assert found.mean() == pytest.approx(expected.mean(), abs=4 * found.std() / len(found) ** 0.5)


def test_noise_is_uniform() -> None:
    rows, oracle = noise(n_users=400, n_items=20, n_rows=4000, seed=1)
    assert oracle is None
    counts = np.bincount(rows["item"].to_numpy(), minlength=21)[1:]
    expected = len(rows) / 20
    assert ((counts - expected) ** 2 / expected).sum() < 45  # chi², 19 degrees of freedom: one in a thousand


@pytest.mark.parametrize("n_rows", [499, 5001])
def test_counts_that_do_not_fit_are_refused(n_rows: int) -> None:
    with pytest.raises(DataError, match=f"n_rows = {n_rows}: "):
        structured(n_users=100, n_items=100, n_rows=n_rows, seed=1)


def test_the_default_dataset_can_be_learnt(prepare: Prepare) -> None:
    folder = prepare()
    ranks, items = pl.read_parquet(folder / "oracle.parquet"), id_table(folder, "items")
    histories = load_from_disk(str(folder / "histories")).with_format("polars")[:].filter(pl.col("test") >= 0)
    assert ranks["user"].equals(histories["user"].cast(pl.Int32))
    before, target = pl.col("items").list.head("test"), pl.col("items").list.get(pl.col("test"))
    counts, rows = items["train_count"].to_numpy(), histories.select(before, target=target).rows()
    n_better = [(np.delete(counts, seen) > counts[item]).sum() for seen, item in rows]
    oracle, popularity = (ranks["full"] <= 10).mean(), (np.array(n_better) < 10).mean()
    assert 0.35 < oracle < 0.5
    assert oracle > 3 * popularity
