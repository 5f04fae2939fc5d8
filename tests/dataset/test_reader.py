"""Opening a dataset folder: what is read, and the one line for a folder that must not be trained on."""

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert4rec.config.tables import Config
from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.runtime.errors import DataError
from tests.checks import one_line
from tests.folders import rewrite


@pytest.fixture
def folder(small_folder: Path, tmp_path: Path) -> Path:
    """A copy of the small dataset, to be damaged."""
    return Path(shutil.copytree(small_folder, tmp_path / "dataset"))


@pytest.fixture
def reopen(folder: Path, small_config: Callable[..., Config]) -> Callable[..., Dataset]:
    """Open with the settings that the folder was made with, but for some."""
    made_with = small_config()

    def open_again(*, with_times: bool = False, **changes: Any) -> Dataset:
        settings = made_with.preprocessing.recipe | changes
        return open_dataset(folder, preprocessing=settings, with_times=with_times)

    return open_again


def edit_metadata(folder: Path, **changes: Any) -> None:
    path = folder / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_rows_are_those_of_the_folder(folder: Path, reopen: Callable[..., Dataset]) -> None:
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


def test_a_dataset_without_times_is_refused_where_they_are_asked_for(
    folder: Path, reopen: Callable[..., Dataset]
) -> None:
    edit_metadata(folder, has_times=False, source="table")  # a folder may come from elsewhere
    with pytest.raises(DataError, match=r"model\.times"):
        reopen(with_times=True)
    rewrite(folder, "histories", lambda rows: rows.remove_columns("times"))
    dataset, items = reopen(), pq.read_table(folder / "items.parquet")
    assert dataset.splits["test"].last_times is None
    assert dataset.popularity.tolist() == items["train_count"].to_pylist()


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_rows_come_from_mapped_memory(small_dataset: Dataset) -> None:
    small_dataset.splits["test"].read(np.array([0]))
    assert str(small_dataset.folder / "histories" / "part-0000000000.arrow") in Path("/proc/self/maps").read_text()


def test_some_items_are_read_from_the_parts_of_the_table_that_have_them(
    folder: Path, reopen: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, path, groups = reopen(), folder / "items.parquet", []
    whole = pq.read_table(path)
    pq.write_table(whole, path, row_group_size=10)
    read_row_group = pq.ParquetFile.read_row_group

    def read(self: pq.ParquetFile, group: int, **settings: Any) -> pa.Table:
        groups.append(group)
        return read_row_group(self, group, **settings)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read)
    items = np.array([0, 9, 30, 35])
    assert dataset.item_rows(items, ["original", "no such column"]).equals(whole.select(["original"]).take(items))
    assert groups == [0, 3]
    assert len(dataset.item_rows(items[:0], ["original"])) == 0


def test_opening_reads_no_rows(folder: Path, reopen: Callable[..., Dataset]) -> None:
    dataset = reopen()
    shutil.rmtree(folder / "histories")
    with pytest.raises(DataError, match=r"histories/state\.json"):
        len(dataset.splits["test"])


def test_oracle_ranks_stand_in_the_order_of_the_test_split(small_dataset: Dataset) -> None:
    ranks = small_dataset.oracle_ranks()
    assert set(ranks) == {"full", "popular", "uniform"}
    users = pq.read_table(small_dataset.folder / "oracle.parquet")["user"].to_pylist()
    assert users == small_dataset.splits["test"].users.tolist()
    assert all((ranks["popular"] <= ranks["full"]) & (ranks["full"] >= 1))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda f: shutil.rmtree(f), "dataset: "), (lambda f: (f / "metadata.json").write_text("{"), "metadata.json"),
        (lambda f: (f / "metadata.json").write_text("[]"), "metadata.json"),
        (lambda f: edit_metadata(f, format_version=2), "format_version 2"),
        (lambda f: (f / "items.parquet").unlink(), "items.parquet"),
        (lambda f: (f / "README.md").write_text("x"), "README.md"),
        (lambda f: flip_byte(f / "histories" / "part-0000000000.arrow"), "histories/part-0"),
        (lambda f: flip_byte(f / "items.parquet"), "items.parquet"), (lambda f: forget_samples(f), ""),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_one_line(
    folder: Path, reopen: Callable[..., Dataset], damage: Callable[[Path], None], named: str
) -> None:
    damage(folder)
    with one_line("", named):
        reopen()


