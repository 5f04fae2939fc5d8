"""Kinds of events: stored as they are, and targets of some kinds by a reference in plain Python."""

import json
import tempfile
from collections import Counter
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import preprocessing
from bert4rec.dataset.check import check_dataset
from bert4rec.runtime.errors import DataError
from tests.fixture_types import Capture
from tests.prepare.test_pipeline import stored

KINDS = ("view", "cart", "buy", "")


class Row(NamedTuple):
    user: str
    item: str
    time: int
    event: str


def prepared(place: Path, rows: list[Row], **changes: Any) -> Path:
    """The dataset of the rows, whose events are read unless a change says otherwise."""
    lines = [",".join(Row._fields), *(",".join(map(str, row)) for row in rows)]
    (place / "log.csv").write_text("\n".join(lines) + "\n")
    options: dict[str, Any] = {
        "data.path": place / "log.csv", "data.source": "table", "data.dataset_dir": place / "dataset",
        "data.replace": "true", "data.event_column": "event", "preprocessing.n_eval_negatives": 1,
    } | changes  # fmt: skip
    with redirect_stdout(StringIO()):
        assert preprocessing.main(["--config=/dev/null", *(f"--{key}={value}" for key, value in options.items())]) == 0
    return Path(options["data.dataset_dir"])


def purchases(kinds: list[str]) -> dict[str, str]:
    return {"preprocessing.target_events": json.dumps(kinds)}


LOG = [
    Row("a", "p", 1, "view"), Row("a", "q", 2, "buy"), Row("a", "r", 3, ""), Row("a", "p", 4, "buy"),
    Row("a", "q", 5, "view"), Row("b", "q", 1, "cart"), Row("b", "r", 2, "view"),
]  # fmt: skip


def expected(mine: list[Row], kinds: list[str], split: str, instant: int) -> tuple[int, int, int]:
    """The end of the training part without validation, and the positions of the targets, -1 for no target."""
    places = [place for place, row in enumerate(mine) if not kinds or row.event in kinds]
    if split == "leave_one_out":
        if not places or places[-1] < 2:
            return len(mine), -1, -1
        return places[-1], next((place for place in places[-2:-1] if place >= 1), -1), places[-1]
    n_before = sum(row.time < instant for row in mine)
    before = [place for place in places if 1 <= place < n_before]
    after = [place for place in places if place >= n_before] if n_before else []
    return n_before, before[-1] if before else -1, after[0] if after else -1


ROWS = st.lists(
    st.builds(Row, st.sampled_from("abc"), st.sampled_from("pqrs"), st.integers(1, 9), st.sampled_from(KINDS)),
    min_size=1, max_size=40,
)  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROWS, st.sets(st.sampled_from(KINDS[:3])), st.sampled_from(["leave_one_out", "time"]), st.integers(2, 8))
@example(
    [Row("a", "p", 3, "view"), Row("b", "p", 2, "view"), Row("b", "p", 1, "cart"), Row("b", "q", 1, "view")],
    set(),
    "leave_one_out",
    2,
)
def test_targets_are_of_the_wanted_kinds(rows: list[Row], kinds: set[str], split: str, instant: int) -> None:
    wanted = sorted(kinds & {row.event for row in rows})
    with tempfile.TemporaryDirectory() as place:
        options = {"preprocessing.split": split, "preprocessing.split_at": f"'1970-01-01T00:00:0{instant}'"}
        options["data.time_format"] = "s"
        options["preprocessing.validation_users"] = '"all"'
        options["preprocessing.reverse_file_order"] = "false"  # a few rows may happen to be newest first
        user_rows = {user: [row for row in rows if row.user == user] for user in sorted({row.user for row in rows})}
        mine = {user: sorted(some, key=lambda row: row.time) for user, some in user_rows.items()}
        found = {user: expected(some, wanted, split, instant) for user, some in mine.items()}
        is_tested = any(test >= 0 for *_, test in found.values())
        try:
            folder = prepared(Path(place), rows, **options, **purchases(wanted))
        except (AssertionError, DataError):
            assert not is_tested or len({row.item for row in rows}) == 1
            return
        assert is_tested
        kinds_of = [*json.loads((folder / "metadata.json").read_text())["events"]]
        for history in stored(folder):
            some = mine[history["user"]]
            assert [kinds_of[number] for number in history["events"]] == [row.event for row in some]
            end, validation, test = found[history["user"]]
            assert (history["validation"], history["test"]) == (validation, test)
            assert history["n_train"] == (validation if validation >= 0 else end)
        metadata = check_dataset(folder)
        assert Counter(row.event for row in rows) == Counter(metadata["events"])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data.event_column": "evnt"}, "--data.event_column=event"), ({"data.event_column": "auto"}, "auto"),
        ({"data.event_column": "item"}, "event_column"), ({"preprocessing.target_events": '["sale"]'}, "sale"),
        ({"data.event_column": "", "preprocessing.target_events": '["kind0"]'}, "--data.event_column"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: Capture, changes: dict[str, str], named: str) -> None:
    rows = [Row(f"u{n % 9}", f"i{n}", n, f"kind{n % 3}") for n in range(150)]
    options = {"data.item_column": "item" if changes.get("data.event_column") != "item" else "user"}
    if options["data.item_column"] == "user":
        options["data.user_column"] = "time"
    with pytest.raises(AssertionError):
        prepared(tmp_path, rows, **options, **changes)
    error = capsys.readouterr().err
    assert (named in error, error.count("\n")) == (True, 1), error


def test_a_dataset_with_kinds_is_extended_by_one_with_the_same_first_kinds(tmp_path: Path, capsys: Capture) -> None:
    old = prepared(tmp_path, LOG)
    more = [Row("c", "p", 3, "gift"), *LOG, *(Row("c", item, at, "buy") for at, item in enumerate("pqr", 4))]
    new = prepared(tmp_path, more, **{"data.extends": old, "data.dataset_dir": tmp_path / "new"})
    assert [*check_dataset(new)["events"]] == ["", "view", "buy", "cart", "gift"]
    with pytest.raises(AssertionError):
        prepared(tmp_path, more, **{"data.extends": old, "data.event_column": "", "data.dataset_dir": tmp_path / "x"})
    assert "--data.event_column" in capsys.readouterr().err
