"""Every bad input is one line that says where, what and what to do; status 2; and no dataset."""

from pathlib import Path

import polars as pl
import pytest

import preprocessing

RATINGS = "userId,movieId,rating,timestamp\n"
TABLE = ["--data.time_column=t", "--data.rating_column=r"]


def run(tmp_path: Path, *arguments: str) -> int:
    (tmp_path / "empty.toml").write_text("")
    folder = tmp_path / "dataset"
    return preprocessing.main([f"--config={tmp_path / 'empty.toml'}", f"--data.dataset_dir={folder}", *arguments])


def assert_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], *words: str) -> None:
    before = sorted(tmp_path.iterdir())
    assert run(tmp_path, *arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]
    assert sorted({*before, tmp_path / "empty.toml"}) == sorted(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("source", "name", "content", "words"),
    [
        ("ml-100k", "u.data", "1\t2\t3\t4\n1\tx\t3\t4\n", ['u.data, line 2: item "x": must be a whole number']),
        ("ml-100k", "u.data", "1\t2\t3\t4\n1\t2\t3\n", ["u.data, line 2: time is missing"]),
        ("ml-100k", "u.data", "1\t2\t3\t4\t5\n", ["u.data, line 1: time", "must be a time: seconds"]),
        ("ml-100k", "u.data", "1\t2\t3\t4\n\n1\t2\t3\t4\n", ["u.data, line 2: user is missing"]),
        ("ml-100k", "u.data", "", ["u.data", "holds no interactions"]),
        ("ml-1m", "ratings.dat", "1::2::3::4\n1::2::good::4\n", ['line 2: rating "good": must be a number']),
        ("ml-1m", "ratings.dat", "1::2::nan::4\n", ['line 1: rating "nan"']),
        ("ml-1m", "ratings.dat", b"1::2::3::4\n1::\xff::3::4\n", ["ratings.dat: not UTF-8 text", "iconv"]),
        ("ml-1m", "ratings.csv", RATINGS, ["one file ratings.dat expected here, found: none"]),
        ("ml-25m", "ratings.csv", "", ["ratings.csv: is empty"]),
        ("ml-25m", "ratings.csv", RATINGS, ["ratings.csv: holds no interactions"]),
        ("ml-25m", "ratings.csv", "userId,movie,rating,timestamp\n1,2,3,4\n", ['no column "movieId" (item)', "movie"]),
        ("ml-25m", "ratings.csv", RATINGS + "1,2,3,4\n1,2,3,4,5\n", ["line 3 has more fields than the header"]),
        ("ml-25m", "ratings.csv", RATINGS + "1,2,3,4\n1,,3,4\n", ["line 3: movieId is missing"]),
        ("ml-25m", "ratings.csv", RATINGS.encode() + b"1,2,3,\xe9\n", ["not UTF-8 text"]),
        ("goodreads", "goodreads_interactions.csv", "user_id,book_id,rating\n1,2.5,3\n", ['line 2: book_id "2.5"']),
        ("sequences", "a.txt", "1 2\n1\n", ["a.txt, line 2: item is missing"]),
        ("sequences", "a.txt", "1 2\n1 3 4\n", ["a.txt, line 2: 3 fields", "each user once"]),
        ("sequences", "a.txt", "1 2 3\n2\n", ["a.txt, line 2: item is missing"]),
        ("table", "t.csv", "user,item,t,r\n1,2,3,4\n1,2,soon,4\n", ['line 3: t "soon": must be a time: seconds']),
        ("table", "t.csv", "user,item,t,r\n1,2,3,\n", ["line 2: r is missing"]),
        ("table", "t.csv", "user,item,t,r,x\n1,2,3,4,5\n1,2,3,4,5,6\n", ["line 3 has more fields than the header"]),
        ("table", "t.csv", "user,item,r\n1,2,3\n", ['t.csv: no column "t" (time); it has: user, item, r']),
        ("table", "t.csv", 'user,item,t,r\n1,"2,3,4\n', ["t.csv: cannot be read in this format"]),
        ("table", "t.parquet", "no parquet", ["t.parquet: cannot be read in this format"]),
    ],
)  # fmt: skip
def test_a_bad_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, name: str, content: str | bytes, words: list[str]
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    extra = TABLE if source == "table" else []
    assert_refused(tmp_path, capsys, [f"--data.source={source}", f"--data.path={tmp_path}", *extra], *words)


def test_a_parquet_file_with_a_null_or_a_wrong_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--data.source=table", f"--data.path={tmp_path}"]
    pl.DataFrame({"user": [1, None], "item": [1, 2]}).write_parquet(tmp_path / "t.parquet")
    assert_refused(tmp_path, capsys, arguments, "t.parquet, row 2: user is missing")
    pl.DataFrame({"user": [1.0], "item": [1]}).write_parquet(tmp_path / "t.parquet")
    assert_refused(tmp_path, capsys, arguments, 'column "user" has type Float64: must be a whole number or text')


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data.source=ml-1m"], ["data.path is empty"]),
        (["--data.source=ml-1m", "--data.path=no/where"], ["no/where: No such file or directory; correct data.path"]),
        (["--data.source=ml-1m", f"--data.path={'x' * 300}"], ["x: File name too long; correct data.path"]),
        (["--data.source=movielens"], ["data.source", "must be"]),
        (["--data.n_rows=10"], ["data.n_rows = 10", "it must be from 15000"]),
        (["--preprocessing.min_rating=4"], ["preprocessing.min_rating = 4", "has no ratings"]),
        (["--preprocessing.min_item_interactions=999999"], ["0 of 118942 rows", "min_item_interactions = 999999"]),
        (["--preprocessing.n_eval_negatives=1999"], ["n_eval_negatives = 1999", "the largest value that works is 18"]),
        (["--preprocessing.seeed=1"], ["preprocessing.seeed: no such key", "seed"]),
    ],
)
def test_bad_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    assert_refused(tmp_path, capsys, arguments, *words)


def test_histories_too_short_for_a_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("1 2\n1 3\n2 2\n")
    arguments = ["--data.source=sequences", f"--data.path={tmp_path / 'a.txt'}"]
    assert_refused(tmp_path, capsys, arguments, "none of the 2 users has 3 interactions")


def test_a_missing_titles_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("1 2\n1 3\n1 4\n")
    arguments = ["--data.source=sequences", f"--data.path={tmp_path / 'a.txt'}", "--data.titles_path=none.csv"]
    assert_refused(tmp_path, capsys, arguments, "none.csv: no such file; correct data.titles_path")


def test_help_and_interrupt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert preprocessing.main(["--help"]) == 0
    assert "--preprocessing.n_eval_negatives" in capsys.readouterr().out

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(preprocessing, "write_dataset", interrupted)
    assert run(tmp_path) == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.toml"]
