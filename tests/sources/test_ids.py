"""One id is one id, however a program wrote it: a log and its untidy copies give the same bytes."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert4rec.dataset.findings import findings
from bert4rec.dataset.ids import NO_IDS, OUTER_BLANKS, canonical, canonical_value
from bert4rec.dataset.reader import read_metadata
from bert4rec.sources.ids import canonical_ids, ids_like, numbers_or_text
from tests.checks import Capture
from tests.prepare.test_bad_input import assert_refused, content_of, run

BLANK = st.text(st.sampled_from(OUTER_BLANKS), max_size=3)
CORE = st.one_of(
    st.text(), st.sampled_from(sorted(NO_IDS)), st.sampled_from(["7", "-12", "0", "007", "7.5", "1.10", "e\u0301"]),
    st.from_regex(r"-?[0-9]{1,20}\.?0{0,3}", fullmatch=True),
)  # fmt: skip
TEXT = st.builds(lambda before, core, upper, after: before + (core.upper() if upper else core) + after,
                 BLANK, CORE, st.booleans(), BLANK)  # fmt: skip


@settings(deadline=None, max_examples=50)
@given(st.lists(TEXT))
@example(["7.00", "-3.0", "-0.0", "0.0", "07.0", "7.", "\ufeffa", "a\u200b", "a b", "\n", "N/A\r"])
def test_a_column_has_the_ids_that_its_values_have_one_by_one(texts: list[str]) -> None:
    expected = [canonical(text) for text in texts]
    column = pl.Series(texts, dtype=pl.String)
    assert canonical_ids(column).to_list() == expected
    assert [None if value is None else str(value) for value in numbers_or_text(column)] == expected
    for is_number, dtype in ((True, pl.Int64()), (False, pl.String())):
        values = [canonical_value(text, is_number=is_number) for text in texts]
        assert ids_like(column, dtype).to_list() == values
    assert [text and canonical(text) for text in expected] == expected


@pytest.mark.parametrize(
    ("value", "number", "text"),
    [
        (7, 7, "7"), (7.0, 7, "7"), ("7.0", 7, "7"), (" 7 ", 7, "7"), (np.int32(7), 7, "7"), (np.float32(7), 7, "7"),
        (Decimal("7.00"), 7, "7"), (2**63 - 1, 2**63 - 1, str(2**63 - 1)), (-(2**63), -(2**63), str(-(2**63))),
        (2**63, None, str(2**63)), (7.5, None, "7.5"), ("007", None, "007"), ("+7", None, "+7"), ("1e3", None, "1e3"),
        (1e22, None, "1" + 22 * "0"), ("1,234", None, "1,234"), ("C1", None, "C1"), (None, None, None),
        (float("nan"), None, None), ("NULL", None, None), ("\u00a0", None, None), ("e\u0301", None, "\u00e9"),
    ],
)  # fmt: skip
def test_the_id_of_a_value_of_any_type(value: Any, number: int | None, text: str | None) -> None:
    assert canonical_value(value, is_number=True) == number
    assert canonical_value(value, is_number=False) == text


ROWS = [
    (user, item, 1_700_000_000 + 100 * user + place) for user in range(4) for place, item in enumerate(range(user, 8))
]


def write(path: Path, row: Callable[..., str], header: str = "user,item,time") -> Path:
    path.write_text("\n".join([header, *(row(*cells) for cells in ROWS)]) + "\n")
    return path


def plain(user: int, item: int, at: int) -> str:
    return f"{user},{item},{at}"


@pytest.mark.parametrize("is_text", [False, True])
def test_days_of_which_one_has_decimals_are_one_log(tmp_path: Path, is_text: bool) -> None:
    more = "9,x,1800000000\n" if is_text else ""
    days = [ROWS[: len(ROWS) // 2], ROWS[len(ROWS) // 2 :]]
    made = []
    for folder, forms in (("clean", (plain, plain)), ("mixed", (lambda u, i, t: f"{u}.0,{i}.0,{t}", plain))):
        (tmp_path / folder).mkdir()
        for number, (day, row) in enumerate(zip(days, forms, strict=True)):
            lines = "".join(f"{row(*cells)}\n" for cells in day)
            (tmp_path / folder / f"{number}.csv").write_text(f"user,item,time\n{lines}{more * number}")
        first, both = f"{folder}-first", f"--data.path={tmp_path / folder}/*.csv"
        assert run(tmp_path, f"--data.path={tmp_path / folder}/0.csv", folder=first) == 0
        assert run(tmp_path, both, f"--data.extends={tmp_path / first}", folder=f"{folder}-data") == 0
        assert run(tmp_path, both, folder=f"{folder}-whole") == 0
        made.append([content_of(tmp_path / f"{folder}-{name}") for name in ("data", "whole")])
    assert made[0] == made[1]


NUMBERS = [pl.Series([7.0, 8.0]), pl.Series([7, 8], dtype=pl.UInt8), pl.Series(["7", "8.0"], dtype=pl.Categorical),
           pl.Series([Decimal("7.00"), Decimal("8.00")]), pl.Series([" 7", "8"])]  # fmt: skip


@pytest.mark.parametrize("ids", NUMBERS)
def test_ids_of_every_type_are_the_same_numbers(ids: pl.Series) -> None:
    found = numbers_or_text(ids)
    assert (found.dtype, found.to_list()) == (pl.Int64, [7, 8])


@pytest.mark.parametrize("word", ["", "NA", "\u00a0"])
def test_guests_are_left_out_and_many_are_refused(tmp_path: Path, capsys: Capture, word: str) -> None:
    clean = write(tmp_path / "clean.csv", plain)
    guests = tmp_path / "guests.csv"
    guests.write_text(clean.read_text() + f"{word},1,1700000000\n" * 20)
    assert run(tmp_path, f"--data.path={clean}", folder="clean") == 0
    named = [f"--data.path={guests}", "--data.user_column=user"]
    assert run(tmp_path, *named) == 0
    assert content_of(tmp_path / "dataset") == content_of(tmp_path / "clean")
    found = read_metadata(tmp_path / "dataset")
    assert (found["guests"], found["rows_read"], found["bad_rows"]) == (20, len(ROWS) + 20, {})
    guests.write_text(guests.read_text() + f"{word},1,1700000000\n" * 30)
    (tmp_path / "dataset").rename(tmp_path / "before")
    capsys.readouterr()
    assert_refused(tmp_path, capsys, named, "--preprocessing.max_guests")
    assert run(tmp_path, *named, "--preprocessing.max_guests=1") == 0
    assert content_of(tmp_path / "dataset") == content_of(tmp_path / "clean")


def test_ids_that_differ_in_letter_case_alone_are_said(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", lambda u, i, t: f"{'cC'[u % 2]}{u // 2},p{i},{t}")
    assert run(tmp_path, f"--data.path={path}") == 0
    (found,) = [finding for finding in findings(read_metadata(tmp_path / "dataset")) if finding.name == "letter case"]
    assert ("4 users" in found.text, "items" in found.text) == (True, False)


@pytest.mark.parametrize("has_times", [True, False])
def test_a_log_of_the_new_day_alone_does_not_extend_a_dataset(tmp_path: Path, capsys: Capture, has_times: bool) -> None:
    for day, n_items in enumerate((7, 3)):
        places = [(user, item) for user in range(6) for item in range(n_items)]
        rows = [(f"u{user}", f"i{item + 2 * day}", 1_700_000_000 + 86_400 * day + item) for user, item in places]
        lines = [",".join(map(str, row[: 2 + has_times])) for row in [("user", "item", "time"), *rows]]
        (tmp_path / f"day{day}.csv").write_text("\n".join(lines) + "\n")
    assert run(tmp_path, f"--data.path={tmp_path}/day0.csv", folder="old") == 0
    extends = f"--data.extends={tmp_path / 'old'}"
    new = [f"--data.path={tmp_path}/day1.csv", extends]
    assert_refused(tmp_path, capsys, new, "--data.path='day*.csv'", "--data.accept_lost_rows=true")
    assert run(tmp_path, *new, "--data.accept_lost_rows=true", folder="accepted") == 0
    assert run(tmp_path, f"--data.path={tmp_path}/day*.csv", extends) == 0
