"""From a file to the folder: the rows by a reference in plain Python; sizes, threads and formats play no role."""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import preprocessing
from bert4rec.dataset.check import check_dataset
from bert4rec.prepare.rows import FILTERS
from tests.folders import contents, id_table
from tests.preparation import metadata_of, prepared, small_parts, small_tasks, stored

ROOT = Path(preprocessing.__file__).parent
COLUMNS = ["--data.time_column=at", "--data.rating_column=stars"]
KINDS = ("view", "cart", "buy", "")


class Row(NamedTuple):
    user: str
    item: int
    at: float
    stars: float
    event: str


def histories(rows: Sequence[Row], s: dict[str, Any]) -> dict[str, list[Row]]:
    """Of each user what the filters keep, in order of time; of one time, in the order of the file."""
    kept = [row for row in rows if row.stars >= s["min_rating"] and s["time_from"] <= row.at < s["time_until"]]
    found: dict[str, list[Row]] = {}
    for user in sorted({row.user for row in kept}):
        mine = sorted((row for row in kept if row.user == user), key=lambda row: row.at)
        same = [(row.item, row.event) for row in mine]
        others = [
            {"keep": [], "first": same[:i], "last": same[i + 1 :], "first_in_a_row": same[:i][-1:]}[s["repeats"]]
            for i in range(len(mine))
        ]
        found[user] = [row for i, row in enumerate(mine) if same[i] not in others[i]]
    while True:
        before = found
        counts = Counter(row.item for mine in found.values() for row in mine)
        found = {u: [row for row in mine if counts[row.item] >= s["min_item"]] for u, mine in found.items()}
        most = s["max_user"] or 10**9
        found = {u: mine for u, mine in found.items() if max(1, s["min_user"]) <= len(mine) <= most}
        if found == before or s["min_item"] <= 1:
            return found


def target(mine: list[Row], targets: list[int], least: int, s: dict[str, Any]) -> int:
    """The place of the last of the `targets`, or of the first row of its basket."""
    place = targets[-1] if targets else -1
    if s["split"] == "leave_last_basket" and place >= 0:
        place = [row.at for row in mine].index(mine[place].at)
    return place if place >= least else -1


def places(mine: list[Row], s: dict[str, Any]) -> tuple[int, int, int]:
    """The end of what is not tested, and the places of the targets of validation and test, -1 for none."""
    targets = [place for place, row in enumerate(mine) if not s["kinds"] or row.event in s["kinds"]]
    if s["split"] == "time":
        end = sum(row.at < s["split_at"] for row in mine)
        before, after = [place for place in targets if 1 <= place < end], [place for place in targets if place >= end]
        return end, before[-1] if before else -1, after[0] if after and end else -1
    if s["split"] == "none":
        return len(mine), -1, -1
    test = target(mine, targets, 2, s)
    validation = target(mine, [place for place in targets if place < test], 1, s)
    return test if test >= 0 else len(mine), validation, test


def expected(user: str, mine: list[Row], s: dict[str, Any], tested: set[str], validated: set[str]) -> dict[str, Any]:
    """Users outside the sample train on everything, or in a split by time on everything before the instant."""
    end, validation, test = places(mine, s)
    end = end if user in tested or s["split"] == "time" else len(mine)
    offsets = {
        "n_train": validation if user in validated else end,
        "validation": validation if user in validated else -1,
        "test": test if user in tested else -1,
    }
    tied = s["split"] != "leave_last_basket" and test > 0 and user in tested and mine[test].at == mine[test - 1].at
    return {"user": user, "rows": [(row.item, int(row.at), row.stars, row.event) for row in mine], **offsets,
            "test_tied": int(tied)}  # fmt: skip


