"""Lines with any separator, with typed headers, of baskets; files that are empty or no text."""

import csv
import gzip
import io
import os
import tarfile
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.config.first_lines import infer_separator
from bert4rec.config.recognition import recognize
from bert4rec.config.tables import Data, Preprocessing
from bert4rec.sources.first_look import first_look
from bert4rec.sources.interactions import Interactions, open_interactions
from tests.checks import one_line

ROWS = {"user": [0, 0, 1, 2], "item": [10, 11, 10, 12], "time": [5, 7, 9, 11]}
LINES = [("user", "item", "time"), *zip(*ROWS.values(), strict=True)]


def opened(path: Path | str, **options: Any) -> Interactions:
    source = recognize(str(path)).source
    return open_interactions(Data(source=source, path=str(path)).model_copy(update=options), Preprocessing())  # type: ignore[arg-type]


def content(interactions: Interactions) -> dict[str, list[Any]]:
    return pl.concat([rows for rows, _ in interactions]).to_dict(as_series=False)


@pytest.mark.parametrize("separator", ["\t", "::", ";", "|", ",", " ", "    "])
def test_a_log_may_have_any_separator(tmp_path: Path, separator: str) -> None:
    for name, end in product(("log.csv", "log.txt", "log.csv.gz"), ("\n", "\r\n")):
        text = "".join(separator.join(map(str, line)) + end for line in LINES).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
        found = opened(tmp_path / name)
        assert (content(found), found.bad.total) == (ROWS, 0)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (' user   item  time\n    0 "a  b"     5\n    0     c\t   7 \n1 "x ""y"" z" 9\n',
         [(0, "a  b", 5), (0, "c", 7), (1, 'x "y" z', 9)]),
        ("user item price time\n0 10  5\n0 11 3 7\n", [(0, 10, 5), (0, 11, 7)]),  # a single blank: an empty field
        ("user,item:token,time\n1,2,3\n", [(1, 2, 3)]),  # a colon in some names is a part of them
    ],
)  # fmt: skip
def test_blanks_align_columns_or_separate_empty_fields(tmp_path: Path, text: str, rows: list[tuple[Any, ...]]) -> None:
    for end in ("\n", "\r\n"):
        (tmp_path / "log.txt").write_text(text.replace("\n", end), newline="")
        assert [*zip(*content(opened(tmp_path / "log.txt", rating_column="")).values(), strict=True)] == rows


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        ("user;item;price\n1;2;3,5\n1;3;2,5\n", ";"), ("1;2;3,5\n1;3;2,5\n", ";"),
        ('user,item,title\n1,2,"a;b;c;d"\n1,3,"e;f;g;h"\n', ","),
        ("user,item,tags\n1,2,a|b|c|d\n1,3,e|f\n", ","), ("user\titem\ttitle\n1\t2\ta, b, c, d\n1\t3\tx\n", "\t"),
        ("user id,item id,at\n1,2,2026-01-01 10:00\n1,3,2026-01-01 11:00\n", ","),
        ('"Smith, Ann and Co, Ltd, Inc";item\na;1\nb;2\n', ";"), ("user, item, at\n1, 2, 3\n1, 4, 5\n", ","),
        ("user:id::item::at\n1::2::3\n", "::"), ("item\na\nb\n", ","), ("", ","), ("one two\n", ","),
    ],
)  # fmt: skip
def test_the_separator_is_the_one_that_fits_the_lines(text: str, separator: str) -> None:
    assert infer_separator(text) == separator


@given(
    st.sampled_from("\t;|,"),
    st.lists(st.tuples(st.integers(0), st.text("ab\t;|, \n\"'", max_size=9), st.floats(0, 9)), min_size=2, max_size=30),
)
def test_what_a_csv_writer_writes_has_its_separator(separator: str, rows: list[tuple[Any, ...]]) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=separator, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerows(
        [("user", "item", "time"), *rows]
    )
    assert infer_separator(text.getvalue()) == separator


def test_the_types_after_names_are_no_part_of_them(tmp_path: Path) -> None:
    header = "user_id:token\titem_id:token\ttimestamp:float\ttags:token_seq\n"
    rows = "".join(f"{user}\t{item}\t{time}.0\ta b\n" for user, item, time in LINES[1:])
    for suffix in ("inter", "csv"):
        (tmp_path / f"log.{suffix}").write_text(header + rows + header)
        found = opened(tmp_path / f"log.{suffix}")
        assert (content(found), found.bad.counts) == (ROWS, {"header line again": 1})
        assert found.columns == {"user": "user_id", "item": "item_id", "time": "timestamp"}


