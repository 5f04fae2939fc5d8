"""What passes the filters, by user and time, with codes for items."""

from pathlib import Path

import polars as pl
import pytest

from bert4rec.config.tables import Preprocessing
from bert4rec.prepare.order.spool import Spool
from bert4rec.prepare.progress import Progress
from bert4rec.prepare.stages.ordered_rows import OrderedRows, order_rows
from bert4rec.prepare.stages.raw_rows import RawRows

ROWS = pl.DataFrame({"user": [2, 1, 2, 2, 3], "item": [30, 10, 20, 10, 10], "time": [3, 1, 1, 2, 9]})


def run(place: Path, settings: Preprocessing, *, frame: pl.DataFrame = ROWS, newest_first: bool = False) -> OrderedRows:
    raw = RawRows(Spool(place / "known", run_bytes=10**6), Spool(place / "new", run_bytes=10**6))
    raw.new.add(frame)
    raw.items.add(frame.select("item"))
    progress, also = Progress(), [pl.Series([40])]
    order = {"newest_first": newest_first}
    return order_rows(raw, settings, order, folder=place / "parts", progress=progress, also=also)


def test_rows_are_in_order_of_users_and_times_and_items_are_codes(tmp_path: Path) -> None:
    found = run(tmp_path, Preprocessing(time_until="9", min_user_interactions=2))
    assert [part.select("user", "item").rows() for part in found.parts] == [[(2, 1), (2, 0), (2, 2)]]
    assert (found.items.to_list(), found.counts.tolist()) == ([10, 20, 30, 40], [1, 1, 1, 0])
    assert (found.n_rows_read, found.n_users_read, found.n_items_read) == (5, 3, 3)
    assert found.dropped == {"time_until": 1, "min_user_interactions": 1}


@pytest.mark.parametrize(("newest_first", "codes"), [(False, [0, 2, 1, 0, 0]), (True, [0, 0, 1, 2, 0])])
def test_without_times_the_order_of_the_file_counts_and_users_wait_for_rare_items(
    tmp_path: Path, newest_first: bool, codes: list[int]
) -> None:
    settings = Preprocessing(min_user_interactions=2, min_item_interactions=2)
    found = run(tmp_path, settings, frame=ROWS.drop("time"), newest_first=newest_first)
    assert [part["item"].to_list() for part in found.parts] == [codes]
    assert found.dropped == {}