SETTINGS = st.fixed_dictionaries(
    {
        "n_validated": st.sampled_from(["all", 1, 2, 3]), "n_tested": st.sampled_from(["all", 1, 2]),
        "min_rating": st.sampled_from([0.0, 2.0]), "time_from": st.sampled_from([0, 3]),
        "time_until": st.sampled_from([9, 59]), "min_item": st.integers(1, 3),
        "repeats": st.sampled_from(["keep", "first", "last", "first_in_a_row"]),
        "min_user": st.integers(1, 3), "max_user": st.sampled_from([0, 5]),
        "split": st.sampled_from(["leave_one_out", "leave_last_basket", "time", "none"]),
        "split_at": st.integers(2, 9), "kinds": st.sets(st.sampled_from(KINDS[:3])), "many_runs": st.booleans(),
        "seed": st.integers(0, 3),
    }
)  # fmt: skip
ALL = {
    "n_validated": "all", "n_tested": "all", "min_rating": 0, "time_from": 0, "time_until": 59, "min_item": 1,
    "repeats": "keep", "min_user": 1, "max_user": 0, "split": "leave_one_out", "split_at": 2, "kinds": {"view"},
    "many_runs": False, "seed": 1,
}  # fmt: skip
AT, STARS = st.sampled_from([0, 1, 2, 3, 3.25, 3.5, 4, 5, 7, 9, 11]), st.sampled_from([1.0, 2.0, 4.5])
ROWS = st.lists(
    st.builds(Row, st.sampled_from("abcd"), st.integers(1, 7), AT, STARS, st.sampled_from(KINDS)),
    min_size=8, max_size=50,
)  # fmt: skip


def instant(seconds: int) -> str:
    return f"1970-01-01T00:00:{seconds:02d}"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROWS, SETTINGS)
@example([Row(*cells, 1.0, "view") for cells in (("a", 1, 3), ("b", 1, 2), ("b", 1, 1), ("b", 2, 1))], ALL)
def test_the_splits_are_those_of_the_reference(rows: list[Row], s: dict[str, Any]) -> None:
    s = s | {"kinds": sorted(s["kinds"] & {row.event for row in rows})}
    chosen = {
        "validation_users": s["n_validated"], "test_users": s["n_tested"], "min_rating": s["min_rating"],
        "time_from": instant(s["time_from"]), "time_until": instant(s["time_until"]), "repeats": s["repeats"],
        "min_item_interactions": s["min_item"], "min_user_interactions": s["min_user"],
        "max_user_interactions": s["max_user"], "split": s["split"], "split_at": instant(s["split_at"]),
        "target_events": json.dumps(s["kinds"]), "seed": s["seed"],
        "reverse_file_order": "false",  # a few rows may happen to be newest first
    }  # fmt: skip
    options = [f"--preprocessing.{name}={value}" for name, value in chosen.items()]
    user_rows = histories(rows, s)
    testable = {user for user, mine in user_rows.items() if places(mine, s)[2] >= 0}
    with tempfile.TemporaryDirectory() as place, small_tasks() if s["many_runs"] else nullcontext():
        table = pl.DataFrame(rows, schema=list(Row._fields), orient="row")
        folder = prepared(Path(place), *COLUMNS, "--data.event_column=event", *options, table=table)
        if not folder.exists():
            is_one_item = len({row.item for mine in user_rows.values() for row in mine}) == 1
            assert not user_rows or is_one_item or (s["split"] != "none" and not testable)
            return
        check_dataset(folder)
        found, metadata = stored(folder), metadata_of(folder)
    tested, validated = ({row["user"] for row in found if row[name] >= 0} for name in ("test", "validation"))
    able = {user for user, mine in user_rows.items() if places(mine, s)[1] >= 0}
    able &= able if s["split"] == "time" else tested
    for drawn, candidates, n in ((tested, testable, s["n_tested"]), (validated, able, s["n_validated"])):
        assert drawn <= candidates
        assert len(drawn) == (len(candidates) if n == "all" else min(n, len(candidates)))
    for row, (user, mine) in zip(found, user_rows.items(), strict=True):
        events = [[*metadata["events"]][number] for number in row.pop("events")]
        lists = [row.pop(name) for name in ("items", "times", "ratings")]
        wanted = expected(user, mine, s, tested, validated)
        tied = row.get("test_tied", wanted["test_tied"])  # left to the reader where `times` tell it
        row |= {"rows": [*zip(*lists, events, strict=True)], "test_tied": tied}
        if s["split"] == "leave_last_basket":  # its target is drawn
            for place in {row["validation"], row["test"]} - {-1}:
                assert not s["kinds"] or row["rows"][place][-1] in s["kinds"]
            n_train = row["n_train"]
            assert row["rows"][:n_train] == wanted["rows"][:n_train]
            row["rows"], wanted["rows"] = sorted(row["rows"]), sorted(wanted["rows"])
        assert row == wanted
    assert Counter(metadata["events"]) == Counter(row.event for mine in user_rows.values() for row in mine)
    n_read = [len(rows), len({row.user for row in rows}), len({row.item for row in rows})]
    assert [metadata[f"{name}_read"] for name in ("rows", "users", "items")] == n_read
    assert metadata["rows"] == len(rows) - sum(metadata["dropped"].values())
    assert [*metadata["dropped"]] == [name for name in FILTERS if name in metadata["dropped"]]


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


