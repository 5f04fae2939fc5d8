"""Bad rows are counted and shown with their lines, and none passes; any other bad input is one line and no dataset."""

import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import preprocessing
from bert4rec.prepare import engine
from tests.checks import Capture

TABLE = ["--data.time_column=t", "--data.rating_column=r"]
GOOD = [(user, item, 100 * user + item, 1 + item % 5) for user in (1, 2, 3) for item in (6, 2 + user, 7, 8)]
SETTINGS = ["--preprocessing.n_eval_negatives=1", "--preprocessing.validation_users=1"]


def run(tmp_path: Path, *arguments: str, folder: str = "dataset") -> int:
    (tmp_path / "empty.toml").write_text("")
    target = f"--data.dataset_dir={tmp_path / folder}"
    return preprocessing.main([f"--config={tmp_path / 'empty.toml'}", target, *SETTINGS, *arguments])


def assert_refused(tmp_path: Path, capsys: Capture, arguments: list[str], *words: str) -> None:
    before = sorted(tmp_path.iterdir())
    assert run(tmp_path, *arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), lines[0][:7]) == (1, "error: ")
    assert [word for word in words if word not in lines[0]] == [], lines
    assert sorted({*before, tmp_path / "empty.toml"}) == sorted(tmp_path.iterdir())


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("metadata.json", "README.md")
    }


def lines_of(separator: str, header: str, row: Callable[..., tuple[object, ...]] = lambda *cells: cells) -> list[bytes]:
    rows = [separator.join(str(cell) for cell in row(*cells)) for cells in GOOD]
    return [line.encode() + b"\n" for line in [header] * bool(header) + rows]


SOURCES: dict[str, tuple[str, list[bytes], list[str]]] = {
    "table": ("t.csv", lines_of(",", "user,item,t,r"), TABLE),
    "ml-100k": ("u.data", lines_of("\t", "", lambda u, i, t, r: (u, i, r, t)), []),
    "ml-1m": ("ratings.dat", lines_of("::", "", lambda u, i, t, r: (u, i, r, t)), []),
    "ml-25m": (
        "ratings.csv", lines_of(",", "userId,movieId,rating,timestamp", lambda u, i, t, r: (u, i, f"{r}.0", t)), [],
    ),
    "goodreads": (
        "goodreads_interactions.csv",
        lines_of(",", "user_id,book_id,is_read,rating", lambda u, i, t, r: (u, i, 1, r)),
        ["--preprocessing.only_read=true"],
    ),
    "sequences": ("a.txt", lines_of(" ", "", lambda u, i, t, r: (u, i)), []),
}  # fmt: skip
BAD_LINES: list[tuple[str, bytes, str, str]] = [  # source, line, kind, what the message names
    ("table", b",6,,4\n", "user is missing", "user"), ("table", b"1,NULL,3,4\n", "item is missing", 'item "NULL"'),
    ("table", b"1,6,,4\n", "time is missing", "t is"),
    ("table", b"1,6,1700000000000,4\n", "time is not a time", "milliseconds"),
    ("table", b"1,6,3,nan\n", "rating is missing", 'r "nan"'),
    ("table", b"1,6,3\n", "wrong number of fields", "3 fields; 4"),
    ("table", b"\r\n", "empty line", "4 fields"),
    ("table", b'"user","item",t,r\r\n', "header line again", "header"),
    ("table", b'1,"6,3,4\n', "unclosed quote", '(")'), ("table", b"1,6,3,\xe9\n", "not UTF-8", "UTF-8"),
    ("ml-100k", b"1\t6\t\t4\n", "rating is missing", "rating"),
    ("ml-1m", b"1::9223372036854775808::3::4\n", "item is not a whole number", "item"),
    ("ml-1m", b"1:6:3:4\n", "wrong number of fields", "1 field; 4"),
    ("ml-25m", b"1,6,3.0,-1\n", "time is not a time", 'timestamp "-1"'),
    ("goodreads", b"1,6,2,4\n", "is_read is not 0 or 1", 'is_read "2"'),
    ("goodreads", b"abc,6,1,4\n", "user is not a whole number", 'user_id "abc"'),
    ("sequences", b"1\n", "item is missing", "item"), ("sequences", b"\t \n", "empty line", "empty"),
    ("sequences", b"1 \xff\n", "not UTF-8", "UTF-8"),
]  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    """What is written of a source without bad rows."""
    made: dict[str, dict[str, bytes]] = {}

    def get(source: str) -> dict[str, bytes]:
        if source not in made:
            folder = tmp_path_factory.mktemp(source)
            name, lines, settings = SOURCES[source]
            (folder / name).write_bytes(b"".join(lines))
            assert run(folder, f"--data.source={source}", f"--data.path={folder}", *settings) == 0
            made[source] = content_of(folder / "dataset")
        return made[source]

    return get


