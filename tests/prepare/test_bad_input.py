"""Bad rows are counted and shown with their lines, and none passes; any other bad input is one line and no dataset."""

import gzip
import io
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import pyarrow as pa
import pytest

import preprocessing
from bert4rec.config.tables import Preprocessing
from bert4rec.prepare import engine, raw_rows
from bert4rec.prepare.executors import ThisProcess
from bert4rec.prepare.raw_rows import read_rows
from bert4rec.prepare.stages import Stages
from bert4rec.sources.progress import BadRows, Progress
from tests.checks import Capture, Patch, one_line
from tests.preparation import metadata_of

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


SOURCES = {  # source → file, header, form of a row, options
    "table": ("t.csv", "user,item,t,r\n", "{0},{1},{2},{3}\n", TABLE),
    "ml-100k": ("u.data", "", "{0}\t{1}\t{3}\t{2}\n", []), "ml-1m": ("ratings.dat", "", "{0}::{1}::{3}::{2}\n", []),
    "ml-25m": ("ratings.csv", "userId,movieId,rating,timestamp\n", "{0},{1},{3}.0,{2}\n", []),
    "goodreads": (
        "goodreads_interactions.csv", "user_id,book_id,is_read,rating\n", "{0},{1},1,{3}\n",
        ["--preprocessing.only_read=true"],
    ),
    "sequences": ("a.txt", "", "{0} {1}\n", []),
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


def write(place: Path, source: str, *bad: bytes, at: int = 3) -> list[str]:
    """Write the good rows of `source` with bad lines before the line `at`; return the arguments to prepare them."""
    name, header, form, options = SOURCES[source]
    lines = [line.encode() for line in (header, *(form.format(*cells) for cells in GOOD)) if line]
    (place / name).write_bytes(b"".join([*lines[:at], *bad, *lines[at:]]))
    return [f"--data.source={source}", f"--data.path={place}", *options]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    """What is written of a source without bad rows."""
    made: dict[str, dict[str, bytes]] = {}

    def get(source: str) -> dict[str, bytes]:
        if source not in made:
            folder = tmp_path_factory.mktemp(source)
            assert run(folder, *write(folder, source)) == 0
            made[source] = content_of(folder / "dataset")
        return made[source]

    return get


@pytest.mark.parametrize(("source", "line", "kind"), BAD_LINES)
def test_a_bad_line_is_refused_or_counted_and_left_out(
    tmp_path: Path, capsys: Capture, sound: Callable[[str], dict[str, bytes]], source: str, line: bytes, kind: str
) -> None:
    arguments, place = write(tmp_path, source, line), f"{tmp_path / SOURCES[source][0]}, line 4: "
    assert_refused(tmp_path, capsys, [*arguments, "--preprocessing.max_bad_rows=0"], f"error: {place}")
    assert run(tmp_path, *arguments) == 0
    assert capsys.readouterr().out.count("unusable: " + place) == 1
    metadata = metadata_of(tmp_path / "dataset")
    assert (metadata["bad_rows"], metadata["rows_read"], metadata["rows"]) == ({kind: 1}, 13, 12)
    assert content_of(tmp_path / "dataset") == sound(source)


def test_many_bad_rows_are_counted_and_the_first_ten_shown(tmp_path: Path, capsys: Capture) -> None:
    arguments = write(tmp_path, "table", *([b"1,6,soon,4\n"] * 9), *([b"\n"] * 6), at=99)
    assert_refused(tmp_path, capsys, arguments, "max_bad_rows")
    assert run(tmp_path, *arguments, "--preprocessing.max_bad_rows=0.6") == 0
    assert capsys.readouterr().out.count("unusable: " + str(tmp_path)) == 10
    assert metadata_of(tmp_path / "dataset")["bad_rows"] == {"empty line": 6, "time is not a time": 9}


@pytest.mark.parametrize(
    ("row", "is_doubted"),
    [
        (lambda u, i, t: (1, i, t), True), (lambda u, i, _: (u, i, 1_600_000_000), True),
        (lambda u, i, t: (u, i, 90_000_000_000 + t), True), (lambda u, i, t: (u, max(5, i), t), True),
        (lambda u, i, t: (u, i, int(time.time()) + 3600 - t), False),  # an hour ahead: a time zone
    ],
)  # fmt: skip
def test_a_log_that_is_probably_wrong_is_warned_of(
    tmp_path: Path, capsys: Capture, row: Callable[..., tuple[int, int, int]], is_doubted: bool
) -> None:
    lines = [",".join(map(str, row(*cells))) + "\n" for *cells, _ in GOOD]
    (tmp_path / "t.csv").write_text("".join(["user,item,t\n", *lines]))
    assert run(tmp_path, "--data.source=table", f"--data.path={tmp_path}", "--data.time_column=t") == 0
    warnings = {line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")}
    assert any("--" in line for line in warnings) == is_doubted


RATINGS = b"userId,movieId,rating,timestamp\n"
ROWS = b"user,item,t,r\n" + b"".join(b"%d,%d,3,4\n" % (line % 7, line) for line in range(5000))
PAIRS = b"1 2\n1 3\n2 2\n"
PACKED = gzip.compress(ROWS, mtime=0)


def parquet(**cells: object) -> bytes:
    """A file of two rows, the second with other `cells`, or of `ROWS`."""
    file, row = io.BytesIO(), {"user": 1, "item": 6, "t": 5, "r": 1.5}
    frame = pl.DataFrame([row, row | cells]) if cells else pl.read_csv(ROWS)
    frame.write_parquet(file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("source", "name", "content"),
    [
        ("ml-100k", "u.data", b""), ("ml-1m", "ratings.csv", RATINGS), ("ml-25m", "ratings.csv", RATINGS),
        ("ml-25m", "ratings.csv", b"userId,movie,rating,timestamp\n1,2,3,4\n"),
        ("table", "t.csv", b"user,item,r\n1,2,3\n"), ("table", "t.csv", b'user,"item,t,r\n1,2,3,4\n'),
        ("table", "t.csv", b"user,item,t,r\n" + b"\x00" * 9_000_000),
        ("table", "t.csv", b"user,item,t,r\n" + b"1,x,3,4\n2,x,4,4\n" * 3),
        ("table", "t.csv.gz", PACKED[:-20]), ("table", "t.csv.gz", PACKED[:3000] + b"x" * 99),
        ("table", "t.csv.zst", pa.compress(ROWS, codec="zstd", asbytes=True)[:900] + b"x" * 99),
        *[("table", "t.parquet", parquet()[:cut]) for cut in (4000, 9000, -30)],
        *[("table", "t.parquet", parquet(**cell)) for cell in (
            {"item": None}, {"t": None}, {"t": -1}, {"r": float("inf")})],
        ("ml-1m", "ratings.dat", PAIRS), ("ml-100k", "u.data", PAIRS), ("ml-25m", "ratings.csv", PAIRS),
        ("sequences", "a.txt", PAIRS), ("sequences", "a.txt", b"1 2\n1 3 4\n"),
    ],
)  # fmt: skip
def test_a_bad_file(tmp_path: Path, capsys: Capture, source: str, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    settings = TABLE if source == "table" else []
    assert_refused(tmp_path, capsys, [f"--data.source={source}", f"--data.path={tmp_path}", *settings])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--data.source=ml-1m", "data.path"), ("--data.source=table", "data.path"),
        ("--data.source=ml-1m --data.path=no/where", "no/where: "),
        (f"--data.source=ml-1m --data.path={'x' * 300}", "dataset: "),
        ("--data.n_rows=10", "data.n_rows = 10"), ("--preprocessing.min_rating=4", "min_rating = 4"),
        ("--preprocessing.time_from=2020-01-01", "time_from = 2020-01-01"),
        ("--preprocessing.min_item_interactions=999999 --preprocessing.time_until=2020-01-01",
            "time_until = 2020-01-01, min_item_interactions = 999999"),
        ("--preprocessing.split=time --preprocessing.split_at=2040-01-01", "split_at"),
        ("--data.extends=no/where", "data.extends"),
    ],
)  # fmt: skip
def test_bad_settings(tmp_path: Path, capsys: Capture, arguments: str, named: str) -> None:
    assert_refused(tmp_path, capsys, [*(() if "data." in arguments else SMALL), *arguments.split()], named)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--data.event_column=evnt", "--data.event_column=event"), ("--data.event_column=auto", "auto"),
        ("--data.event_column=item --item=user --user=time", "event_column"),
        ('--data.event_column=event --preprocessing.target_events=["sale"]', "sale"),
        ('--preprocessing.target_events=["kind0"]', "--data.event_column"), ("--split=time --time=", "split"),
        ("--data.source=sequences --data.path={place}/t.csv --data.order_column=line", "data.order_column = line: "),
        ("--split=leave_last_basket --time=", "split"), ("--preprocessing.ties=shuffle --time=", "ties"),
        ("--data.event_column=event --preprocessing.hide_before_target=visit --time=", "hide_before_target"),
    ],
)  # fmt: skip
def test_what_a_table_lacks_is_one_line(tmp_path: Path, capsys: Capture, options: str, named: str) -> None:
    log = "".join(f"u{n % 9},i{n},{1000 + n},kind{n % 3}\n" for n in range(150))
    (tmp_path / "t.csv").write_text("user,item,time,event\n" + log)
    words = options.format(place=tmp_path).split()
    assert_refused(tmp_path, capsys, ["--data.source=table", f"--data.path={tmp_path}", *words], named)


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: Patch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "write_metadata", interrupted)
    assert run(tmp_path, *SMALL) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["empty.toml"]


