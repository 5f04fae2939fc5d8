"""The dataset folder: equal bytes for equal rows, what it replaces, and what failures and kills leave."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import polars as pl
import pytest

import preprocessing
from bert4rec.dataset.format import negative_columns
from bert4rec.prepare import engine, writer
from bert4rec.prepare import folder as dataset_folder
from bert4rec.prepare.folder import created_from, new_dataset, write_metadata
from bert4rec.prepare.writer import PartWriter, write_state
from bert4rec.runtime import files
from tests.checks import Capture, Patch, one_line
from tests.folders import contents
from tests.preparation import Prepare, metadata_of

ROOT = Path(preprocessing.__file__).parent


def write(folder: Path, *negatives: pl.DataFrame, starts: Sequence[int] = (0,)) -> int:
    with new_dataset(folder) as new:
        files, place = [], new / "negatives"
        for first, stop in pairwise([*starts, 2**31]):
            part = PartWriter(place, first, negative_columns())
            for rows in negatives:
                part.add(rows.filter(pl.col("user").is_between(first, stop - 1)))
            files.append(part.close())
        write_state(place, negative_columns(), files)
        return write_metadata(new, {})


def frame(n_rows: int) -> pl.DataFrame:
    lists = pl.int_ranges(2, 2 + pl.col("user") % 7, dtype=pl.Int32)
    users = pl.DataFrame(pl.int_range(n_rows, dtype=pl.Int32, eager=True).alias("user"))
    return users.with_columns(popular_negatives=lists, uniform_negatives=lists)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_part_depends_on_the_rows_of_its_users_alone_and_not_on_the_frames_in_which_they_come(
    tmp_path: Path,
) -> None:
    rows, starts = frame(50_000), [0, 17_000, 17_001, 40_000, 60_000]
    more = pl.concat([rows[:17_001], rows[17_001:17_002], rows[17_003:], frame(70_000)[60_000:]])
    write(tmp_path / "a", rows[:10], rows[10:10], rows[10:30_000], rows[30_000:], starts=starts)
    write(tmp_path / "b", more, starts=starts)
    assert more.n_chunks() == 4
    opened = datasets.load_from_disk(str(tmp_path / "a" / "negatives"))
    assert opened["user"][:] == [*range(50_000)]
    assert opened["uniform_negatives"][49_999] == rows["uniform_negatives"][49_999].to_list()
    files = [sorted((tmp_path / name / "negatives").glob("*.arrow")) for name in "ab"]
    assert [path.name for path in files[0]] == [f"part-{start:010}.arrow" for start in starts]
    assert [one.read_bytes() == other.read_bytes() for one, other in zip(*files, strict=True)] == [1, 1, 0, 1, 0]


def test_a_filter_that_drops_rows_leaves_the_oracle_out(prepare: Prepare, small: list[str]) -> None:
    assert (prepare(*small) / "oracle.parquet").exists()
    assert not (prepare(*small, "--preprocessing.min_user_interactions=12") / "oracle.parquet").exists()


def table(path: Path, n_users: int = 4) -> list[str]:
    """A table at `path`, and the arguments to prepare it."""
    rows = [f"u{user},i{(user + step) % 9},{step}" for user in range(n_users) for step in range(4)]
    path.parent.mkdir(exist_ok=True)
    path.write_text("user,item,at\n" + "\n".join(rows) + "\n")
    return ["--data.source=table", f"--data.path={path}", "--preprocessing.n_eval_negatives=2"]


def refusal(folder: Path, arguments: list[str], capsys: Capture) -> str:
    """The one line with which a preparation is refused, before anything is read; the folder stays as it was."""
    before = contents(folder)
    capsys.readouterr()
    assert preprocessing.main(["--config=/dev/null", f"--data.dataset_dir={folder}", *arguments]) == 2
    printed, error = capsys.readouterr()
    assert printed == ""
    assert contents(folder) == before
    assert not [name for name in names(folder.parent) if name.startswith(".dataset")]
    return error


def rows_of(folder: Path) -> int:
    return int(metadata_of(folder)["rows"])


def test_the_same_input_replaces_its_dataset_also_with_other_settings_or_more_rows(
    prepare: Prepare, tmp_path: Path, small: list[str]
) -> None:
    first = table(tmp_path / "log.csv")
    assert rows_of(prepare(*first)) == 16
    other_settings = ["--preprocessing.min_item_interactions=2", "--preprocessing.n_eval_negatives=1"]
    assert rows_of(prepare(*first, *other_settings)) == 14
    assert rows_of(prepare(*table(tmp_path / "log.csv", 7))) == 28
    (tmp_path / "link.csv").symlink_to(tmp_path / "log.csv")
    assert rows_of(prepare("--data.source=table", f"--data.path={tmp_path}/link.csv", first[2])) == 28
    generated = contents(prepare(*small, folder="generated"))
    other = contents(prepare(*small, "--preprocessing.seed=2", folder="generated"))
    for name in generated:
        assert other[name] != generated[name] or not name.endswith((".arrow", ".parquet", "state.json"))


def test_another_input_is_refused_in_one_line_that_names_both_unless_it_may_replace(
    prepare: Prepare, tmp_path: Path, small: list[str], capsys: Capture
) -> None:
    folder = prepare(*table(tmp_path / "log.csv"))
    as_sequences = ["--data.source=sequences", f"--data.path={tmp_path}/log.csv"]
    for arguments, name in (
        (table(tmp_path / "log2.csv"), "log2.csv (table)"), (table(tmp_path / "b" / "log.csv"), "a log.csv"),
        (small, "synthetic"), (as_sequences, "log.csv (sequences)"),
    ):  # fmt: skip
        error = refusal(folder, arguments, capsys)
        assert error.startswith(f"error: {folder}: ")
        for word in ("log.csv (table)", name, f"--data.dataset_dir={folder}-2", "--replace"):
            assert word in error
    (tmp_path / "dataset-2").mkdir()
    assert f"--data.dataset_dir={folder}-3," in refusal(folder, small, capsys)
    for replace in (["--replace"], ["--data.replace", "true"]):
        assert rows_of(prepare(*replace, *table(tmp_path / f"{len(replace)}.csv", 6))) == 24
        next_line = capsys.readouterr().out.splitlines()[-1]
        assert next_line.endswith(f"train.py {tmp_path}/dataset --config={tmp_path}/empty.toml")


def test_a_public_set_is_known_by_its_source_wherever_it_lies(prepare: Prepare, tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        lines = [f"{user}::{1 + (user + step) % 9}::5::{step}" for user in range(4) for step in range(4)]
        (tmp_path / place / "ratings.dat").write_text("\n".join(lines) + "\n")
        folder = prepare("--data.source=ml-1m", f"--data.path={tmp_path / place}", "--preprocessing.n_eval_negatives=2")
    assert rows_of(folder) == 16


def test_what_is_noted_of_the_input_tells_nothing_of_the_machine(prepare: Prepare, tmp_path: Path) -> None:
    folder = prepare(*table(tmp_path / "log.csv"))
    digest = hashlib.sha256(os.path.realpath(tmp_path / "log.csv").encode()).hexdigest()
    assert metadata_of(folder)["created_from"] == {
        "source": "table", "name": "log.csv", "path_sha256": digest[:16],
        "sha256": hashlib.sha256((tmp_path / "log.csv").read_bytes()).hexdigest(),
    }  # fmt: skip
    assert str(tmp_path) not in (folder / "metadata.json").read_text()
    assert "log.csv" not in (folder / "README.md").read_text()
    urls = [f"https://ann:pw@host/log.csv?X-Amz-Signature={sign * 400}" for sign in "ab"]
    notes = [created_from("table", url, {}) for url in urls]
    assert [note["name"] for note in notes] == ["https://host/log.csv"] * 2
    digests = [hashlib.sha256(url.encode()).hexdigest()[:16] for url in urls]  # another query may be another input
    assert [note["path_sha256"] for note in notes] == digests


def test_a_dataset_that_another_input_has_made_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    shared = ["--config=/dev/null", f"--data.dataset_dir={tmp_path / 'dataset'}"]
    write_all = engine.write_metadata

    def slowly(*arguments: Any, **known: Any) -> int:
        monkeypatch.undo()
        assert preprocessing.main([*shared, *table(tmp_path / "log2.csv", 6)]) == 0
        return write_all(*arguments, **known)

    monkeypatch.setattr(engine, "write_metadata", slowly)
    assert preprocessing.main([*shared, *table(tmp_path / "log.csv")]) == 2
    assert "log2.csv (table)" in capsys.readouterr().err
    assert rows_of(tmp_path / "dataset") == 24


def test_an_empty_folder_is_used_and_any_other_left_alone(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    size = write(tmp_path / "d", frame(3))
    assert size == sum(path.stat().st_size for path in (tmp_path / "d").rglob("*") if path.is_file())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    for name, word in (("mine", "dataset_dir"), ("mine/thesis.txt", "dataset_dir"), ("mine/thesis.txt/d", "")):
        with one_line(f"{tmp_path / name}: ", word):
            write(tmp_path / name, frame(3))
    assert names(tmp_path / "mine") == ["thesis.txt"]


def test_many_at_once_leave_the_dataset_of_one(tmp_path: Path) -> None:
    def write_often(number: int) -> None:
        for _ in range(40):
            with new_dataset(tmp_path / "d") as new:
                write_metadata(new, {"number": number})

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write_often, range(4)))
    assert metadata_of(tmp_path / "d")["number"] in range(4)
    assert names(tmp_path) == ["d"]


def test_a_failure_leaves_the_older_dataset(tmp_path: Path, monkeypatch: Patch) -> None:
    write(tmp_path / "d", frame(3))
    before = contents(tmp_path / "d")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer.PartWriter, "close", full)
    with one_line(str(tmp_path), "No space left on device"):
        write(tmp_path / "d", frame(5))
    assert contents(tmp_path / "d") == before
    assert names(tmp_path) == ["d"]


KILLED = """
import os, signal, sys
from pathlib import Path
from bert4rec.dataset.format import negative_columns
from bert4rec.prepare import folder as dataset_folder, writer
from bert4rec.runtime import files

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def at_the_end():
    dataset_folder.write_metadata = die

