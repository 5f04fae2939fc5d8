"""Bad rows are counted and shown with their lines, and none passes; any other bad input is one line and no dataset."""

import gzip
import io
import json
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
SMALL = ["--data.n_users=60", "--data.n_items=150", "--data.n_rows=916"]


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
BAD_LINES = [  # source, line, kind
    ("table", b",6,,4\n", "user is missing"), ("table", b"1,NULL,3,4\n", "item is missing"),
    ("table", b"1,6,,4\n", "time is missing"), ("table", b"1,6,1700000000000,4\n", "time is not a time"),
    ("table", b"1,6,3,nan\n", "rating is missing"), ("table", b"1,6,3\n", "wrong number of fields"),
    ("table", b"\r\n", "empty line"), ("table", b'"user","item",t,r\r\n', "header line again"),
    ("table", b'1,"6,3,4\n', "unclosed quote"), ("table", b"1,6,3,\xe9\n", "not UTF-8"),
    ("ml-100k", b"1\t6\t\t4\n", "rating is missing"), ("ml-1m", b"1:6:3:4\n", "wrong number of fields"),
    ("ml-1m", b"1::9223372036854775808::3::4\n", "item is not a whole number"),
    ("ml-25m", b"1,6,3.0,-1\n", "time is not a time"), ("goodreads", b"1,6,2,4\n", "is_read is not 0 or 1"),
    ("goodreads", b"abc,6,1,4\n", "user is not a whole number"), ("sequences", b"1\n", "item is missing"),
    ("sequences", b"\t \n", "empty line"), ("sequences", b"1 \xff\n", "not UTF-8"),
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


@pytest.mark.parametrize(("source", "line", "kind"), BAD_LINES)
def test_a_bad_line_is_refused_or_counted_and_left_out(
    tmp_path: Path, capsys: Capture, sound: Callable[[str], dict[str, bytes]], source: str, line: bytes, kind: str
) -> None:
    name, lines, settings = SOURCES[source]
    (tmp_path / name).write_bytes(b"".join([*lines[:3], line, *lines[3:]]))
    arguments = [f"--data.source={source}", f"--data.path={tmp_path}", *settings]
    place = f"{tmp_path / name}, line 4: "
    strict = [*arguments, "--preprocessing.max_bad_rows=0"]
    assert_refused(tmp_path, capsys, strict, f"error: {place}")
    assert run(tmp_path, *arguments) == 0
    assert capsys.readouterr().out.count("unusable: " + place) == 1
    metadata = json.loads((tmp_path / "dataset" / "metadata.json").read_text())
    assert (metadata["bad_rows"], metadata["rows_read"], metadata["rows"]) == ({kind: 1}, 13, 12)
    assert content_of(tmp_path / "dataset") == sound(source)


@pytest.mark.parametrize(
    "row",
    [
        lambda u, i, t, _: (1, i, t), lambda u, i, t, _: (u, i, 1_600_000_000),
        lambda u, i, t, _: (u, i, 90_000_000_000 + t), lambda u, i, t, _: (u, i if i > 5 else 5, t),
    ],
)  # fmt: skip
def test_a_log_that_is_probably_wrong_is_warned_of(
    tmp_path: Path, capsys: Capture, row: Callable[..., tuple[int, int, int]]
) -> None:
    (tmp_path / "t.csv").write_text("user,item,t\n" + "".join(",".join(map(str, row(*cells))) + "\n" for cells in GOOD))
    assert run(tmp_path, "--data.source=table", f"--data.path={tmp_path}", "--data.time_column=t") == 0
    warnings = {line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")}
    assert any("--" in line for line in warnings)


def test_many_bad_rows_are_counted_and_the_first_ten_shown(tmp_path: Path, capsys: Capture) -> None:
    _, lines, settings = SOURCES["table"]
    (tmp_path / "t.csv").write_bytes(b"".join([*lines, *([b"1,6,soon,4\n"] * 9), *([b"\n"] * 6)]))
    arguments = ["--data.source=table", f"--data.path={tmp_path}", *settings]
    assert_refused(tmp_path, capsys, arguments, "max_bad_rows")
    assert run(tmp_path, *arguments, "--preprocessing.max_bad_rows=0.6") == 0
    assert capsys.readouterr().out.count("unusable: " + str(tmp_path)) == 10
    metadata = json.loads((tmp_path / "dataset" / "metadata.json").read_text())
    assert metadata["bad_rows"] == {"empty line": 6, "time is not a time": 9}


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
    ("source", "name", "content"),
    [
        ("ml-100k", "u.data", b""), ("ml-1m", "ratings.csv", RATINGS), ("ml-25m", "ratings.csv", RATINGS),
        ("ml-25m", "ratings.csv", b"userId,movie,rating,timestamp\n1,2,3,4\n"),
        ("table", "t.csv", b"user,item,r\n1,2,3\n"), ("table", "t.csv", b'user,"item,t,r\n1,2,3,4\n'),
        ("table", "t.csv", b"user,item,t,r\n" + b"\x00" * 9_000_000),
        ("table", "t.csv.gz", gzip.compress(ROWS, mtime=0)[:-20]),
        ("table", "t.csv.gz", gzip.compress(ROWS, mtime=0)[:3000] + b"x" * 99),
        ("table", "t.csv.zst", pa.compress(ROWS, codec="zstd", asbytes=True)[:900] + b"x" * 99),
        *[("table", "t.parquet", PARQUET[:cut]) for cut in (4000, 9000, -30)],
        *[("table", "t.parquet", parquet(**cell)) for cell in (
            {"item": None}, {"t": None}, {"t": -1}, {"r": float("inf")})],
        ("table", "t.csv", b"user,item,t,r\n" + b"1,x,3,4\n2,x,4,4\n" * 3),
        *[
            (source, name, b"1 2\n1 3\n2 2\n")
            for source, name in (("ml-1m", "ratings.dat"), ("ml-100k", "u.data"), ("ml-25m", "ratings.csv"))
        ],
        ("sequences", "a.txt", b"1 2\n1 3\n2 2\n"), ("sequences", "a.txt", b"1 2\n1 3 4\n"),
    ],
)  # fmt: skip
def test_a_bad_file(tmp_path: Path, capsys: Capture, source: str, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    settings = [*TABLE, "--preprocessing.memory_gb=1"] if source == "table" else []
    assert_refused(tmp_path, capsys, [f"--data.source={source}", f"--data.path={tmp_path}", *settings])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--data.source=ml-1m"], "data.path"), (["--data.source=table"], "data.path"),
        (["--data.source=ml-1m", "--data.path=no/where"], "no/where: "),
        (["--data.source=ml-1m", f"--data.path={'x' * 300}"], "dataset: "),
        (["--data.source=movielens"], "data.source"),
        (["--data.n_rows=10"], "data.n_rows = 10"), (["--preprocessing.min_rating=4"], "min_rating = 4"),
        ([*SMALL, "--preprocessing.time_from=2020-01-01"], "time_from = 2020-01-01"),
        (
            [*SMALL, "--preprocessing.min_item_interactions=999999", "--preprocessing.time_until=2020-01-01"],
            "time_until = 2020-01-01, min_item_interactions = 999999",
        ),
        (["--preprocessing.n_eval_negatives=0"], "n_eval_negatives=0"), (["--preprocessing.seeed=1"], ".seed?"),
        (["--preprocessing.split=time", "--preprocessing.split_at=2040-01-01"], "split_at"),
        (["--data.extends=no/where"], "data.extends"),
    ],
)  # fmt: skip
def test_bad_settings(tmp_path: Path, capsys: Capture, arguments: list[str], named: str) -> None:
    assert_refused(tmp_path, capsys, arguments, named)


def test_help_and_interrupt(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        preprocessing.main(["--help-all"])
    assert "--preprocessing.n_eval_negatives" in capsys.readouterr().out

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "write_metadata", interrupted)
    assert run(tmp_path, *SMALL) == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.toml"]
