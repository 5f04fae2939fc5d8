"""Whether a dataset keeps the items of another one."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.dataset.histories import Histories
from bert4rec.dataset.reader import Dataset, checksum, problem_of, read_metadata, require_kinds
from tests.checks import one_line


def opened(folder: Path, *, items: int = 10) -> Dataset:
    return Dataset(folder, read_metadata(folder) | {"items": items}, Histories(folder, 0), {})


def rename(folder: Path, originals: pa.Array | pa.ChunkedArray) -> None:
    """Give the items of a dataset folder other ids of their own."""
    path = folder / "items.parquet"
    items = pq.read_table(path)
    pq.write_table(items.set_column(items.column_names.index("original"), "original", originals), path)


def test_new_items_behind_the_old_ones_are_an_extension(log_folder: Path, grown_folder: Path, tmp_path: Path) -> None:
    new, old = opened(grown_folder), opened(log_folder, items=8)
    as_text = Path(shutil.copytree(grown_folder, tmp_path / "text"))
    rename(as_text, pq.read_table(as_text / "items.parquet")["original"].cast(pa.string()))
    for dataset, previous in ((old, None), (new, log_folder), (opened(as_text), log_folder)):
        assert problem_of(dataset, n_items=8, first_ids=old.first_ids, previous=previous) == ""
    assert problem_of(old, n_items=10, first_ids=new.first_ids) != ""
    assert problem_of(new, n_items=8, first_ids="0" * 12) != ""


def test_where_the_older_dataset_is_there_every_id_is_compared(
    log_folder: Path, grown_folder: Path, tmp_path: Path
) -> None:
    """A checkpoint knows the first ids alone."""
    folder = Path(shutil.copytree(grown_folder, tmp_path / "new"))
    originals = pq.read_table(folder / "items.parquet")["original"].to_pylist()
    changed = [*originals[:7], 99, *originals[8:]]
    rename(folder, pa.array(changed))
    first_ids = checksum(changed[:8])
    assert problem_of(opened(folder), n_items=8, first_ids=first_ids) == ""
    problem = problem_of(opened(folder), n_items=8, first_ids=first_ids, previous=log_folder)
    assert all(str(part) in problem for part in (9, 99, originals[7]))


def test_new_kinds_of_events_are_refused_with_what_to_do(event_folder: Path) -> None:
    metadata = read_metadata(event_folder)
    kinds = [*metadata["events"]]
    require_kinds(event_folder, metadata, kinds)
    grown = metadata | {"events": metadata["events"] | {"refund": 3}}
    for has, named in ((grown, "refund"), ({"events": {"": 0, "refund": 3}}, "--data.extends")):
        with one_line(f"{event_folder}: ", named):
            require_kinds(event_folder, has, kinds)
