"""Logs of many shapes, prepared without an option: the right columns, or one line that says what to type."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bert4rec.__main__ import main
from bert4rec.dataset.reader import read_metadata
from tests.fixture_types import Capture, Patch
from tests.terminal import on_terminal

ROOT = Path(__file__).parents[2]
N = 120  # rows
USERS = [f"u{row % 12}" for row in range(N)]
ITEMS = [f"i{(row * 7 + row // 12) % 30}" for row in range(N)]
TITLES = [f"Title {item}" for item in ITEMS]
SECONDS = [1_740_787_200 + 601 * row for row in range(N)]
MOMENTS = [datetime.fromtimestamp(second, UTC) for second in SECONDS]
ISO = [moment.isoformat() for moment in MOMENTS]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


SHAPES: dict[str, tuple[dict[str, list[Any]], dict[str, str]]] = {
    "a shop's own": (
        {"customer": USERS, "sku": ITEMS, "at": ISO, "title": TITLES, "price": [9.5] * N},
        {"user": "customer", "item": "sku", "time": "at", "title": "title"},
    ),
    "MovieLens' columns under another name": (
        {"userId": USERS, "movieId": ITEMS, "rating": [4.0] * N, "ts": SECONDS, "genres": ["Drama"] * N},
        {"user": "userId", "item": "movieId", "time": "ts", "rating": "rating"},
    ),
    "Google Analytics 4 in BigQuery": (
        {
            "event_date": [f"{moment:%Y%m%d}" for moment in MOMENTS],
            "event_timestamp": [second * 1_000_000 for second in SECONDS],
            "event_name": ["view_item", "purchase"] * (N // 2), "user_pseudo_id": USERS,
            "user_id": ["" for _ in range(N)], "item_id": ITEMS, "item_name": TITLES, "ga_session_id": SECONDS,
        },
        {"user": "user_pseudo_id", "item": "item_id", "time": "event_timestamp", "title": "item_name"},
    ),
    "an export of Shopify": (
        {
            "Name": [f"#{row}" for row in range(N)], "Email": [f"{user}@example.org" for user in USERS],
            "Paid at": ISO, "Created at": ISO, "Lineitem quantity": [1] * N, "Lineitem name": TITLES,
            "Lineitem price": [3.0] * N, "Lineitem sku": ITEMS,
        },
        {"user": "Email", "item": "Lineitem sku", "time": "Created at", "title": "Lineitem name"},
    ),
    "reviews of Amazon": (
        {
            "reviewerID": USERS, "asin": ITEMS, "overall": [5.0] * N, "unixReviewTime": SECONDS,
            "reviewText": [f"text {row}" for row in range(N)],
        },
        {"user": "reviewerID", "item": "asin", "time": "unixReviewTime", "rating": "overall"},
    ),
    "Retailrocket": (
        {"timestamp": [1000 * s for s in SECONDS], "visitorid": USERS, "event": ["view"] * N, "itemid": ITEMS},
        {"user": "visitorid", "item": "itemid", "time": "timestamp"},
    ),
    "sessions without users": (
        {"session_id": USERS, "product_id": ITEMS, "created_at": ISO, "updated_at": ISO},
        {"user": "session_id", "item": "product_id", "time": "created_at"},
    ),
    "no times": ({"user": USERS, "item": ITEMS}, {"user": "user", "item": "item"}),
    "titles that differ from row to row are no titles": (
        {"user": USERS, "item": ITEMS, "title": [f"note {row}" for row in range(N)], "time": SECONDS},
        {"user": "user", "item": "item", "time": "time"},
    ),
}  # fmt: skip


def columns_of(path: str) -> dict[str, str]:
    assert main(["prepare", path, "--out=data/it", "--preprocessing.n_eval_negatives=2", "--data.replace=true"]) == 0
    columns: dict[str, str] = read_metadata(Path("data/it"))["columns"]
    return columns


@pytest.mark.parametrize("shape", SHAPES)
def test_the_columns_are_those_of_a_person(shape: str) -> None:
    table, expected = SHAPES[shape]
    pl.DataFrame(table).write_csv("log.csv")
    assert columns_of("log.csv") == expected


def test_a_folder_of_parquet_files_is_read_whole() -> None:
    frame = pl.DataFrame(SHAPES["a shop's own"][0]).with_columns(day=pl.col("at").str.head(10))
    for (day,), part in frame.group_by("day"):
        folder = Path(f"lake/day={day}")
        folder.mkdir(parents=True)
        part.drop("day").write_parquet(folder / "part-0.parquet")
    Path("lake/_SUCCESS").touch()
    columns_of("lake")
    assert read_metadata(Path("data/it"))["rows"] == N


def test_without_a_header_the_columns_count_by_their_places() -> None:
    pl.DataFrame({"u": USERS, "at": SECONDS, "i": ITEMS}).write_csv("log.csv", include_header=False)
    assert main(["prepare", "log.csv"]) == 2
    found = "--data.has_header=false"
    words = ["prepare", "log.csv", found, "--out=data/it", "--preprocessing.n_eval_negatives=2"]
    assert main(words) == 0
    assert read_metadata(Path("data/it"))["columns"] == {"user": "1", "item": "3", "time": "2"}


def test_on_a_terminal_the_answer_is_taken(place: Path) -> None:
    pl.DataFrame({"user": USERS, "artist_id": ITEMS, "track_id": ITEMS}).write_csv("log.csv")
    command = [sys.executable, str(ROOT / "preprocessing.py"), "log.csv", "--preprocessing.n_eval_negatives=2"]
    written, status = on_terminal(command, folder=place, interrupt_after="type its name: ", keys=b"track_id\n")
    assert status == 0, written
    assert read_metadata(Path("data/log"))["columns"] == {"user": "user", "item": "track_id"}


def test_ratings_that_are_often_missing_can_be_left_out(capsys: Capture) -> None:
    ratings = [None if row > 20 and row % 3 == 0 else 4 for row in range(N)]
    pl.DataFrame({"user": USERS * 10, "item": ITEMS * 10, "rating": [4] * (9 * N) + ratings}).write_csv("log.csv")
    words = ["prepare", "log.csv", "--out=data/it", "--preprocessing.n_eval_negatives=2"]
    assert main(words) == 2
    assert "--rating=" in capsys.readouterr().err
    assert main([*words, "--rating="]) == 0


def test_named_columns_win_and_an_empty_name_means_none(capsys: Capture) -> None:
    table, expected = SHAPES["a shop's own"]
    pl.DataFrame(table).write_csv("log.csv")
    words = ["--out=data/it", "--preprocessing.n_eval_negatives=2", "--time=", "--title="]
    assert main(["prepare", "log.csv", *words]) == 0
    assert read_metadata(Path("data/it"))["columns"] == {"user": expected["user"], "item": expected["item"]}
    for field in ("--user=", "--item="):  # which cannot be left out
        assert main(["prepare", "log.csv", field]) == 2
        assert capsys.readouterr().err.startswith(f"error: {field}: ")
