"""Files of recommendations, read back."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bert4rec.inference.files.recommendations import writer
from bert4rec.inference.recommender import Recommendation
from bert4rec.runtime.errors import DataError

PARTS = [
    [("u", [Recommendation("a", "Alien, the", 2.5), Recommendation("b", "", 1.25)])],
    [("v", []), ("w", [Recommendation("a", "Alien, the", -0.5)])],
]


def write(path: Path) -> None:
    with writer(path) as to:
        for part in PARTS:
            to(part)


def test_json_lines(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl")
    assert [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()] == [
        {"user": "u", "items": ["a", "b"], "titles": ["Alien, the", ""], "scores": [2.5, 1.25]},
        {"user": "v", "items": [], "scores": []},
        {"user": "w", "items": ["a"], "titles": ["Alien, the"], "scores": [-0.5]},
    ]


def test_csv(tmp_path: Path) -> None:
    write(tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text() == (
        'user,rank,item,title,score\nu,1,a,"Alien, the",2.500000\nu,2,b,,1.250000\nw,1,a,"Alien, the",-0.500000\n'
    )


def test_parquet(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet").to_pylist() == [
        {"user": "u", "rank": 1, "item": "a", "title": "Alien, the", "score": 2.5},
        {"user": "u", "rank": 2, "item": "b", "title": "", "score": 1.25},
        {"user": "w", "rank": 1, "item": "a", "title": "Alien, the", "score": -0.5},
    ]


def fail_in_the_middle(path: Path) -> None:
    with writer(path) as to:
        to(PARTS[0])
        raise ZeroDivisionError


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.parquet"])
def test_a_file_is_whole_or_as_it_was(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("before")
    with pytest.raises(ZeroDivisionError):
        fail_in_the_middle(tmp_path / name)
    assert (tmp_path / name).read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_form_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x.xlsx: its name must end in .jsonl, .csv, .parquet$"):
        write(tmp_path / "x.xlsx")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"/no/x.csv: cannot be written: No such file"):
        write(tmp_path / "no" / "x.csv")