def between_the_renames():  # the older dataset is away, the new one not yet in place
    rename, files.exchange = Path.rename, lambda *_: False
    Path.rename = lambda path, to: die() if ".new-" in path.name else rename(path, to)

def after_the_exchange():  # the older dataset has the name of the temporary folder
    exchange = files.exchange
    files.exchange = lambda *folders: exchange(*folders) and die()

for folder, patch in zip(sys.argv[1:], (at_the_end, between_the_renames, after_the_exchange), strict=True):
    if not os.fork():
        patch()
        with dataset_folder.new_dataset(Path(folder)) as new:
            files = [writer.PartWriter(new / "negatives", 0, negative_columns()).close()]
            writer.write_state(new / "negatives", negative_columns(), files)
            dataset_folder.write_metadata(new, {})
    assert os.wait()[1] == signal.SIGKILL
"""


def test_a_killed_run_leaves_no_half_dataset_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    folders = [tmp_path / name / "d" for name in ("at_the_end", "between_the_renames", "after_the_exchange")]
    for folder in folders:
        write(folder, frame(3))
    write(tmp_path / "new")
    before = contents(folders[0])
    subprocess.run([sys.executable, "-c", KILLED, *map(str, folders)], cwd=ROOT, check=True)
    (folders[2] / dataset_folder.DATASET_LOCK).touch()  # as after a kill when all renames were done
    for folder, expected in zip(folders, (before, before, contents(tmp_path / "new")), strict=True):
        assert len(names(folder.parent)) == 2
        dataset_folder.clear_target(folder)
        assert names(folder.parent) == ["d"]
        assert contents(folder) == expected


@pytest.mark.parametrize(
    ("at", "can_exchange"), [(".d.old-", False), (".d.new-", False), ("removed", False), ("removed", True)]
)
def test_another_preparation_that_starts_while_one_replaces_takes_nothing_away(
    tmp_path: Path, monkeypatch: Patch, at: str, *, can_exchange: bool
) -> None:
    """It starts before the older dataset is renamed, before the new one is, and while the older one is removed."""
    if not can_exchange:
        monkeypatch.setattr(files, "exchange", lambda *_: False)
    folder, started = tmp_path / "d", list[str]()
    write(folder, frame(3))
    rename, rmtree = Path.rename, dataset_folder.shutil.rmtree

    def start_another(name: str) -> None:
        if not started and at in name:
            started.append(name)
            (tmp_path / ".d.new-dead").mkdir()
            dataset_folder.clear_target(folder)

    def renaming(path: Path, to: Path) -> Path:
        start_another(str(to) if path == folder else path.name)
        return rename(path, to)

    def removing(path: Path, *arguments: Any, **options: Any) -> None:
        start_another("removed" if Path(path).name.startswith((".d.old-", ".d.new-")) else "")
        rmtree(path, *arguments, **options)

    monkeypatch.setattr(Path, "rename", renaming)
    monkeypatch.setattr(dataset_folder.shutil, "rmtree", removing)
    write(folder, frame(5))
    monkeypatch.undo()
    assert started
    write(tmp_path / "other", frame(5))
    assert contents(folder) == contents(tmp_path / "other")
    assert names(tmp_path) == ["d", "other"]
