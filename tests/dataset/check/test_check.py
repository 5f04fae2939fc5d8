"""The check accepts what `prepare` writes, and refuses each damage in one line that names the file and the row."""

import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import preprocessing
from bert4rec.dataset import check_ids
from tests.dataset.check import damages
from tests.dataset.check.damages import BOTH, FILES, FIRST, N_ITEMS, PART, SEALED, flip
from tests.dataset.check.folders import Folder, accepted, check, load, prepared, refused, seal
from tests.preparation import small_tasks

Sound = dict[str, Path]  # a sound folder of each kind of split, to be copied


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    place = tmp_path_factory.mktemp("sound")
    folders = {}
    for split in TABLES:
        (place / split).mkdir()
        folders[split] = damages.sound(place / split, split).save(place / split / "sound")
        accepted(folders[split])
    return folders


TABLES = {"leave_one_out": damages.LEAVE_ONE_OUT, "time": damages.BY_TIME, "none": damages.WITHOUT_TEST}


@pytest.mark.parametrize(("split", "name"), [(split, name) for split, table in TABLES.items() for name in table])
def test_damaged_content_is_refused(sound: Sound, tmp_path: Path, split: str, name: str) -> None:
    damage, place = TABLES[split][name]
    folder = load(sound[split])
    damage(folder)
    refused(folder.save(tmp_path / "dataset"), place)


@pytest.mark.parametrize("name", [*FILES, *SEALED])
def test_damaged_files_are_refused(sound: Sound, tmp_path: Path, name: str) -> None:
    damage, place = (FILES | SEALED)[name]
    path = Path(shutil.copytree(sound["leave_one_out"], tmp_path / "dataset"))
    damage(path)
    if name in SEALED:
        seal(path)
    refused(path, place)


# Damage at random. What another folder could rightly hold is left out: other ratings, other times in the same order,
# other unseen negatives.


def other(data: st.DataObject, values: Iterable[int], value: int) -> int:
    return data.draw(st.sampled_from([new for new in values if new != value]))


def one_value(data: st.DataObject, folder: Folder, name: str) -> None:
    """Another value for one number of one row, or one element of a list."""
    row = data.draw(st.sampled_from(folder.rows(name)))
    lists = ["items", "times"] if len(row.get("items", ())) > 1 else ["items"]
    column = data.draw(st.sampled_from(BOTH if name == "negatives" else [*lists, "n_train", "validation", "test"]))
    if column in ("n_train", "validation", "test"):
        row[column] = other(data, range(-2, len(row["items"]) + 2), row[column])
        return
    place = data.draw(st.integers(0, len(row[column]) - 1))
    choice: Iterable[int] = range(N_ITEMS)
    if column == "times":
        choice = [min(row[column]) - 1 if place else max(row[column]) + 1]
    elif column in BOTH:
        choice = [-1, N_ITEMS, *folder.row("histories", row["user"])["items"], *row[column]]
    row[column][place] = other(data, choice, row[column][place])


def one_row(data: st.DataObject, folder: Folder, name: str) -> None:
    """A row is missing, moved or repeated."""
    rows = folder.rows(name)
    place = data.draw(st.integers(0, len(rows) - 1))
    kind = data.draw(st.sampled_from(["gone", "moved", "twice"]))
    row = rows[place] if kind == "twice" else rows.pop(place)
    if kind != "gone":
        rows.insert(other(data, range(len(rows) + 1), -1 if kind == "twice" else place), row)