ALONE = """
import sys
import preprocessing
from tests.preparation import small_parts
small_parts(700).start()
for line in sys.stdin:
    assert preprocessing.main(["--config=/dev/null", *line.split()]) == 0
"""


@pytest.mark.long
def test_one_and_several_threads_write_the_same_bytes(tmp_path: Path, log: Path, small: list[str]) -> None:
    table = ["--data.source=table", f"--data.path={log}", *COLUMNS, *FILTERED]
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
        with small_parts(700):
            assert contents(prepared(tmp_path, *arguments, name=f"whole-{kind}")) == expected


def test_sequences_and_the_same_rows_as_a_table_with_times_give_the_same_dataset(tmp_path: Path) -> None:
    pairs = [(user, (user * step) % 83) for user in range(1, 60) for step in range(1, 4 + user % 20)]
    (tmp_path / "pairs.txt").write_text("".join(f"{user} {item}\n" for user, item in pairs))
    rows = pl.DataFrame(pairs, schema=["user", "item"], orient="row").with_row_index("at").sort("item")
    sequences = prepared(tmp_path, "--data.source=sequences", f"--data.path={tmp_path / 'pairs.txt'}")
    table = prepared(tmp_path, "--data.time_column=at", table=rows, name="table")
    assert [{key: row[key] for key in row if key != "times"} for row in stored(table)] == stored(sequences)
    for name in ("users/part-0000000000.parquet", "items/part-0000000000.parquet"):
        assert (sequences / name).read_bytes() == (table / name).read_bytes()


def test_new_data_keep_every_id(tmp_path: Path) -> None:
    def rows(users: range, items: range, day: int) -> pl.DataFrame:
        cells = [
            (f"u{n}" if n == 19 else f"{n}", f"i{k}", day * 1000 + n + k, f"kind{k % day}")
            for n in users
            for k in items
            if (n + k) % 3
        ]
        return pl.DataFrame(cells, schema=["user", "item", "at", "event"], orient="row")

    first = rows(range(5, 15), range(4, 12), 1)
    both = pl.concat([rows(range(20), range(16), 2), first])
    options = ["--data.time_column=at", "--data.event_column=event"]
    old = prepared(tmp_path, *options, table=first, name="old")
    new = prepared(tmp_path, *options, f"--data.extends={old}", table=both, name="new")
    anew = prepared(tmp_path, *options, table=both, name="anew")
    assert [*check_dataset(new)["events"]] == ["", "kind0", "kind1"]
    assert not prepared(
        tmp_path, options[0], "--data.event_column=", f"--data.extends={old}", table=both, name="without"
    ).exists()
    for column, n_all in (("user", 20), ("item", 16)):
        before, after = (id_table(folder, f"{column}s") for folder in (old, new))
        ids = before.select(column, pl.col("original").cast(pl.String))  # users of the old log are numbers
        assert after[: len(before)].select(ids.columns).equals(ids)
        assert after[column].to_list() == list(range(n_all))
        assert len(before) < n_all
    kept, renumbered = (sorted((row["user"], row["items"], row["times"], row["test"]) for row in stored(folder))
                        for folder in (new, anew))  # fmt: skip
    assert kept == renumbered