class Source:
    """A hundred bytes: of each part how many rows are bad, how many good, and how many bytes have been read."""

    n_bytes = 100

    def __init__(self, *parts: tuple[int, int, int]) -> None:
        self.bad, self._parts = BadRows(), parts

    def __iter__(self) -> Iterator[tuple[pl.DataFrame, int]]:
        for n_bad, n_good, done in self._parts:
            self.bad.add("empty line", n_bad)
            self.bad.show(Path("t.csv"), "line", 7, "is empty")
            yield pl.DataFrame({"user": [1] * n_good, "item": [1] * n_good}), done


@pytest.mark.parametrize(
    ("parts", "few", "share", "refused"),
    [
        ([(2, 3, 100), (0, 997, 100)], 0, 0.002, ""),  # two bad rows before a quote that nothing closes
        ([(10, 90, 100)], 10, 0.002, ""),  # ten rows pass, as a tenth of all
        ([(10, 90, 33), (0, 100, 66), (0, 100, 100)], 10, 0.002, ""),
        ([(3, 1000, 100)], 0, 0.002, "3 of 1,003 rows"),
        ([(50, 500, 50), (0, 75, 100), (0, 1000, 100)], 0, 0.002, "50 of 1,625 rows"),
        ([(50, 1, 30), (50, 1, 60), (50, 1, 100)], 0, 0.002, "150 of 153 rows"),  # not those of its first parts alone
        ([(50, 0, 30), (50, 0, 60), (50, 1000, 100)], 0, 0.002, "first 100 rows"),  # said at once
        ([(11, 489, 100)], 10, 0.002, "11 of 500 rows"), ([(3, 26, 100)], 10, 0.002, "3 of 29 rows"),
        ([(1, 999, 100)], 10, 0.0, "max_bad_rows = 0"),
    ],
)  # fmt: skip
def test_the_share_of_bad_rows_is_that_of_all_rows(
    tmp_path: Path, parts: list[tuple[int, int, int]], few: int, share: float, refused: str
) -> None:
    settings: Any = Preprocessing(max_bad_rows=share), None
    source: Any = Source(*parts)
    with (
        patch.object(raw_rows, "FEW_BAD_ROWS", few),
        one_line("t.csv, line 7: ", refused) if refused else nullcontext(),
    ):
        raw = read_rows(source, *settings, Stages(tmp_path, ThisProcess(), Progress()))
        assert len(raw) == sum(n_good for _, n_good, _ in parts)
