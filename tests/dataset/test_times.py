"""When histories end."""

from pathlib import Path

import pytest

from bert4rec.dataset.times import UNKNOWN, last_times
from bert4rec.runtime.errors import DataError
from tests.conftest import LOG, prepare_log
from tests.folders import rewrite


def test_the_time_of_the_last_item_of_each_history(log_folder: Path, tmp_path: Path) -> None:
    """The fixtures' times count the interactions of a user from 1,600,000,000; the target is the last of them."""
    expected = [1_600_000_000 + len(items) - 2 for items in LOG.values()]
    found = last_times(log_folder / "test")
    assert found is not None
    assert found.tolist() == expected
    folder = prepare_log(tmp_path)
    cut = {"items": [5], "times": [7]}, {"items": [], "times": []}
    rewrite(folder, "test", lambda rows: rows.select([0, 1]).map(lambda row, at: row | cut[at], with_indices=True))
    shorter = last_times(folder / "test")
    assert shorter is not None
    assert shorter.tolist() == [7, UNKNOWN]


def test_data_without_times_have_none(tmp_path: Path) -> None:
    folder = prepare_log(tmp_path)
    rewrite(folder, "test", lambda rows: rows.remove_columns("times"))
    assert last_times(folder / "test") is None
    (folder / "test" / "state.json").unlink()
    with pytest.raises(DataError, match=r"test: cannot be read \(.*\); make it again with"):
        last_times(folder / "test")
