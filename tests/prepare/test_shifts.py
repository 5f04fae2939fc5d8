"""What has moved in a log of less than a year: by hand, and nothing where only chance moves."""

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bert4rec.dataset.findings import findings
from bert4rec.prepare.shifts import SLOTS, shifts, slots_of
from bert4rec.sources.times import DAY
from tests.preparation import Prepare

FIRST = int(datetime(2023, 11, 20, tzinfo=UTC).timestamp())
MARCH = int(datetime(2024, 3, 1, tzinfo=UTC).timestamp())
LAST = int(datetime(2024, 3, 20, tzinfo=UTC).timestamp())


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


def test_families_that_exchange_their_shares_are_told(prepare: Prepare, tmp_path: Path) -> None:
    """Boots fall from 28 to 4 %, sandals rise from 3 to 28 %: two items of each, of one colour in all families."""
    before, since = [0.14, 0.14, 0.015, 0.015, 0.345, 0.345], [0.02, 0.02, 0.14, 0.14, 0.34, 0.34]
    items, times = four_months(6000, before, since)
    log = tmp_path / "log.csv"
    families = ["boots", "boots", "sandals", "sandals", "socks", "socks"]
    lines = (f"u{row % 600},i{item},{time},{families[item]},{'red' if item % 2 else 'blue'}"
             for row, (item, time) in enumerate(zip(items.tolist(), times.tolist(), strict=True)))  # fmt: skip
    log.write_text("\n".join(["user,item,time,family,colour", *lines]) + "\n")
    metadata = json.loads((prepare("--data.source=table", f"--data.path={log}") / "metadata.json").read_text())
    shift = metadata["log"]["shift"]
    assert shift["since"] == MARCH
    is_later = times >= MARCH
    by_hand = {
        family: [np.isin(items[part], pair).mean() for part in (~is_later, is_later)]
        for family, pair in (("boots", (0, 1)), ("sandals", (2, 3)))
    }
    assert (shift["column"], [*shift["values"]]) == ("family", ["boots", "sandals"])
    for family, shares in by_hand.items():
        assert shift["values"][family] == pytest.approx(shares, abs=1e-4)
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


def test_halves_of_months_and_a_log_of_a_few_days() -> None:
    days = np.array([datetime(2024, 2, day, 23, tzinfo=UTC).timestamp() for day in (1, 15, 16, 29)]).astype(np.int64)
    assert (slots_of(days) - slots_of(days)[0]).tolist() == [0, 0, 1, 1]
    assert slots_of(days[:1] + 29 * DAY)[0] == slots_of(days)[0] + 2
    counts = counted(np.array([0, 1]), days[:2], 2)
    assert shifts(counts, (int(days[0]), int(days[1])), pl.DataFrame({"item": [0, 1], "family": ["a", "b"]})) == {}