BASKETS = {
    "baskets.dat": "2000 108 109\n2001 110\n2002 108 119 130\n", "a.txt": "30 31 32\n33 34 35\n8 38\n",
    "b.txt": "1 2 3\n4\n1 5 6 7\n", "retail.dat": "0 1 2\n1 3 4 5\n", "c.csv": "7 8 9\n7 1\n3 2\n",
    "d.txt": "5 6 7\n5 6\n",
}  # fmt: skip


@pytest.mark.parametrize(("name", "text"), BASKETS.items())
def test_lines_that_may_have_no_user_are_asked_for(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    for path in (tmp_path / name, tmp_path, tmp_path / "*"):
        with one_line(f"{tmp_path / name}: ", "--data.source="):
            recognize(str(path))
    data = Data(source="baskets", path=str(tmp_path / name))
    lines = [[*map(int, line.split())] for line in text.splitlines()]
    found = open_interactions(data, Preprocessing())
    expected = [(user, item) for user, items in enumerate(lines, 1) for item in items]
    assert [*zip(*content(found).values(), strict=True)] == expected
    found.check(len(lines))


def test_users_that_are_numbered_line_by_line_need_no_word(tmp_path: Path) -> None:
    for text in ("1 8 9 10\n2 8 7\n3 5 6\n", "0 0 1 2\n1 3\n2 1\n", "1 2\n1 3\n2 2\n", "7 2\n3 1\n7 1\n"):
        (tmp_path / "log.txt").write_text(text)
        assert recognize(str(tmp_path / "log.txt")).source == "sequences"


@pytest.mark.parametrize("text", [b"", b"\n \n", b"user,item,time\n", b"user,item,time", b"\xef\xbb\xbf"])
def test_files_without_rows_are_skipped_and_said(tmp_path: Path, text: bytes) -> None:
    for name in ("a.csv", "c.csv"):
        (tmp_path / name).write_bytes(text)
    (tmp_path / "b.csv").write_text("user,item,time\n0,10,5\n0,11,7\n")
    (tmp_path / "d.csv").write_text("user,item,time\n1,10,9\n2,12,11\n")
    found = opened(tmp_path / "*.csv")
    assert (content(found), found.bad.total) == (ROWS, 0)
    (warning,) = (line for line in first_look(found)[1] if "a.csv" in line)
    assert ("b.csv" in warning, "c.csv" in warning) == (False, True)
    for name in ("b.csv", "d.csv"):
        (tmp_path / name).write_bytes(text)
    for path in (tmp_path / "*.csv", tmp_path / "a.csv"):
        with one_line(f"{path}: "):
            opened(path)


def packed() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("log.csv"))
    return file.getvalue()


CSV = "".join(",".join(map(str, line)) + "\n" for line in LINES * 20)
NO_TEXT = {
    "png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\1\0", "random": os.urandom(5000), "tar": packed(),
    "damaged": b"xx" + gzip.compress(CSV.encode())[2:], "packed": gzip.compress(os.urandom(5000)),
    "nul": b"user,it\0em\n1,2\n", "escape": b"us\x1b[2Jer,item\n1,2\n",
    "utf-16": CSV.encode("utf-16"), "utf-16-be": CSV.encode("utf-16-be"), "utf-16-le": CSV.encode("utf-16-le"),
    "utf-16 packed": pa.compress(CSV.encode("utf-16"), codec="zstd", asbytes=True),
}  # fmt: skip


@pytest.mark.parametrize("kind", NO_TEXT)
def test_what_is_no_text_is_said_to_be_none(tmp_path: Path, kind: str) -> None:
    for name in ("log.csv", "log.jsonl", "ratings.dat", "log.csv.gz"):
        (tmp_path / name).write_bytes(NO_TEXT[kind])
        with one_line(f"{tmp_path / name}: ", "iconv" if "utf" in kind else "is not text"):
            opened(tmp_path / name)


def test_text_with_the_name_of_a_workbook_is_text(tmp_path: Path) -> None:
    (tmp_path / "log.xlsx").write_text(CSV)
    with one_line(f"{tmp_path / 'log.xlsx'}: ", "log.csv"):
        opened(tmp_path / "log.xlsx")