@given(st.sampled_from(["leave_one_out", "time", "none"]), st.sampled_from([one_value, one_row]), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_at_random_is_refused(sound: Sound, kind: str, damage: Callable[..., None], data: st.DataObject) -> None:
    folder = load(sound[kind])
    damage(data, folder, data.draw(st.sampled_from([name for name in ("histories", "negatives") if folder.rows(name)])))
    with tempfile.TemporaryDirectory() as place:
        refused(folder.save(Path(place) / "dataset"))


@pytest.mark.parametrize("name", [FIRST, PART, "train_counts.npy"])
def test_no_byte_makes_it_stumble(sound: Sound, tmp_path: Path, name: str) -> None:
    """A byte changed in a file that is sealed then: refused in a line, or accepted where the byte means nothing."""
    rng = random.Random(name)
    for _ in range(15):
        path = Path(shutil.copytree(sound["leave_one_out"], tmp_path / "dataset", dirs_exist_ok=True))
        flip(path / name, rng.randrange(1 << 20), 1 << rng.randrange(8))
        seal(path)
        status, _, err = check(path)
        assert (status, err) == (0, "") or (status == 2 and err.startswith("error: ") and err.count("\n") == 1)


TIMES = st.integers(0, 30)  # few: many ties
ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 14), TIMES, st.integers(1, 5)), min_size=8, max_size=90)


@given(
    ROWS,
    st.sampled_from([["at", "stars"], ["at"], ["stars"], []]),
    st.fixed_dictionaries(
        {
            "validation_users": st.one_of(st.integers(1, 14), st.just("all")),
            "test_users": st.one_of(st.integers(1, 14), st.just("all")),
            "n_eval_negatives": st.integers(1, 16),
            "min_user_interactions": st.integers(1, 3),
            "min_item_interactions": st.integers(1, 2),
            "max_user_interactions": st.sampled_from([0, 5]),
            "repeats": st.sampled_from(["keep", "first", "last", "first_in_a_row"]),
            "split": st.sampled_from(["leave_one_out", "leave_last_basket", "time", "none"]),
            "ties": st.sampled_from(["file", "shuffle"]),
            "split_at": st.sampled_from([0.1, 0.5, "1970-01-01T00:00:03"]),
            "seed": st.integers(0, 99),
        }
    ),
    st.booleans(),
)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_what_the_script_writes_is_accepted(
    rows: list[tuple[int, int, int, int]], columns: list[str], chosen: dict[str, Any], is_small: bool
) -> None:
    with tempfile.TemporaryDirectory() as place, small_tasks() if is_small else nullcontext():
        wanted = [0, 1, *({"at": 2, "stars": 3}[name] for name in columns)]
        folder = prepared(Path(place), [[row[at] for at in wanted] for row in rows], columns, **chosen)
        if folder is None:
            reject()
        accepted(folder)


def test_generated_data_is_accepted_also_with_items_that_nobody_took(small_folder: Path, tmp_path: Path) -> None:
    arguments = ["--data.source=random", "--data.n_users=20", "--data.n_items=100", "--data.n_rows=120"]
    with redirect_stdout(StringIO()):
        assert preprocessing.main(["--config=/dev/null", f"--data.dataset_dir={tmp_path / 'dataset'}", *arguments]) == 0
    assert 0 in {row["count"] for row in load(tmp_path / "dataset").tables["items"]}
    for folder in (small_folder, tmp_path / "dataset"):
        accepted(folder)


def with_originals(folder: Folder, originals: Sequence[Any]) -> Folder:
    """The folder with these original ids in the first rows of users and items."""
    for name in ("users", "items"):
        for row, original in zip(folder.tables[name], originals, strict=False):
            row["original"] = original
    return folder


def test_originals_are_text_or_whole_numbers_and_different_ones_may_have_the_same_hash(
    log_folder: Path, grown_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for originals in (["", "a", "aa", *"bcde", "ä"], [-2, -1, 1, 2, 3, 4, 5, 2**62], [5000 * c for c in "abcdefgh"]):
        accepted(with_originals(load(log_folder), originals).save(tmp_path / "dataset"))
    refused(with_originals(load(log_folder), [at / 2 for at in range(8)]).save(tmp_path / "dataset"), "double")
    monkeypatch.setattr(check_ids, "hash", len, raising=False)
    originals = ["a", "aa", "b", "bb", "c", "ccc", "d", "e", "A", "B"]
    accepted(with_originals(load(grown_folder), originals).save(tmp_path / "dataset"))
    originals[9] = "aa"
    refused(with_originals(load(grown_folder), originals).save(tmp_path / "dataset"), "items: row 9: original 'aa'")
