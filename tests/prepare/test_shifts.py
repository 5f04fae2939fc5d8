"""What has moved in a log of less than a year: by hand, and nothing where only chance moves."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bert4rec.dataset.findings import findings
from bert4rec.prepare.shifts import SLOTS, shifts, slots_of
from tests.preparation import metadata_of, prepared

FIRST, MARCH, LAST = (
    int(datetime(*date, tzinfo=UTC).timestamp()) for date in ((2023, 11, 20), (2024, 3, 1), (2024, 3, 20))
)


def counted(items: np.ndarray, times: np.ndarray, n_items: int) -> np.ndarray:
    counts = np.zeros((n_items, SLOTS), np.int32)
    np.add.at(counts, (items, slots_of(times) % SLOTS), 1)
    return counts


def four_months(n: int, before: list[float], since: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Items and times of `n` rows whose items have shares before March and since."""
    generator = np.random.default_rng(1)
    times = np.sort(generator.integers(FIRST, LAST, n))
    drawn = [generator.choice(len(shares), n, p=shares) for shares in (before, since)]
    return np.where(times < MARCH, *drawn), times


def test_families_that_exchange_their_shares_are_told(tmp_path: Path) -> None:
    """Boots fall from 28 to 4 %, sandals rise from 3 to 28 %: two items of each, of one colour in all families."""
    before, since = [0.14, 0.14, 0.015, 0.015, 0.345, 0.345], [0.02, 0.02, 0.14, 0.14, 0.34, 0.34]
    items, times = four_months(6000, before, since)
    family = np.array(["boots", "boots", "sandals", "sandals", "socks", "socks"])[items]
    table = pl.DataFrame({"user": [f"u{row % 600}" for row in range(6000)], "item": [f"i{item}" for item in items]})
    table = table.with_columns(time=times, family=family, colour=np.array(["blue", "red"])[items % 2])
    metadata = metadata_of(prepared(tmp_path, table=table))
    shift = metadata["log"]["shift"]
    assert (shift["since"], shift["column"], [*shift["values"]]) == (MARCH, "family", ["boots", "sandals"])
    for name, shares in shift["values"].items():
        by_hand = [(family[part] == name).mean() for part in (times < MARCH, times >= MARCH)]
        assert shares == pytest.approx(by_hand, abs=1e-4)
    assert "shift" in {finding.name for finding in findings(metadata)}


def test_popular_items_that_lose_their_rows_are_told_if_no_column_does() -> None:
    n_items = 40
    before, since = np.full(n_items, 0.6 / 36), np.full(n_items, 0.95 / 36)
    before[:4], since[:4] = 0.1, 0.0125
    items, times = four_months(8000, (before / before.sum()).tolist(), (since / since.sum()).tolist())
    table = pl.DataFrame({"item": range(n_items), "colour": ["red", "blue"] * 20})
    found = shifts(counted(items, times, n_items), (FIRST, LAST), table)
    assert found.keys() == {"since", "popular"}
    assert found["popular"] == pytest.approx([0.4, 0.05], abs=0.04)


@pytest.mark.parametrize("n_items", [7, 300, 3000])
def test_chance_moves_nothing(n_items: int) -> None:
    """Of 3,000 items with one row each, those that are popular by chance are others in every month."""
    table = pl.DataFrame({"item": range(n_items), "family": [f"f{item % 7}" for item in range(n_items)]})
    for seed in range(20):
        generator = np.random.default_rng(seed)
        items, times = generator.integers(n_items, size=3000), generator.integers(FIRST, LAST, 3000)
        assert shifts(counted(items, times, n_items), (FIRST, LAST), table) == {}


def test_a_log_of_a_few_days_tells_nothing() -> None:
    counts = counted(np.array([0, 1]), np.array([MARCH, LAST]), 2)
    assert shifts(counts, (MARCH, MARCH + 9), pl.DataFrame({"item": [0, 1], "family": ["a", "b"]})) == {}