@pytest.mark.parametrize(("source", "line", "kind", "message"), BAD_LINES)
def test_a_bad_line_is_refused_or_counted_and_left_out(
    tmp_path: Path, capsys: Capture, sound: Callable[[str], dict[str, bytes]], source: str,
    line: bytes, kind: str, message: str,
) -> None:  # fmt: skip
    name, lines, settings = SOURCES[source]
    (tmp_path / name).write_bytes(b"".join([*lines[:3], line, *lines[3:]]))
    arguments = [f"--data.source={source}", f"--data.path={tmp_path}", *settings]
    place = f"{tmp_path / name}, line 4: "
    strict = [*arguments, "--preprocessing.max_bad_rows=0"]
    assert_refused(tmp_path, capsys, strict, f"error: {place}", message)
    assert run(tmp_path, *arguments) == 0
    (shown,) = [text for text in capsys.readouterr().out.splitlines() if "unusable: " + place in text]
    assert message in shown
    metadata = json.loads((tmp_path / "dataset" / "metadata.json").read_text())
    assert (metadata["bad_rows"], metadata["rows_read"], metadata["rows"]) == ({kind: 1}, 13, 12)
    assert content_of(tmp_path / "dataset") == sound(source)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (lambda u, i, t, _: (1, i, t), "12 rows"),
        (lambda u, i, t, _: (u, i, 1_600_000_000), "2020-09-13T12:26:40Z"),
        (lambda u, i, t, _: (u, i, 90_000_000_000 + t), "--preprocessing.time_until"),
        (lambda u, i, t, _: (u, i if i > 5 else 5, t), "3 users"),
    ],
)
def test_a_log_that_is_probably_wrong_is_warned_of(
    tmp_path: Path, capsys: Capture, row: Callable[..., tuple[int, int, int]], words: str
) -> None:
    (tmp_path / "t.csv").write_text("user,item,t\n" + "".join(",".join(map(str, row(*cells))) + "\n" for cells in GOOD))
    assert run(tmp_path, "--data.source=table", f"--data.path={tmp_path}", "--data.time_column=t") == 0
    warnings = {line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")}
    assert ["--" in line for line in warnings if words in line] == [True]


def test_many_bad_rows_are_counted_and_the_first_ten_shown(tmp_path: Path, capsys: Capture) -> None:
    _, lines, settings = SOURCES["table"]
    (tmp_path / "t.csv").write_bytes(b"".join([*lines, *([b"1,6,soon,4\n"] * 9), *([b"\n"] * 6)]))
    arguments = ["--data.source=table", f"--data.path={tmp_path}", *settings]
    assert_refused(tmp_path, capsys, arguments, "15 of 27 rows")
    assert run(tmp_path, *arguments, "--preprocessing.max_bad_rows=0.6") == 0
    printed = capsys.readouterr().out
    assert printed.count("unusable: " + str(tmp_path)) == 10
    card = (tmp_path / "dataset" / "README.md").read_text()
    for kind, n in (("empty line", 6), ("time is not a time", 9)):
        assert re.search(rf"{kind} +-{n}\n", printed)
        assert re.search(rf"{kind} +-{n}\n", card)


RATINGS = b"userId,movieId,rating,timestamp\n"
ROWS = b"user,item,t,r\n" + b"".join(b"%d,%d,3,4\n" % (line % 7, line) for line in range(5000))


def parquet(**cells: object) -> bytes:
    """A file of two rows, the second with other `cells`, or of `ROWS`."""
    file, row = io.BytesIO(), {"user": 1, "item": 6, "t": 5, "r": 1.5}
    frame = pl.DataFrame([row, row | cells]) if cells else pl.read_csv(ROWS)
    frame.write_parquet(file)
    return file.getvalue()


PARQUET = parquet()


@pytest.mark.parametrize(
    ("source", "name", "content", "message"),
    [
        ("ml-100k", "u.data", b"", ""), ("ml-1m", "ratings.csv", RATINGS, "ratings.dat"),
        ("ml-25m", "ratings.csv", b"", "ratings.csv: "), ("ml-25m", "ratings.csv", RATINGS, ""),
        ("ml-25m", "ratings.csv", b"userId,movie,rating,timestamp\n1,2,3,4\n", '"movieId" (item)'),
        ("table", "t.csv", b"user,item,r\n1,2,3\n", 't.csv: no column "t" (time)'),
        ("table", "t.csv", b'user,"item,t,r\n1,2,3,4\n', "t.csv, line 1: "),
        ("table", "t.csv", "user,item,t,r\n".encode("utf-16"), "UTF-16"),
        ("table", "t.csv", b"user,item,t,r\n" + b"\x00" * 9_000_000, "t.csv: is not text"),
        ("table", "t.csv.gz", gzip.compress(ROWS, mtime=0)[:-20], "t.csv.gz: damaged"),
        ("table", "t.csv.gz", gzip.compress(ROWS, mtime=0)[:3000] + b"x" * 99, "t.csv.gz: damaged"),
        ("table", "t.csv.zst", pa.compress(ROWS, codec="zstd", asbytes=True)[:900] + b"x" * 99, "damaged"),
        ("table", "t.parquet", b"no parquet", "t.parquet: "),
        ("table", "t.parquet", b"PAR1" + b"x" * 99, "t.parquet: "),
        *[("table", "t.parquet", PARQUET[:cut], "t.parquet: ") for cut in (4000, 9000, -30)],
        ("table", "t.parquet", parquet(item=None), "t.parquet, row 2: item"),
        ("table", "t.parquet", parquet(t=None), "t.parquet, row 2: t "),
        ("table", "t.parquet", parquet(t=-1), 't.parquet, row 2: t "-1"'),
        ("table", "t.parquet", parquet(r=float("inf")), 't.parquet, row 2: r "inf"'),
        ("table", "t.csv", b"user,item,t,r\n" + b"1,x,3,4\n2,x,4,4\n" * 3, '"x" … --item='),
        *[
            (source, name, b"1 2\n1 3\n2 2\n", f"{name}: … --data.source=sequences")
            for source, name in (("ml-1m", "ratings.dat"), ("ml-100k", "u.data"), ("ml-25m", "ratings.csv"))
        ],
        ("sequences", "a.txt", b"1 2\n1 3\n2 2\n", "none of the 2 users"),
        ("sequences", "a.txt", b"1 2\n1 3 4\n", "a.txt, line 2: "),
    ],
)  # fmt: skip
def test_a_bad_file(tmp_path: Path, capsys: Capture, source: str, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    settings = [*TABLE, "--preprocessing.memory_gb=1"] if source == "table" else []
    arguments = [f"--data.source={source}", f"--data.path={tmp_path}", *settings]
    assert_refused(tmp_path, capsys, arguments, *message.split(" … "))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data.source=ml-1m"], ["data.path", "bert4rec prepare ml-1m"]),
        (["--data.source=table"], ["data.path"]),
        (["--data.source=ml-1m", "--data.path=no/where"], ["no/where: no such file"]),
        (["--data.source=ml-1m", f"--data.path={'x' * 300}"], ["File name too long"]),
        (["--data.source=movielens"], ["data.source", '"ml-1m", "ml-32m"']),
        (["--data.n_rows=10"], ["data.n_rows = 10", "15000"]),
        (["--preprocessing.min_rating=4"], ["preprocessing.min_rating = 4"]),
        (["--preprocessing.time_from=2020-01-01"], ["118942", "time_from = 2020-01-01"]),
        (
            ["--preprocessing.min_item_interactions=999999", "--preprocessing.time_until=2020-01-01"],
            ["118942 rows and 3000 users ", "time_until = 2020-01-01, min_item_interactions = 999999"],
        ),
        (["--preprocessing.n_eval_negatives=0"], ["--preprocessing.n_eval_negatives=0"]),
        (["--preprocessing.seeed=1"], ["--preprocessing.seeed", "--preprocessing.seed?"]),
        (["--preprocessing.split=time", "--preprocessing.split_at=2040-01-01"], ["split_at"]),
        (["--data.extends=no/where"], ["no/where", "data.extends"]),
    ],
)
def test_bad_settings(tmp_path: Path, capsys: Capture, arguments: list[str], words: list[str]) -> None:
    assert_refused(tmp_path, capsys, arguments, *words)


def test_help_and_interrupt(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        preprocessing.main(["--help-all"])
    assert "--preprocessing.n_eval_negatives" in capsys.readouterr().out

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "write_metadata", interrupted)
    assert run(tmp_path) == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.toml"]
