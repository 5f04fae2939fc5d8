"""Every damage is refused in one line that names the file, the row and the column; damage at random too."""

import random
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert4rec.dataset import check as check_module
from tests.dataset.check.damages import (
    BY_TIME,
    FILES,
    FIRST,
    LEAVE_ONE_OUT,
    LONG,
    N_ITEMS,
    SEALED,
    WITHOUT_TEST,
    Damage,
    FileDamage,
    Sound,
    cases,
    damaged,
    damaged_files,
    flip,
    made,
)
from tests.dataset.check.folders import Event, Folder, Maker, accepted, check, load, refused, seal


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """A sound folder of each kind of split, to be copied."""
    place = tmp_path_factory.mktemp("sound")
    folders = {split: made(split).save(place / split) for split in ("leave_one_out", "time", "none")}
    for path in folders.values():
        assert check(path)[0] == 0
    return folders


@pytest.mark.parametrize(
    ("split", "damage", "place"), cases(leave_one_out=LEAVE_ONE_OUT, time=BY_TIME, none=WITHOUT_TEST)
)
def test_damaged_content_is_refused(sound: Sound, tmp_path: Path, split: str, damage: Damage, place: str) -> None:
    refused(damaged(sound[split], damage, tmp_path / "dataset"), place)


@pytest.mark.parametrize(
    ("damage", "place", "sealed"),
    [
        pytest.param(*case, sealed, id=f"{name}, sealed" if sealed else name)
        for table, sealed in ((FILES, False), (SEALED, True))
        for name, case in table.items()
    ],
)
def test_damaged_files_are_refused(sound: Sound, tmp_path: Path, damage: FileDamage, place: str, sealed: bool) -> None:
    refused(damaged_files(sound["leave_one_out"], damage, tmp_path / "dataset", sealed=sealed), place)


def test_more_keys_in_the_metadata_do_not_matter(small_folder: Path, tmp_path: Path) -> None:
    folder = load(small_folder)
    folder.metadata["new"] = {"key": 1}
    accepted(folder.save(tmp_path / "dataset"))


def test_the_first_pass_of_an_original_may_be_a_later_one(
    sound: Sound, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_module, "KEYS_AT_ONCE", 8)
    monkeypatch.setattr(check_module, "ROWS_AT_ONCE", 3)
    folder = load(sound["leave_one_out"])
    folder.tables["users"][20]["original"] = "u11"
    refused(folder.save(tmp_path / "dataset"), "users.parquet: row 20: original")


@pytest.mark.parametrize("extends", [False, True])
@pytest.mark.parametrize("originals", [["", "a", "aa", "ä"], [-1, -2, 1, 2**62], [0.5, 1.5, -1.0, 2.0]])
def test_originals_may_be_of_any_type(tmp_path: Path, originals: list[Any], extends: bool) -> None:
    """Two ids may have the same hash, as -1 and -2 do in Python."""
    folder = Maker([[Event(2 + user, 0, 1.0)] for user in range(4)], n_items=4, extends=extends).make()
    for name in ("users", "items"):
        for row, original in zip(folder.tables[name], originals, strict=True):
            row["original"] = original
    accepted(folder.save(tmp_path / "dataset"))


def test_times_do_not_decrease_between_windows_that_do_not_overlap(tmp_path: Path) -> None:
    folder = made("none", step=6)
    assert check(folder.save(tmp_path / "sound"))[0] == 0
    window = folder.rows("train", LONG)[1]
    window["times"] = [0] * len(window["times"])
    refused(folder.save(tmp_path / "dataset"), "(user 2): times[0]")


