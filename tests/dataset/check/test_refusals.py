"""Every kind of damage is refused in one line that says where and what, with all checksums made anew."""

import json
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert4rec.__main__ import main
from bert4rec.dataset.check import progress, tables
from tests.dataset.check.damages import BY_TIME, LEAVE_ONE_OUT, LONG, N_ITEMS, WITHOUT_TEST, made
from tests.dataset.check.folders import Folder, check, load, seal

SPLITS = ("leave_one_out", "time", "none")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sound folder of each kind of split."""
    folders = {split: made(split).save(tmp_path_factory.mktemp("check") / split) for split in SPLITS}
    for path in folders.values():
        assert check(path)[0] == 0
    return folders


def refused(path: Path, words: str = "") -> None:
    """The folder at `path` is refused in one line with `words`, a regular expression."""
    status, out, err = check(path)
    assert (status, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+; (make|move|name) [^\n]+\n", err), err
    assert re.search(words, err), err


@pytest.mark.parametrize(
    ("split", "name"),
    [
        (split, name)
        for split, damages in zip(SPLITS, (LEAVE_ONE_OUT, BY_TIME, WITHOUT_TEST), strict=True)
        for name in damages
    ],
)
def test_damaged_content_is_refused(sound: dict[str, Path], tmp_path: Path, split: str, name: str) -> None:
    damage, words = dict(zip(SPLITS, (LEAVE_ONE_OUT, BY_TIME, WITHOUT_TEST), strict=True))[split][name]
    folder = load(sound[split])
    damage(folder)
    refused(folder.save(tmp_path / "dataset"), words)


def flip(path: Path, place: int, bits: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= bits
    path.write_bytes(content)


def edit(path: Path, change: Callable[[dict], object]) -> None:
    metadata = json.loads((path / "metadata.json").read_text())
    change(metadata)
    (path / "metadata.json").write_text(json.dumps(metadata))


FIRST = "train/data-00000-of-00002.arrow"
FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, r"dataset: no dataset folder \(no metadata\.json\)"),
    "a file": (lambda p: (shutil.rmtree(p), p.write_text("x")), r"dataset: no dataset folder"),
    "no JSON": (lambda p: (p / "metadata.json").write_text("{"), r"metadata\.json: cannot be read"),
    "no table": (lambda p: (p / "metadata.json").write_text("[]"), r"metadata\.json: does not describe a dataset"),
    "fingerprint": (
        lambda p: edit(p, lambda m: m.update(fingerprint="0")),
        r"json: the fingerprint is not that of the",
    ),
    "checksum in the metadata": (
        lambda p: edit(p, lambda m: m["files"]["users.parquet"].update(sha256="0")),
        r"json: the fingerprint is not that",
    ),
    "entry without a checksum": (
        lambda p: edit(p, lambda m: m["files"]["users.parquet"].pop("sha256")),
        r"users\.parquet has no size and checksum",
    ),
    "a byte of a split": (lambda p: flip(p / FIRST, 900), r"train/data-0\S+: its checksum is not that of metadata"),
    "a byte of a table": (lambda p: flip(p / "items.parquet", 99), r"items\.parquet: its checksum is not that of"),
    "a byte of the card": (lambda p: flip(p / "README.md", 3), r"README\.md: its checksum is not that of"),
    "a byte more": (
        lambda p: (p / "README.md").write_text("Another text"),
        r"README\.md: has 12 bytes, metadata\.json says",
    ),
    "truncated": (lambda p: truncate(p / FIRST), r"train/data-0\S+: has \d+ bytes, metadata\.json says \d+"),
    "table missing": (lambda p: (p / "items.parquet").unlink(), r"items\.parquet: is missing"),
    "split missing": (lambda p: shutil.rmtree(p / "test"), r"test/data-00000-of-00002\.arrow: is missing"),
    "another file": (
        lambda p: (p / "test" / "cache.arrow").write_text("x"),
        r"test/cache\.arrow: is not listed in meta",
    ),
    "another folder": (
        lambda p: ((p / "old").mkdir(), (p / "old" / ".x").write_text("x")),
        r"old/\.x: is not listed in metadata\.json; move",
    ),
}

SEALED: dict[str, tuple[Callable[[Path], object], str]] = {
    "table missing": (lambda p: (p / "items.parquet").unlink(), r"items\.parquet: is missing"),
    "list of files missing": (lambda p: (p / "test" / "state.json").unlink(), r"test/state\.json: is missing"),
    "list of files broken": (
        lambda p: (p / "test" / "state.json").write_text("{}"),
        r"state\.json: does not list the f",
    ),
    "shard missing": (lambda p: (p / FIRST).unlink(), r"train/state\.json: lists the files .*, the folder holds"),
    "shard not listed": (
        lambda p: shutil.copy(p / FIRST, p / "train" / "data-2.arrow"),
        r"train/state\.json: lists the files .*, the folder holds .*'data-2\.arrow'",
    ),
    "shards swapped": (lambda p: swapped(p / "test"), r"test: row \d+ \(user \d+\): stands behind user \d+"),
    "truncated": (lambda p: truncate(p / FIRST), r"train/data-00000-of-00002\.arrow: cannot be read"),
    "no Arrow": (lambda p: (p / FIRST).write_text("x" * 99), r"train/data-00000-of-00002\.arrow: cannot be read"),
    "no Parquet": (lambda p: (p / "users.parquet").write_text("x"), r"users\.parquet: cannot be read"),
}


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def swapped(split: Path) -> None:
    """The shards in another order."""
    names = json.loads((split / "state.json").read_text())["_data_files"]
    (split / "state.json").write_text(json.dumps({"_data_files": names[::-1]}))


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_refused(sound: dict[str, Path], tmp_path: Path, name: str) -> None:
    damage, words = FILES[name]
    path = Path(shutil.copytree(sound["leave_one_out"], tmp_path / "dataset"))
    damage(path)
    refused(path, words)


@pytest.mark.parametrize("name", SEALED)
def test_files_that_were_sealed_damaged_are_refused(sound: dict[str, Path], tmp_path: Path, name: str) -> None:
    damage, words = SEALED[name]
    path = Path(shutil.copytree(sound["leave_one_out"], tmp_path / "dataset"))
    damage(path)
    seal(path)
    refused(path, words)


def test_the_first_pass_of_an_original_may_be_a_later_one(
    sound: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "KEYS_AT_ONCE", 8)
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 3)
    folder = load(sound["leave_one_out"])
    folder.tables["users"][20]["original"] = "u11"
    refused(folder.save(tmp_path / "dataset"), r"users\.parquet: row 20: original 'u11' is that of row 11 too")


def test_originals_of_one_key_are_told_apart(
    sound: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "BASE", 1)  # u12 and u21 have the same key
    assert check(sound["leave_one_out"])[0] == 0
    folder = load(sound["leave_one_out"])
    folder.tables["users"][21]["original"] = "u12"
    refused(folder.save(tmp_path / "dataset"), r"users\.parquet: row 21: original 'u12' is that of row 12 too")


# Damage at random. What another folder could rightly hold is left out: other ratings, other times in the same order,
# other unseen negatives, and by time another target, as the counts do not tell what stands behind it.


def another(data: st.DataObject, values: Iterable[int], value: int) -> int:
    return data.draw(st.sampled_from([new for new in values if new != value]))


def one_element(data: st.DataObject, folder: Folder, split: str) -> None:
    """Another value for one element of one row."""
    row = data.draw(st.sampled_from(folder.splits[split]))
    names = ["items", *(name for name in row if name.endswith("negatives"))]
    names += ["times"] if len(row["items"]) > 1 else []
    names += ["target"] if "target" in row and folder.metadata["preprocessing"]["split"] == "leave_one_out" else []
    name = data.draw(st.sampled_from(names))
    if name == "target":
        row["target"] = another(data, range(2, 2 + N_ITEMS), row["target"])
        return
    place = data.draw(st.integers(0, len(row[name]) - 1))
    choice: Iterable[int] = range(2, 2 + N_ITEMS)
    if name == "times":
        choice = [min(row[name]) - 1 if place else max(row[name]) + 1]
    elif name != "items":
        choice = [0, 2 + N_ITEMS, row["target"], *row["items"], *row[name]]
    row[name][place] = another(data, choice, row[name][place])


def one_row(data: st.DataObject, folder: Folder, split: str) -> None:
    """A row is gone, or stands in another place, or twice; the counts of rows say so too."""
    rows = folder.splits[split]
    place = data.draw(st.integers(0, len(rows) - 1))
    kind = data.draw(st.sampled_from(["gone", "moved", "twice"]))
    row = rows[place] if kind == "twice" else rows.pop(place)
    if kind != "gone":
        rows.insert(another(data, range(len(rows) + 1), -1 if kind == "twice" else place), row)
    counts = {"train": "train_windows", "validation": "validation_users", "test": "test_users"}
    folder.metadata[counts[split]] = len(rows)


@given(st.sampled_from(SPLITS), st.sampled_from([one_element, one_row]), st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_at_random_is_refused(
    sound: dict[str, Path], kind: str, damage: Callable[..., None], data: st.DataObject
) -> None:
    folder = load(sound[kind])
    damage(data, folder, data.draw(st.sampled_from([name for name, rows in folder.splits.items() if rows])))
    with tempfile.TemporaryDirectory() as place:
        refused(folder.save(Path(place) / "dataset"))


@pytest.mark.parametrize("name", [FIRST, "test/data-00001-of-00002.arrow", "users.parquet", "items.parquet"])
def test_no_byte_makes_it_stumble(sound: dict[str, Path], tmp_path: Path, name: str) -> None:
    """A byte changed in a file that is sealed then: refused in a line, or accepted where the byte means nothing."""
    rng = random.Random(name)
    for _ in range(40):
        path = Path(shutil.copytree(sound["leave_one_out"], tmp_path / "dataset", dirs_exist_ok=True))
        flip(path / name, rng.randrange(1 << 20), 1 << rng.randrange(8))
        seal(path)
        status, _, err = check(path)
        assert (status, err) == (0, "") or (status == 2 and err.startswith("error: ") and err.count("\n") == 1)


def test_times_do_not_decrease_between_windows_that_do_not_overlap(tmp_path: Path) -> None:
    folder = made("none", step=6)
    assert check(folder.save(tmp_path / "sound"))[0] == 0
    window = folder.rows("train", LONG)[1]
    window["times"] = [0] * len(window["times"])
    refused(
        folder.save(tmp_path / "dataset"), r"train: .* \(user 2\): times\[0\] is 0, earlier than the end of the window"
    )


def test_fewer_ranks_than_tests_are_refused(sound: dict[str, Path], tmp_path: Path) -> None:
    folder = load(sound["leave_one_out"])
    folder.tables["oracle"] = [{"user": row["user"]} for row in folder.splits["test"]][:5]
    folder.metadata["test_users"] = 5
    refused(folder.save(tmp_path / "dataset"), r"test: row 5 \(user \d+\): oracle\.parquet has no row of this user")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_long_check_says_how_far_it_is(
    sound: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(progress, "SECONDS_ON_A_TERMINAL", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert main(["check", str(sound["time"])]) == 0
    said = capsys.readouterr().err
    assert re.search(r"read [\d,]+ of [\d,]+ bytes for the checksums \(\d+%, 0 s\)", said)
    assert "checked 24 of 24 users (100%, 0 s)" in said
    assert said.endswith("\r\033[K" if terminal else "\n")
