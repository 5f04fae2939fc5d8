"""Opening a dataset folder: what is read, what is refused, and whether it keeps the items of another one."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert4rec.config.tables import Config
from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Histories
from bert4rec.dataset.reader import Dataset, open_dataset, problem_of, read_metadata, require_kinds
from tests.checks import one_line
from tests.conftest import prepare_log
from tests.dataset.check.damages import flip
from tests.folders import FIRST_ITEMS, id_table, rewrite

Open = Callable[..., Dataset]


@pytest.fixture
def folder(small_folder: Path, tmp_path: Path) -> Path:
    """A copy of the small dataset, to be damaged."""
    return Path(shutil.copytree(small_folder, tmp_path / "dataset"))


@pytest.fixture
def reopen(folder: Path, small_config: Callable[..., Config]) -> Open:
    """Open with the settings that the folder was made with."""
    return partial(open_dataset, folder, preprocessing=small_config().preprocessing.recipe)


def edit_metadata(folder: Path, **changes: Any) -> None:
    path = folder / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_rows_are_those_of_the_folder(folder: Path, reopen: Open) -> None:
    histories, negatives = (
        datasets.load_from_disk(str(folder / name)).to_list() for name in ("histories", "negatives")
    )
    drawn = {row["user"]: row for row in negatives}
    for name, split in reopen(with_times=True).splits.items():
        plain = [row for row in histories if row[name] >= 0]
        assert split.users.tolist() == [row["user"] for row in plain]
        assert split.lengths(np.arange(len(split))).tolist() == [row[name] for row in plain]
        chosen = np.array([5, 0, 5, 2])
        rows = split.read(chosen)
        picked = [plain[i] for i in chosen.tolist()]
        assert rows.items.tolist() == [item for row in picked for item in row["items"][: row[name]]]
        assert rows.times.tolist() == [time for row in picked for time in row["times"][: row[name]]]
        assert rows.lengths.tolist() == [row[name] for row in picked]
        assert rows.targets.tolist() == split.targets(chosen).tolist() == [row["items"][row[name]] for row in picked]
        assert rows.target_times.tolist() == [row["times"][row[name]] for row in picked]
        for protocol in ("popular", "uniform"):
            expected = [drawn[row["user"]][f"{protocol}_negatives"] for row in picked]
            assert rows.negatives[protocol].tolist() == expected
        without = reopen().splits[name].read(chosen)
        assert without.times is without.target_times is None
        last_times = reopen().splits[name].last_times
        assert last_times is not None
        assert last_times.tolist() == [row["times"][row[name] - 1] for row in plain]


def test_a_dataset_without_times_is_refused_where_they_are_asked_for(folder: Path, reopen: Open) -> None:
    edit_metadata(folder, has_times=False, source="table")  # a folder may come from elsewhere
    with one_line(f"{folder}: ", "model.times"):
        reopen(with_times=True)
    rewrite(folder, "histories", lambda rows: rows.remove_columns("times"))
    dataset = reopen()
    assert dataset.splits["test"].last_times is None
    assert dataset.popularity.tolist() == id_table(folder, "items")["train_count"].to_list()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda f: shutil.rmtree(f), "dataset: "), (lambda f: (f / "metadata.json").write_text("{"), "metadata.json"),
        (lambda f: (f / "metadata.json").write_text("[]"), "metadata.json"),
        (lambda f: edit_metadata(f, format_version=2), "format_version 2"),
        (lambda f: (f / FIRST_ITEMS).unlink(), FIRST_ITEMS),
        (lambda f: (f / "README.md").write_text("x"), "README.md"),
        (lambda f: flip(f / "histories" / "part-0000000000.arrow", 900), "histories/part-0"),
        (lambda f: flip(f / FIRST_ITEMS, 900), FIRST_ITEMS), (lambda f: forget_samples(f), ""),
        (lambda f: edit_preprocessing(f, seed=2), "preprocessing.seed = 2"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_one_line(folder: Path, reopen: Open, damage: Callable[[Path], None], named: str) -> None:
    damage(folder)
    with one_line("", named):
        reopen()


def edit_preprocessing(folder: Path, **changes: Any) -> None:
    edit_metadata(folder, preprocessing=json.loads((folder / "metadata.json").read_text())["preprocessing"] | changes)


def forget_samples(folder: Path) -> None:
    files = json.loads((folder / "metadata.json").read_text())["files"]
    edit_metadata(folder, files={name: {key: file[key] for key in ("bytes", "sha256")} for name, file in files.items()})


def test_other_processes_of_the_host_look_at_sizes_only(folder: Path) -> None:
    file = folder / "histories" / "part-0000000000.arrow"
    flip(file, 900)
    open_dataset(folder, verify=False)
    file.write_bytes(file.read_bytes()[:-1])
    with one_line(f"{file}: "):
        open_dataset(folder, verify=False)


OUTSIDE = [10_000, -1]
LISTS = [
    *[("histories/items", lambda items, id_=id_: [*items[:-1], id_], f" has the id {id_}, ") for id_ in OUTSIDE],
    *[("negatives/popular_negatives", lambda ids, id_=id_: [*ids[:-1], id_], f"has the id {id_}, ") for id_ in OUTSIDE],
    ("histories/items", lambda items: [10_000, *items[1:]], "column items has the id 10000, "),
    ("negatives/uniform_negatives", lambda ids: ids[:9], "column uniform_negatives"),
]
OFFSETS = [
    (f"histories/{name}", lambda _, value=value: value, f"column {name} is outside the history of row 7")
    for name, value in (("n_train", -1), ("n_train", 999), ("test", 0), ("test", 999))
]


@pytest.mark.parametrize(("column", "change", "found"), LISTS + OFFSETS)
def test_what_is_outside_of_its_table_or_history_is_found_where_it_is_read(
    folder: Path, reopen: Open, column: str, change: Callable[[Any], Any], found: str
) -> None:
    place, name = column.split("/")
    rows = datasets.load_from_disk(str(folder / place), keep_in_memory=True)[name]
    changed = [change(value) if at == 7 else value for at, value in enumerate(rows)]
    rewrite(
        folder, place, lambda rows: rows.remove_columns(name).add_column(name, changed, feature=rows.features[name])
    )
    dataset = reopen()  # which reads no rows
    split, windows = dataset.splits["test"], dataset.windows(max_len=12, step=12)
    if name not in ("n_train", "test"):
        split.read(np.array([6, 8]))
    with one_line(f"{folder / place}: ", found):
        split.read(np.array([6, 7, 8]))
        windows.read(np.arange(len(windows)))


def test_who_is_left_out_has_padding_for_negatives(log_config: Callable[..., Config]) -> None:
    config = log_config()
    dataset = open_dataset(config.data.folder, preprocessing=config.preprocessing.recipe)
    test = dataset.splits["test"]
    rows = test.read(np.arange(6))
    nobody = test.read(np.array([3, 5]))
    for protocol, negatives in rows.negatives.items():
        assert (negatives.shape, (negatives == NO_ITEM).sum(axis=1).tolist()) == ((6, 5), [0, 0, 0, 5, 0, 5])
        assert rows.are_left_out(protocol).tolist() == [False, False, False, True, False, True]
        assert nobody.negatives[protocol].shape == (2, 0)
        assert nobody.are_left_out(protocol).tolist() == [True, True]
    assert rows.are_repeated().tolist() == [True, False, True, False, False, True]
    assert dataset.splits["validation"].read(np.arange(6)).are_repeated().tolist() == [False, True, True] + [False] * 3


def test_the_ranks_of_the_oracle_stand_in_the_order_of_the_test_split(folder: Path, reopen: Open) -> None:
    dataset, table = reopen(), pq.read_table(folder / "oracle.parquet").to_pydict()
    assert table.pop("user") == dataset.splits["test"].users.tolist()
    assert {name: ranks.tolist() for name, ranks in dataset.oracle_ranks().items()} == table
    assert all(0 < popular <= full for popular, full in zip(table["popular"], table["full"], strict=True))
    left_out = [*table["full"][:3], None, *table["full"][4:]]
    pq.write_table(pa.table(table | {"uniform": left_out}), folder / "oracle.parquet")
    ranks = dataset.oracle_ranks()["uniform"]
    assert (ranks[3], ranks.dtype.kind) == (-1, "i")


def opened(folder: Path, *, items: int = 10) -> Dataset:
    return Dataset(folder, read_metadata(folder) | {"items": items}, Histories(folder, 0), {})


def rename(folder: Path, change: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> None:
    """Give the items of a dataset folder other ids of their own."""
    for path in (folder / "items").iterdir():
        items = pq.read_table(path)
        originals = change(items["original"])
        pq.write_table(items.set_column(items.column_names.index("original"), "original", originals), path)


def test_new_items_behind_the_old_ones_are_an_extension(log_folder: Path, grown_folder: Path, tmp_path: Path) -> None:
    new, old = opened(grown_folder), opened(log_folder, items=8)
    as_text = Path(shutil.copytree(grown_folder, tmp_path / "text"))
    rename(as_text, lambda ids: ids.cast(pa.string()))
    for dataset, previous in ((old, None), (new, log_folder), (opened(as_text), log_folder)):
        assert problem_of(dataset, n_items=8, first_ids=old.first_ids, previous=previous) == ""
    assert problem_of(old, n_items=10, first_ids=new.first_ids) != ""
    assert problem_of(new, n_items=8, first_ids="0" * 12) != ""


def test_where_the_older_dataset_is_there_every_id_is_compared(
    log_folder: Path, grown_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint knows the ids of the first rows alone."""
    monkeypatch.setattr("bert4rec.dataset.reader.FIRST_IDS", 4)
    folder, first_ids = Path(shutil.copytree(grown_folder, tmp_path / "new")), opened(log_folder, items=8).first_ids
    rename(folder, lambda ids: pa.chunked_array([[{7: 99}.get(original, original) for original in ids.to_pylist()]]))
    assert problem_of(opened(folder), n_items=8, first_ids=first_ids) == ""
    problem = problem_of(opened(folder), n_items=8, first_ids=first_ids, previous=log_folder)
    item = opened(log_folder, items=8).originals(8).index(7)
    assert all(str(part) in problem for part in (item, 99, 7))


def test_another_seed_gives_other_numbers_and_is_no_extension(log_folder: Path, tmp_path: Path) -> None:
    other = opened(prepare_log(tmp_path, **{"preprocessing.seed": 5}), items=8)
    assert problem_of(other, n_items=8, first_ids=opened(log_folder, items=8).first_ids) != ""


def test_new_kinds_of_events_are_refused_with_what_to_do(event_folder: Path) -> None:
    metadata = read_metadata(event_folder)
    kinds = [*metadata["events"]]
    require_kinds(event_folder, metadata, kinds)
    grown = metadata | {"events": metadata["events"] | {"refund": 3}}
    for has, named in ((grown, "refund"), ({"events": {"": 0, "refund": 3}}, "--data.extends")):
        with one_line(f"{event_folder}: ", named):
            require_kinds(event_folder, has, kinds)
