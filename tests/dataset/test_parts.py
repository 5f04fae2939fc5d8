"""A dataset in parts: where they begin, what a reader opens, and what it sees while another dataset takes the place."""

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import preprocessing
from bert4rec.dataset.format import part_starts
from bert4rec.dataset.histories import TrainingWindows
from bert4rec.dataset.reader import open_dataset
from bert4rec.prepare import writer
from bert4rec.prepare.folder import new_dataset
from bert4rec.runtime.errors import DataError
from tests.checks import one_line

N_USERS, MOST_ROWS = 40, 100


def prepared(log: Path, folder: Path, *settings: str) -> Path:
    """The dataset of a log, in parts of at most `MOST_ROWS` interactions."""
    few = ["--preprocessing.n_eval_negatives=5", "--preprocessing.validation_users=8", *settings]
    with patch.object(writer, "part_starts", partial(part_starts, most_rows=MOST_ROWS)):
        assert preprocessing.main(["--config=/dev/null", str(log), f"--data.dataset_dir={folder}", *few]) == 0
    return folder


def rows(seed: int) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    cells = [(user, item) for user in range(N_USERS) for item in draw.permutation(60)[: draw.integers(3, 12)]]
    users, items = zip(*cells, strict=True)
    return pl.DataFrame({"user": users, "item": items, "time": range(len(cells))})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The datasets of two logs of the same users."""
    place, made = tmp_path_factory.mktemp("parts"), []
    for seed in (1, 2):
        rows(seed).write_csv(place / f"{seed}.csv")
        made.append(prepared(place / f"{seed}.csv", place / f"dataset-{seed}"))
    return made


def parts_of(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "histories").glob("*.arrow"))


def mapped(folder: Path) -> set[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {Path(line.split()[-1]).name for line in lines if str(folder / "histories") in line}


Lengths = st.lists(st.integers(0, 9), min_size=1, max_size=40)


@given(Lengths, Lengths, st.data())
def test_more_rows_and_more_users_move_no_boundary_elsewhere(
    lengths: list[int], of_new: list[int], data: st.DataObject
) -> None:
    starts = part_starts(np.array(lengths), most_rows=12)
    ends = [*starts[1:], len(lengths)]
    assert starts[0] == 0
    for first, end in zip(starts, ends, strict=True):
        assert first + 1 == end or (first < end and sum(lengths[first:end]) <= 12)
    user = data.draw(st.integers(0, len(lengths) - 1))
    more = [length + 20 * (number == user) for number, length in enumerate(lengths)]
    (own,) = [(first, end) for first, end in zip(starts, ends, strict=True) if first <= user < end]
    kept = [start for start in starts if not own[0] < start < own[1]]
    assert [start for start in part_starts(np.array(more), most_rows=12) if not own[0] < start < own[1]] == kept
    grown = part_starts(np.array(lengths + of_new), most_rows=12)
    assert [start for start in grown if start <= starts[-1]] == starts


def test_only_the_part_of_the_users_who_are_asked_for_is_opened(folders: list[Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders[0], tmp_path / "dataset"))
    histories, names = open_dataset(folder).histories, parts_of(folder)
    assert len(names) > 3
    expected = rows(1).filter(pl.col("user") == 17).height
    found, are_there = histories.user_rows(np.array([17]))
    assert (found.tolist(), are_there.tolist(), histories.lengths_at(found).tolist()) == ([17], [True], [expected])
    assert len(histories.read(found, np.array([0]), np.array([expected])).items) == expected
    assert len(mapped(folder)) == 1
    assert len(TrainingWindows(histories, max_len=5, step=5))
    assert mapped(folder) == {*names}
    asked = np.array([39, 0, 99, 17, -1])
    found, are_there = histories.user_rows(asked)
    assert are_there.tolist() == [True, True, False, True, False]
    assert found[are_there].tolist() == [39, 0, 17]


def test_rows_of_some_users_change_their_parts_alone(folders: list[Path], tmp_path: Path) -> None:
    active = [11, 12]
    more = [(user, item, 10**6 + item) for user in active for item in range(3)]
    pl.concat([rows(1), pl.DataFrame(more, schema=["user", "item", "time"], orient="row")]).write_csv(
        tmp_path / "log.csv"
    )
    old, new = folders[0], prepared(tmp_path / "log.csv", tmp_path / "new", f"--data.extends={folders[0]}")
    starts = [int(name[5:15]) for name in parts_of(old)]
    changed = {int(np.searchsorted(starts, user, side="right")) - 1 for user in active}
    for number, name in enumerate(parts_of(old)):
        path = new / "histories" / name
        is_same = path.exists() and path.read_bytes() == (old / "histories" / name).read_bytes()
        assert is_same == (number not in changed)


def test_rows_of_two_datasets_are_never_mixed(folders: list[Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders[0], tmp_path / "dataset"))
    dataset, first = open_dataset(folder), np.array([0])
    whole = dataset.histories.read(first, first, first + 3).items.tolist()
    reads = {
        "a part": lambda: dataset.histories.lengths_at(np.array([N_USERS - 1])),
        "the other folder": lambda: dataset.splits["test"].read(first),
        "the items": lambda: dataset.originals(3), "some items": lambda: dataset.item_rows(first, ["original"]),
        "their counts": lambda: dataset.popularity,
    }  # fmt: skip
    replace(folder, folders[1])
    for read in reads.values():
        with one_line(f"{folder}: no longer holds"):
            read()
    assert dataset.histories.read(first, first, first + 3).items.tolist() == whole
    replace(folder, folders[0])
    for read in reads.values():
        read()


def replace(folder: Path, by: Path) -> None:
    with new_dataset(folder) as new:
        shutil.copytree(by, new, dirs_exist_ok=True)


SWITCHING = """
import shutil, sys
from pathlib import Path
from bert4rec.prepare.folder import new_dataset

folder, *versions = map(Path, sys.argv[1:])
for number in range(12):
    with new_dataset(folder) as new:
        shutil.copytree(versions[number % 2], new, dirs_exist_ok=True)
"""


def test_a_reader_always_finds_one_whole_dataset_while_another_process_replaces_it(
    folders: list[Path], tmp_path: Path
) -> None:
    folder, expected, n_opened, n_replaced = tmp_path / "dataset", {}, 0, 0
    for path in folders:
        dataset = open_dataset(path)
        expected[dataset.metadata["fingerprint"]] = (dataset.originals(60), dataset.histories.n_train.tolist())
    replace(folder, folders[1])
    arguments = [sys.executable, "-c", SWITCHING, str(folder), *map(str, folders)]
    with subprocess.Popen(arguments, cwd=Path(preprocessing.__file__).parent) as process:
        while process.poll() is None:
            dataset = open_dataset(folder)
            n_opened += 1
            try:
                found = (dataset.originals(60), dataset.histories.n_train.tolist())
            except DataError as error:
                assert "no longer holds" in str(error)  # noqa: PT017
                n_replaced += 1
            else:
                assert found == expected[dataset.metadata["fingerprint"]]
    assert process.returncode == 0
    assert n_replaced < n_opened