def test_what_a_user_did_after_the_test_may_be_why_there_are_no_negatives(tmp_path: Path) -> None:
    """By time nothing of it is in the splits, but its number in `users.parquet`."""
    histories = [[Event(2 + place, place, 1.0) for place in range(length)] for length in (8, 3)]
    maker = Maker(histories, split="time", n_negatives=3, n_items=8)
    maker.instant = 2
    folder = maker.make()
    first, second = folder.splits["test"]
    assert (first["items"], first["target"], first["popular_negatives"]) == ([2, 3], 4, [])
    assert (second["items"], second["target"], len(second["popular_negatives"])) == ([2, 3], 4, 3)
    accepted(folder.save(tmp_path / "dataset"))


def test_fewer_ranks_than_tests_are_refused(sound: Sound, tmp_path: Path) -> None:
    folder = load(sound["leave_one_out"])
    folder.tables["oracle"] = [{"user": row["user"]} for row in folder.splits["test"]][:5]
    folder.metadata["test_users"] = 5
    refused(folder.save(tmp_path / "dataset"), "test: row 5 ")


# Damage at random. What another folder could rightly hold is left out: other ratings, other times in the same order,
# other unseen negatives, and by time another target, as the counts do not tell what stands behind it.


def other(data: st.DataObject, values: Iterable[int], value: int) -> int:
    return data.draw(st.sampled_from([new for new in values if new != value]))


def one_element(data: st.DataObject, folder: Folder, split: str) -> None:
    """Another value for one element of one row."""
    row = data.draw(st.sampled_from(folder.splits[split]))
    names = ["items", *(name for name in row if name.endswith("negatives"))]
    names += ["times"] if len(row["items"]) > 1 else []
    names += ["target"] if "target" in row and folder.metadata["preprocessing"]["split"] == "leave_one_out" else []
    name = data.draw(st.sampled_from(names))
    if name == "target":
        row["target"] = other(data, range(2, 2 + N_ITEMS), row["target"])
        return
    place = data.draw(st.integers(0, len(row[name]) - 1))
    choice: Iterable[int] = range(2, 2 + N_ITEMS)
    if name == "times":
        choice = [min(row[name]) - 1 if place else max(row[name]) + 1]
    elif name != "items":
        choice = [0, 2 + N_ITEMS, row["target"], *row["items"], *row[name]]
    row[name][place] = other(data, choice, row[name][place])


def one_row(data: st.DataObject, folder: Folder, split: str) -> None:
    """A row is gone, or stands in another place, or twice; the counts of rows say so too."""
    rows = folder.splits[split]
    place = data.draw(st.integers(0, len(rows) - 1))
    kind = data.draw(st.sampled_from(["gone", "moved", "twice"]))
    row = rows[place] if kind == "twice" else rows.pop(place)
    if kind != "gone":
        rows.insert(other(data, range(len(rows) + 1), -1 if kind == "twice" else place), row)
    counts = {"train": "train_windows", "validation": "validation_users", "test": "test_users"}
    folder.metadata[counts[split]] = len(rows)


@given(st.sampled_from(["leave_one_out", "time", "none"]), st.sampled_from([one_element, one_row]), st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_at_random_is_refused(sound: Sound, kind: str, damage: Callable[..., None], data: st.DataObject) -> None:
    folder = load(sound[kind])
    damage(data, folder, data.draw(st.sampled_from([name for name, rows in folder.splits.items() if rows])))
    with tempfile.TemporaryDirectory() as place:
        refused(folder.save(Path(place) / "dataset"))


@pytest.mark.parametrize("name", [FIRST, "test/data-00001-of-00002.arrow", "users.parquet", "items.parquet"])
def test_no_byte_makes_it_stumble(sound: Sound, tmp_path: Path, name: str) -> None:
    """A byte changed in a file that is sealed then: refused in a line, or accepted where the byte means nothing."""
    rng = random.Random(name)
    for _ in range(40):
        path = Path(shutil.copytree(sound["leave_one_out"], tmp_path / "dataset", dirs_exist_ok=True))
        flip(path / name, rng.randrange(1 << 20), 1 << rng.randrange(8))
        seal(path)
        status, _, err = check(path)
        assert (status, err) == (0, "") or (status == 2 and err.startswith("error: ") and err.count("\n") == 1)
