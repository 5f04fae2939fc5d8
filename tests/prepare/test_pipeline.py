"""From a file to the folder: the rows by a reference in plain Python; sizes, threads and formats play no role."""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import datasets
import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import preprocessing
from bert4rec.dataset.format import part_starts
from bert4rec.prepare import engine, writer
from bert4rec.sources import interactions
from tests.folders import contents

ROOT = Path(preprocessing.__file__).parent
COLUMNS = ["--data.time_column=at", "--data.rating_column=stars"]


class Row(NamedTuple):
    user: str
    item: int
    at: int
    stars: float


def prepared(place: Path, arguments: Sequence[str], *, folder: str = "dataset") -> Path:
    """The folder that the script writes, or is asked to write where it refuses."""
    target = place / folder
    command = ["--config=/dev/null", f"--data.dataset_dir={target}", "--preprocessing.n_eval_negatives=1", *arguments]
    with redirect_stdout(StringIO()):
        preprocessing.main(command)
    return target


def stored(folder: Path) -> list[dict[str, Any]]:
    """The rows of `histories`, with the original ids."""
    users, items = (pl.read_parquet(folder / f"{name}s.parquet") for name in ("user", "item"))
    user = dict(users.select("user", "original").iter_rows())
    item = dict(items.select("item", "original").iter_rows())
    rows = datasets.load_from_disk(str(folder / "histories")).to_list()
    return [row | {"user": user[row["user"]], "items": [item[i] for i in row["items"]]} for row in rows]


def histories(rows: Sequence[Row], s: dict[str, Any]) -> dict[str, list[Row]]:
    """Of each user what the filters keep, in order of time; of one time, in the order of the file."""
    kept = [row for row in rows if row.stars >= s["min_rating"] and s["time_from"] <= row.at < s["time_until"]]
    found: dict[str, list[Row]] = {}
    for user in sorted({row.user for row in kept}):
        mine = sorted((row for row in kept if row.user == user), key=lambda row: row.at)
        if s["repeats"] == "last":
            mine = [row for i, row in enumerate(mine) if row.item not in {later.item for later in mine[i + 1 :]}]
        elif s["repeats"] == "first":
            mine = [row for i, row in enumerate(mine) if row.item not in {earlier.item for earlier in mine[:i]}]
        elif s["repeats"] == "first_in_a_row":
            mine = [row for i, row in enumerate(mine) if i == 0 or row.item != mine[i - 1].item]
        found[user] = mine
    return limited(found, s)


def limited(found: dict[str, list[Row]], s: dict[str, Any]) -> dict[str, list[Row]]:
    while True:
        before = found
        counts = Counter(row.item for mine in found.values() for row in mine)
        found = {u: [row for row in mine if counts[row.item] >= s["min_item"]] for u, mine in found.items()}
        most = s["max_user"] or 10**9
        found = {u: mine for u, mine in found.items() if max(1, s["min_user"]) <= len(mine) <= most}
        if found == before or s["min_item"] <= 1:
            return found


def lists(rows: list[Row]) -> dict[str, list[Any]]:
    _, *columns = map(list, zip(*rows, strict=True)) if rows else [[]] * 4
    return dict(zip(("items", "times", "ratings"), columns, strict=True))


def places(mine: list[Row], s: dict[str, Any]) -> tuple[int, bool]:
    """How many rows come before the target of the test, and whether the last of them may be held out."""
    if s["split"] == "none":
        return len(mine), False
    if s["split"] == "time":
        before = sum(row.at < s["split_at"] for row in mine)
        return before, before >= 2
    return (len(mine) - 1, True) if len(mine) >= 3 else (len(mine), False)


def expected(rows: Sequence[Row], s: dict[str, Any], tested: set[str], validated: set[str]) -> list[dict[str, Any]]:
    """Users outside the sample train on everything, or in a split by time on everything before the instant."""
    found = []
    for user, mine in histories(rows, s).items():
        before, _ = places(mine, s) if user in tested or s["split"] == "time" else (len(mine), False)
        offsets = {
            "n_train": before - (user in validated),
            "validation": before - 1 if user in validated else -1,
            "test": before if user in tested else -1,
        }
        found.append({"user": user, **lists(mine), **offsets})
    return found