def test_a_folder_of_other_settings_is_refused(reopen: Callable[..., Dataset]) -> None:
    with pytest.raises(DataError, match=r"preprocessing\.seed = 1.* 2"):
        reopen(seed=2)


def change_row(folder: Path, name: str, number: int, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    rewrite(
        folder,
        name,
        lambda rows: rows.map(lambda row, at: row | (change(row) if at == number else {}), with_indices=True),
    )


def forget_samples(folder: Path) -> None:
    files = json.loads((folder / "metadata.json").read_text())["files"]
    edit_metadata(folder, files={name: {key: file[key] for key in ("bytes", "sha256")} for name, file in files.items()})


def test_other_processes_of_the_host_look_at_sizes_only(folder: Path, small_config: Callable[..., Config]) -> None:
    settings, file = small_config(), folder / "histories" / "part-0000000000.arrow"
    flip_byte(file)
    how: dict[str, Any] = {"preprocessing": settings.preprocessing.recipe, "verify": False}
    open_dataset(folder, **how)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"part-0.*arrow"):
        open_dataset(folder, **how)


def test_an_id_outside_the_table_is_found_where_it_is_read(folder: Path, reopen: Callable[..., Dataset]) -> None:
    lists = datasets.load_from_disk(str(folder / "histories"))["items"]
    bad = next(row for row, items in enumerate(lists) if row > 3 and max(items) > 99)
    good = [row for row in range(len(lists)) if max(lists[row]) <= 99][:3]
    edit_metadata(folder, items=100)
    histories = reopen().histories
    item = next(item for item in lists[bad] if item > 99)
    refused = one_line(f"{folder / 'histories'}: column items has the id {item}, ")
    for chosen, context in ((good, nullcontext()), ([*good, bad], refused)):
        rows = np.array(chosen)
        with context:
            histories.read(rows, np.zeros_like(rows), histories.lengths[rows])


@pytest.mark.parametrize("name", ["target", "popular_negatives", "uniform_negatives"])
@pytest.mark.parametrize("id_", [-1, 10_000])
def test_targets_and_negatives_are_looked_at_too(
    folder: Path, reopen: Callable[..., Dataset], name: str, id_: int
) -> None:
    column = "items" if name == "target" else name

    # the last item is the target
    where = "histories" if name == "target" else "negatives"
    change_row(folder, where, 7, lambda row: {column: [*row[column][:-1], id_]})
    split = reopen().splits["test"]
    split.read(np.array([6, 8]))
    with pytest.raises(DataError, match=rf" has the id {id_}, "):
        split.read(np.array([6, 7, 8]))


@pytest.mark.parametrize(("column", "value"), [("n_train", -1), ("n_train", 999), ("test", 0), ("test", 999)])
def test_offsets_outside_a_history_are_refused(
    folder: Path, reopen: Callable[..., Dataset], column: str, value: int
) -> None:
    change_row(folder, "histories", 5, lambda row: {column: value})
    dataset = reopen()
    reads = {"n_train": lambda: len(dataset.windows(max_len=12, step=12)), "test": lambda: len(dataset.splits["test"])}
    with pytest.raises(DataError, match=rf"histories: column {column} .* row 5"):
        reads[column]()


def test_sampled_negatives_are_equally_many(folder: Path, reopen: Callable[..., Dataset]) -> None:
    change_row(folder, "negatives", 3, lambda row: {"uniform_negatives": row["uniform_negatives"][:9]})
    with pytest.raises(DataError, match="negatives: column uniform_negatives"):
        reopen().splits["test"].read(np.arange(5))


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


def test_the_oracle_has_no_rank_for_who_is_left_out(folder: Path, reopen: Callable[..., Dataset]) -> None:
    table = pq.read_table(folder / "oracle.parquet").to_pydict()
    full = table["full"]
    for name in ("popular", "uniform"):
        table[name][3] = None
    pq.write_table(pa.table(table), folder / "oracle.parquet")
    edit_metadata(folder, files={})
    ranks = reopen().oracle_ranks()
    assert ranks["full"].tolist() == full
    assert ranks["popular"].tolist() == [-1 if rank is None else rank for rank in table["popular"]]
    assert ranks["uniform"].dtype.kind == "i"
