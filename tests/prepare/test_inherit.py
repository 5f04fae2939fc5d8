"""`--data.extends` alone: the new log is read, filtered and split as the old one was."""

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bert4rec.__main__ import main
from tests.checks import Capture, Patch
from tests.conftest import long
from tests.preparation import metadata_of

NAMED = ("--user=kto", "--item=co", "--time=kedy", "--rating=", "--title=popis", "--data.event_column=druh")
SETTINGS = (
    "--data.separator=|", "--preprocessing.max_bad_rows=0.2", "--preprocessing.split=leave_last_basket",
    '--preprocessing.target_events=["buy"]', "--preprocessing.validation_users=9",
    "--preprocessing.n_eval_negatives=7", "--preprocessing.min_user_interactions=2", "--preprocessing.seed=3",
)  # fmt: skip


def write(name: str, n_days: int, *, header: str = "cena|kto|co|kedy|druh|popis") -> None:
    """A log with unknown column names, dates in which day and month are unclear, and some bad rows."""
    draw = random.Random(5)
    rows = [
        f"{draw.random():.2f}|{draw.randrange(40)}|{draw.randrange(12)}|{day % 28 + 1:02}/{day // 28 + 1:02}/2026|"
        f"{draw.choice(['view', 'buy'])}|thing"
        for day in range(n_days)
        for _ in range(20)
    ]
    rows += [f"1|{user}|3||buy|thing" for user in range(30)]
    Path(name).write_text("\n".join([header, *rows]) + "\n")


def extended(*options: str, name: str = "new", log: str = "new.csv") -> dict[str, Any]:
    """The metadata of the dataset that extends the old one."""
    assert main(["prepare", log, "--data.extends=data/old", f"--out=data/{name}", *options]) == 0
    return metadata_of(Path("data", name))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an old dataset, and the log a week later."""
    folder = tmp_path_factory.mktemp("inherit")
    with Patch.context() as patch:
        patch.chdir(folder)
        write("old.csv", 40)
        write("new.csv", 47)
        assert main(["prepare", "old.csv", *NAMED, *SETTINGS]) == 0
    return folder


@pytest.fixture
def place(prepared: Path, tmp_path: Path, monkeypatch: Patch) -> Path:
    """A copy of it, which is the current folder."""
    monkeypatch.chdir(shutil.copytree(prepared, tmp_path / "place"))
    return tmp_path / "place"


READ = ("columns", "time_format", "order", "preprocessing", "source", "bad_rows", "reading")


def test_nothing_else_has_to_be_typed(place: Path) -> None:
    """Also where a settings file names the defaults, as the project's own does; nor for what extends the new one."""
    Path("own.toml").write_text('[data]\nuser_column = "auto"\n[preprocessing]\nsplit = "leave_one_out"\n')
    write("newest.csv", 50)
    old, new, typed = (
        metadata_of(Path("data/old")),
        extended("--config=own.toml"),
        extended(*NAMED, *SETTINGS, name="x"),
    )
    newest = extended("--data.extends=data/new", name="newest", log="newest.csv")
    for later in (new, newest):
        assert {name: later[name] for name in READ} == {name: old[name] for name in READ}
    assert new["fingerprint"] == typed["fingerprint"]
    assert new["rows"] > old["rows"]


def test_what_is_typed_or_stands_in_a_file_wins(place: Path) -> None:
    Path("own.toml").write_text("[preprocessing]\nn_eval_negatives = 4\n")
    typed = ["--preprocessing.min_user_interactions=1", "--preprocessing.hide_before_target=visit"]
    settings = extended(*typed, "--config=own.toml")["preprocessing"]
    assert (settings["min_user_interactions"], settings["n_eval_negatives"], settings["seed"]) == (1, 4, 3)
    assert (settings["target_events"], settings["hide_before_target"]) == (["buy"], "visit")


@pytest.mark.parametrize("rows", [long("--table=log"), "--query=SELECT * FROM log WHERE druh = 'buy'"])
def test_the_table_or_query_of_a_database_is_inherited(place: Path, rows: str) -> None:
    pytest.importorskip("adbc_driver_sqlite")
    log = pl.read_csv("old.csv", separator="|", infer_schema=False)
    with closing(sqlite3.connect("shop.db")) as shop, shop:
        for name, part in (("log", log), ("other", log[:50])):
            shop.execute(f"CREATE TABLE {name} ({', '.join(part.columns)})")
            shop.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?, ?, ?)", part.rows())
    assert main(["prepare", "shop.db", rows, *NAMED, *SETTINGS, "--out=data/first"]) == 0
    assert main(["prepare", "shop.db", "--data.extends=data/first", "--out=data/second"]) == 0
    assert main(["prepare", "new.csv", "--data.extends=data/first", "--out=data/third"]) == 0
    assert main(["prepare", "shop.db", "--table=other", "--data.extends=data/first", "--data.accept_lost_rows=true",
                 "--out=data/fourth"]) == 0  # fmt: skip
    first, second, third, fourth = (metadata_of(Path("data", name)) for name in ("first", "second", "third", "fourth"))
    assert (second["created_from"], second["rows"]) == (first["created_from"], first["rows"])
    assert "table" not in third["created_from"]
    assert (fourth["created_from"]["table"], fourth["created_from"].get("query")) == ("other", None)


def test_a_limit_that_ended_the_old_log_does_not_end_the_new_one(place: Path) -> None:
    cut = extended("--preprocessing.time_until=2026-02-05", name="cut", log="old.csv")
    new = extended("--data.extends=data/cut", log="old.csv")
    assert cut["rows"] < new["rows"] == metadata_of(Path("data/old"))["rows"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["new.csv", "--split=time"], "preprocessing.split = time: "), (["other.csv"], "--user="),
        (["new.csv", "--data.extends=data/sample", "--preprocessing.test_users=all"], "test_users = all"),
        (["new.csv", "--data.extends=data/dated"], "--preprocessing.split_at"),
        (["new.csv", "--data.extends=data/none"], "data/none: "),
    ],
)  # fmt: skip
def test_one_line_for_what_cannot_be(place: Path, capsys: Capture, options: list[str], named: str) -> None:
    write("other.csv", 47, header="cena|wer|co|kedy|druh|popis")
    dated = ["--preprocessing.split=time", "--preprocessing.split_at=2026-02-01"]
    for name, changes in (("sample", ["--preprocessing.test_users=9"]), ("dated", dated)):
        if f"--data.extends=data/{name}" in options:
            assert main(["prepare", "old.csv", *NAMED, *SETTINGS, *changes, f"--out=data/{name}"]) == 0
    capsys.readouterr()
    assert main(["prepare", *options[:1], "--data.extends=data/old", *options[1:], "--out=data/new"]) == 2
    error = capsys.readouterr().err
    assert (named in error, error.count("\n")) == (True, 1), error