SETTINGS = st.fixed_dictionaries(
    {
        "n_validated": st.integers(1, 4), "n_tested": st.sampled_from(["all", 1, 2]),
        "min_rating": st.sampled_from([0.0, 2.0]), "time_from": st.sampled_from([0, 3]),
        "time_until": st.sampled_from([9, 10**6]),
        "repeats": st.sampled_from(["keep", "first", "last", "first_in_a_row"]),
        "min_item": st.integers(1, 3),
        "min_user": st.integers(1, 3), "max_user": st.sampled_from([0, 5]),
        "split": st.sampled_from(["leave_one_out", "time", "none"]), "split_at": st.integers(2, 9),
        "many_runs": st.booleans(),
    }
)  # fmt: skip
ROWS = st.lists(
    st.builds(Row, st.sampled_from("abcd"), st.integers(1, 7), st.integers(0, 11), st.sampled_from([1.0, 2.0, 4.5])),
    min_size=8, max_size=50,
)  # fmt: skip


def instant(seconds: int) -> str:
    return f"1970-01-01T00:00:{seconds:02d}"


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(ROWS, SETTINGS)
def test_the_splits_are_those_of_the_reference(rows: list[Row], s: dict[str, Any]) -> None:
    chosen = {
        "preprocessing.validation_users": s["n_validated"], "preprocessing.test_users": s["n_tested"],
        "preprocessing.min_rating": s["min_rating"],
        "preprocessing.time_from": instant(s["time_from"]) if s["time_from"] else "",
        "preprocessing.time_until": instant(s["time_until"]) if s["time_until"] < 60 else "",
        "preprocessing.repeats": s["repeats"],
        "preprocessing.min_item_interactions": s["min_item"],
        "preprocessing.min_user_interactions": s["min_user"], "preprocessing.max_user_interactions": s["max_user"],
        "preprocessing.split": s["split"], "preprocessing.split_at": instant(s["split_at"]),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as place, patch.object(engine, "RUNS", 10**8 if s["many_runs"] else 24):
        path = Path(place) / "log.csv"
        pl.DataFrame(rows, schema=list(Row._fields), orient="row").write_csv(path)
        options = [f"--{name}={value}" for name, value in chosen.items() if value != ""]
        folder = prepared(Path(place), ["--data.source=table", f"--data.path={path}", *COLUMNS, *options])
        if not folder.exists():
            reject()
        found = stored(folder)
    user_rows = histories(rows, s)
    testable = {user for user, mine in user_rows.items() if 0 < places(mine, s)[0] < len(mine)}
    tested = {row["user"] for row in found if row["test"] >= 0}
    assert tested <= testable
    assert len(tested) == (len(testable) if s["n_tested"] == "all" else min(s["n_tested"], len(testable)))
    able = {user for user, mine in user_rows.items() if places(mine, s)[1] and (user in tested or s["split"] == "time")}
    validated = {row["user"] for row in found if row["validation"] >= 0}
    assert validated <= able
    assert len(validated) == min(s["n_validated"], len(able))
    assert found == expected(rows, s, tested, validated)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A CSV of text ids of which some look like numbers, of users whose rows are scattered; with all that may be."""
    rng, n = np.random.default_rng(3), 6000
    item = (90 * rng.random(n) ** 2).astype(int)
    table = {
        "user": [f"u{u}" if u % 3 else str(u) for u in rng.integers(0, 300, n)], "item": item,
        "at": 10**9 + rng.integers(0, 2000, n) / 4, "stars": rng.integers(1, 11, n) / 2,
        "kind": np.where(rng.random(n) < 0.4, "buy", "view"), "brand": [f"b{number % 7}" for number in item],
    }  # fmt: skip
    pl.DataFrame(table).write_csv(tmp_path / "log.csv")
    return tmp_path / "log.csv"


FILTERED = [
    "--preprocessing.min_user_interactions=5", "--preprocessing.min_item_interactions=40",
    "--preprocessing.repeats=last", "--preprocessing.n_eval_negatives=5", "--data.item_features.brand=category",
    "--data.event_column=kind", '--preprocessing.target_events=["buy"]',
]  # fmt: skip


def small_parts() -> Any:
    """Parts of at most 300 interactions, so that there are several."""
    return patch.object(writer, "part_starts", partial(part_starts, most_rows=300))


ALONE = """
import sys
import preprocessing
from tests.prepare.test_pipeline import small_parts
small_parts().start()
for line in sys.stdin:
    assert preprocessing.main(["--config=/dev/null", *line.split()]) == 0
"""


def test_one_and_several_threads_write_the_same_bytes_also_where_the_file_is_larger_than_the_memory(
    tmp_path: Path, log: Path, small: list[str]
) -> None:
    """1 GB of memory in 50,000 runs, in blocks of 500 bytes: what a part holds is a fraction of the file."""
    table = ["--data.source=table", f"--data.path={log}", *COLUMNS, *FILTERED, "--preprocessing.memory_gb=1"]
    kinds = {split: [*table, f"--preprocessing.split={split}"] for split in ("leave_one_out", "time")}
    kinds["synthetic"] = small  # whose oracle ranks, too
    alone = [" ".join([*arguments, f"--data.dataset_dir={tmp_path}/alone-{kind}"]) for kind, arguments in kinds.items()]
    environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-c", ALONE], cwd=ROOT, env=environment, input="\n".join(alone), text=True, check=True,
        stdout=subprocess.DEVNULL, timeout=240,
    )  # fmt: skip
    for kind, arguments in kinds.items():
        expected = contents(tmp_path / f"alone-{kind}")
        assert sum(name.startswith("histories/part-") for name in expected) > 2
        with small_parts():
            assert contents(prepared(tmp_path, arguments, folder=f"whole-{kind}")) == expected
            with patch.object(engine, "RUNS", 50_000), patch.object(interactions, "BLOCKS_IN_BUDGET", 2_000_000):
                assert contents(prepared(tmp_path, arguments, folder=f"parts-{kind}")) == expected


def test_sequences_and_the_same_rows_as_a_table_with_times_give_the_same_dataset(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    pairs = [(user, int(item)) for user in range(1, 60) for item in rng.permutation(80)[: 3 + user % 20]]
    (tmp_path / "pairs.txt").write_text("".join(f"{user} {item}\n" for user, item in pairs))
    scattered = sorted(((user, item, time) for time, (user, item) in enumerate(pairs)), key=lambda row: row[1])
    pl.DataFrame(scattered, schema=["user", "item", "at"], orient="row").write_parquet(tmp_path / "log.parquet")
    shared = ["--preprocessing.n_eval_negatives=20", "--preprocessing.validation_users=30"]
    sequences = prepared(tmp_path, ["--data.source=sequences", f"--data.path={tmp_path / 'pairs.txt'}", *shared])
    table_settings = ["--data.source=table", f"--data.path={tmp_path / 'log.parquet'}", "--data.time_column=at"]
    table = prepared(tmp_path, [*table_settings, *shared], folder="table")
    assert [{key: row[key] for key in row if key != "times"} for row in stored(table)] == stored(sequences)
    for name in ("users.parquet", "items.parquet"):
        assert (sequences / name).read_bytes() == (table / name).read_bytes()


@pytest.mark.parametrize("text", [False, True])
def test_new_data_keep_every_id(tmp_path: Path, text: bool) -> None:
    def rows(users: range, items: range, day: int) -> pl.DataFrame:
        u, i = ("u", "i") if text else ("", "")
        cells = [(f"{u}{n}", f"{i}{k}", day * 1000 + n + k) for n in users for k in items if (n + k) % 3]
        return pl.DataFrame(cells, schema=["user", "item", "at"], orient="row")

    rows(range(5, 15), range(4, 12), 1).write_csv(tmp_path / "log-1.csv")
    rows(range(20), range(16), 2).write_csv(tmp_path / "log-2.csv")
    arguments = ["--data.source=table", f"--data.path={tmp_path}/log-*.csv", "--data.time_column=at"]
    old = prepared(tmp_path, [*arguments, f"--data.path={tmp_path}/log-1.csv"], folder="old")
    new = prepared(tmp_path, [*arguments, f"--data.extends={old}"], folder="new")
    anew = prepared(tmp_path, arguments, folder="anew")
    for name, column, n_all in (("users", "user", 20), ("items", "item", 16)):
        before, after = (pl.read_parquet(folder / f"{name}.parquet") for folder in (old, new))
        assert after[: len(before)].select(column, "original").equals(before.select(column, "original"))
        first_id = before[column][0]
        assert after[column].to_list() == list(range(first_id, first_id + n_all))
        assert len(before) < n_all

    def by_user(folder: Path) -> list[tuple[Any, ...]]:
        return sorted((row["user"], row["items"], row["times"], row["test"]) for row in stored(folder))

    assert by_user(new) == by_user(anew)
