"""The same input gives the same dataset, wherever it lies; a failure is one line without secrets, and leaves none."""

import gzip
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import preprocessing
from bert4rec.config.recognition import Format
from bert4rec.config.tables import Data
from bert4rec.sources.progress import LINE, Progress
from bert4rec.sources.remote import copy_remote, local_files, readable
from bert4rec.sources.tables import FIRST_ROWS, TableFile, typed_rows
from tests.checks import Capture, one_line
from tests.conftest import long
from tests.folders import contents, id_table
from tests.sources.storage import BROKEN, CLOSED, WHOLE, Storage

TABLE = b"user,item\na,1\nb,2\n"


def copied(url: str, folder: Path, columns: list[str] | None = None) -> dict[str, tuple[Path, int]]:
    """Of each address where its copy is, and how many rows that has."""
    found: dict[str, tuple[Path, int]] = {}
    for path, name, n_rows in copy_remote(url, folder, None if columns is None else lambda first, address: columns):
        found[name] = (path, found.get(name, (path, 0))[1] + n_rows)
    return found


LONG = b"".join(b"%d,%d\n" % (row, row * row) for row in range(200_000))
TEXTS: list[tuple[str, bytes, bytes]] = [  # scheme, content, lines of the copy
    ("s3", TABLE, TABLE), ("gs", TABLE[:-1], TABLE), ("http", TABLE.replace(b"\n", b"\r\n"), TABLE),
    ("s3", gzip.compress(TABLE, mtime=0), TABLE), ("gs", pa.compress(TABLE, codec="zstd", asbytes=True), TABLE),
    *[("http", text, text) for text in (b'\xef\xbb\xbfuser\n\n"a\nb"\n\n', "user,é ☃\n".encode(), b"", LONG)],
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "content", "lines"), TEXTS)
def test_text_is_copied_by_lines(storage: Storage, tmp_path: Path, scheme: str, content: bytes, lines: bytes) -> None:
    storage.write("texts/log.csv", content)
    url = f"{storage.http}/texts/log.csv" if scheme == "http" else f"{scheme}://texts/log.csv"
    ((name, (path, n_rows)),) = copied(url, tmp_path).items()
    assert (name, path.read_bytes(), n_rows) == (url, lines, lines.count(b"\n"))


def table_of(n_rows: int) -> pl.DataFrame:
    """A column of every type that a field may have, and others."""
    number = pl.int_range(n_rows, eager=True).alias("number")
    return pl.DataFrame(
        {
            "user": number.cast(pl.String), "item": (number * 7 % 100).cast(pl.UInt16),
            "kind": (number % 3).cast(pl.String).cast(pl.Categorical),
            "at": (number * 1000).cast(pl.Datetime("ms", "UTC")), "stars": (number % 9).cast(pl.Float32) / 2,
            "price": number.cast(pl.Decimal(12, 2)), "tags": [["x"]] * n_rows, "note": ["long text " * 9] * n_rows,
        },
        schema_overrides={"tags": pl.List(pl.String), "note": pl.String},
    )  # fmt: skip


FIELDS = ["at", "user", "item", "kind", "stars", "price"]


@pytest.mark.parametrize("n_rows", [0, FIRST_ROWS, FIRST_ROWS + 1, 12_000])
@pytest.mark.parametrize(("name", "kind"), [("log.parquet", "parquet"), ("log.feather", "arrow file")])
def test_a_table_has_the_same_values_and_types(
    storage: Storage, tmp_path: Path, name: str, kind: Format, n_rows: int
) -> None:
    whole, table = storage.write(f"tables/{name}", b""), table_of(n_rows)
    table.write_parquet(whole, row_group_size=3_000) if kind == "parquet" else table.write_ipc(whole)
    ((path, n_copied),) = copied(f"s3://tables/{name}", tmp_path, FIELDS).values()
    assert (n_copied, TableFile(path, "arrow stream").columns) == (n_rows, TableFile(whole, kind).columns)
    fields = {name: name for name in FIELDS}
    rows = [frame.drop(LINE) for frame, _ in typed_rows(path, "arrow stream", fields)]
    expected = table.select(FIELDS).with_columns(pl.col("kind").cast(pl.String))
    assert_frame_equal(pl.concat([expected.clear(), *rows]), expected)


def test_only_the_needed_columns_of_a_table_travel(storage: Storage, tmp_path: Path) -> None:
    noise = pl.int_range(300_000, eager=True).hash().alias("noise")
    whole = storage.write("tables/wide.parquet", b"")
    frame = pl.DataFrame({"user": noise % 1000, "item": noise % 77, "a": noise, "b": noise.reverse(), "c": noise + 1})
    frame.write_parquet(whole, row_group_size=10_000)
    n_before = len(storage.sent)
    ((_, n_rows),) = copied("s3://tables/wide.parquet", tmp_path, ["user", "item"]).values()
    assert n_rows == 300_000
    assert sum(storage.sent[n_before:]) < 0.3 * whole.stat().st_size
    ((path, n_rows),) = copied("s3://tables/wide.parquet", tmp_path, ["user", "sku"]).values()  # which it lacks
    assert (n_rows, [*TableFile(path, "arrow stream").columns]) == (FIRST_ROWS, frame.columns)


def test_a_copy_is_named_after_its_address(storage: Storage, tmp_path: Path) -> None:
    for key, query, copy in (
        ("a[1].csv", "?X-Amz-Signature=5ec2e7", "a[1].csv"),  # of the web: no pattern; the query is sent but not shown
        (f"{'a' * 240}.csv", "", f"{'a' * 56}.csv"),  # too long for a file of this machine
    ):
        storage.write(f"texts/{key}", TABLE)
        url = f"{storage.http}/texts/{key}"
        ((name, (path, _)),) = copied(url + query, tmp_path).items()
        assert (name, path.name) == (url, f"000000-{copy}")


ANSWERS = [
    "s3://b/log.xlsx",  # before anything travels
    *[f"{place}/none.csv" for place in ("s3://open", "gs://open", "{http}/open")], "s3://none/*.csv",
    "s3://open/none*.csv", "s3://open/none*.parquet", f"s3://{CLOSED}/log.csv", f"gs://{CLOSED}/*.parquet",
    "{http}/" + CLOSED + "/log.csv", long("{http}/" + BROKEN + "/log.csv"), long(f"s3://{BROKEN}/log.parquet"),
    "{http}/" + WHOLE + "/log.parquet", "s3://open/latin.csv", "s3://open/text.parquet", "s3://open/text.feather",
]  # fmt: skip


@pytest.mark.parametrize("url", ANSWERS)
def test_what_the_server_answers_is_one_line(storage: Storage, tmp_path: Path, url: str) -> None:
    frame = pl.DataFrame({"user": range(9), "item": range(9)})
    for bucket in (BROKEN, WHOLE):
        frame.write_csv(storage.write(f"{bucket}/log.csv", b""))
        frame.write_parquet(storage.write(f"{bucket}/log.parquet", b""))
    for name, text in (("latin.csv", "é,1\n".encode("latin-1")), ("text.parquet", TABLE), ("text.feather", TABLE)):
        storage.write(f"open/{name}", text)
    url = url.format(http=storage.http)
    with one_line(f"{url}: "):
        list(copy_remote(url, tmp_path, lambda first, address: ["user", "item"]))


RAISED = [  # as Polars raises them where no server of this test can say so
    (OSError("performing token request: Error performing GET http://169.254.169.254/x in 1ms"), "gs://b/x.csv"),
    (OSError("HTTP status client error (401 Unauthorized) for url (https://huggingface.co/x)"), "hf://datasets/u/r/x.csv"),
    (OSError("HTTP error: error sending request (location: x.csv?sig=5ec2e7) (path: http://ann:5ec2e7@h:1)\n\n"
             "Caused by:\n    0: client error (Connect)\n    2: Connection refused (os error 111)"), "http://h:1/x.csv"),
    (pl.exceptions.ComputeError("error sending request for url (https://huggingface.co/x?sig=5ec2e7)"),
     "hf://datasets/u/r/x.parquet"),
    (pl.exceptions.ComputeError('error decoding response: expected value, response value: {"error":"no"}'),
     "hf://datasets/u/r/x.csv"),
    (OSError("Server returned error response: status code: 503 Service Unavailable"), "https://h/x.csv"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "url"), RAISED)
def test_what_other_servers_answer_is_one_line_without_secrets(error: Exception, url: str) -> None:
    kind = "parquet" if url.endswith("parquet") else None
    secret = url.replace("http://h:1/x.csv", "http://ann:5ec2e7@h:1/x.csv?sig=5ec2e7")
    with one_line(f"{url}: ") as caught, readable(secret, kind):
        raise error
    assert "5ec2e7" not in str(caught.value)


def test_data_and_titles_are_copied_and_named_by_their_addresses(storage: Storage, tmp_path: Path) -> None:
    storage.write("here/log.csv", TABLE)
    storage.write("here/titles.csv", b"item,title\n1,x\n")
    titles = f"{storage.http}/here/titles.csv"
    data = Data(source="table", path="s3://here/log.csv", titles_path=f"{titles}?sig=5ec2e7", item_column="item")
    with local_files(data, tmp_path / "copies", Progress()) as local:
        copies = [tmp_path / "copies/path/000000-log.csv", tmp_path / "copies/titles_path/000000-titles.csv"]
        assert [local.data.path, local.data.titles_path] == [str(path) for path in copies]
        assert [path.read_bytes() for path in copies] == [TABLE, b"item,title\n1,x\n"]
        assert local.named(f"{copies[0]}, line 2; {copies[1]}") == f"s3://here/log.csv, line 2; {titles}"
    data = Data(source="table", path="s3://nowhere/log.csv", user_column="item", item_column="item")
    with one_line("--user, --item"), local_files(data, tmp_path / "none", Progress()):  # before anything travels
        pass


def test_a_pattern_becomes_a_pattern_of_the_copies_alone(storage: Storage, tmp_path: Path) -> None:
    for name in ("b", "a"):
        storage.write(f"here/part-{name}.csv", TABLE)
    folder = tmp_path / "[1]*"
    folder.mkdir()
    (folder / "000002-other.csv").touch()
    with local_files(Data(source="table", path="s3://here/part-*.csv"), folder / "copies", Progress()) as local:
        assert local.data.path == f"{tmp_path}/[[]1][*]/copies/path/*"
        assert local.named(f"{local.data.path}: empty") == "s3://here/part-*.csv: empty"
        assert [*local.names.values()][:2] == ["s3://here/part-a.csv", "s3://here/part-b.csv"]


SETTINGS = ["--preprocessing.n_eval_negatives=1", "--preprocessing.validation_users=all", "--model.max_len=6"]


def run(target: Path, *arguments: str) -> int:
    return preprocessing.main(["--config=/dev/null", f"--data.dataset_dir={target}", *SETTINGS, *arguments])


def assert_same_everywhere(storage: Storage, key: str, *arguments: str) -> dict[str, bytes]:
    """The datasets from the file itself, by HTTP, S3 and Google Cloud Storage; return what they hold."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        assert run(place / "here", f"--data.path={storage.folder / key}", *arguments) == 0
        expected = contents(place / "here")
        http = [] if "*" in key else [f"{storage.http}/{key}?sig=5ec2e7"]
        for number, url in enumerate([*http, f"s3://{key}", f"gs://{key}"]):
            assert run(place / f"{number}", f"--data.path={url}", *arguments) == 0
            assert contents(place / f"{number}") == expected
            shown = url.partition("?")[0]
            origin = json.loads((place / f"{number}/metadata.json").read_text())["created_from"]
            assert {*origin} == {"source", "name", "path_sha256"}
            assert (origin["source"], origin["name"]) == ("sequences" if "txt" in key else "table", shown)
    return {name: value for name, value in expected.items() if name not in ("metadata.json", "README.md")}


def test_the_same_rows_give_the_same_folder_in_every_format(storage: Storage) -> None:
    rows = [(user, item, 10**9, 4.0, "x") for user in (8, 9, 3) for item in ("a", "é", "7", "a")]
    rows += [(3, "é", 10**9 + 1, 0.5, "one, two"), (1, "7", 10**9 - 1, 5.0, "☃")]
    frame = pl.DataFrame(rows, schema=["customer", "sku", "created_at", "stars", "title"], orient="row")
    made = []
    for suffix, kind in (("csv", "csv"), ("parquet", "parquet"), ("jsonl", "ndjson"), ("feather", "ipc")):
        getattr(frame, f"write_{kind}")(storage.write(f"same/log.{suffix}", b""))
        made.append(assert_same_everywhere(storage, f"same/log.{suffix}", "--rating=stars"))
    assert made == made[:1] * 4


def test_sequences_and_titles_are_read_from_elsewhere(storage: Storage, tmp_path: Path) -> None:
    storage.write("seq/log.txt", b"1 5 6 7 8\r\n2 6 5 9\n3 7 8 5")
    storage.write("seq/titles.csv", "item,title\n5,Amélie\n".encode())
    options = ["--data.source=sequences", "--data.titles_path=s3://seq/titles.csv"]
    assert_same_everywhere(storage, "seq/log.txt", *options)
    assert run(tmp_path / "log", "--data.path=s3://seq/log.txt", *options) == 0
    items = id_table(tmp_path / "log", "items")
    assert items.filter(pl.col("title").is_not_null()).select("original", "title").rows() == [(5, "Amélie")]


@pytest.mark.long
def test_many_rows_with_few_times_keep_the_order_of_their_files(storage: Storage) -> None:
    number = pl.int_range(20_000, eager=True)
    frame = pl.DataFrame({"user": number * 7 % 500, "item": number * number % 97, "at": 10**9 + number % 2})
    for at, part in zip((2, 10, 1), frame.iter_slices(9_000), strict=True):
        own = part.with_columns(pl.lit(1).alias(f"only in {at}"))
        own.write_csv(storage.write(f"many/part-{at}.csv", b""))
        own.write_parquet(storage.write(f"many/part-{at}.parquet", b""), row_group_size=2_000)
    for suffix in ("csv", "parquet"):
        storage.write(f"many/other.{suffix}", b"no part")
        assert_same_everywhere(storage, f"many/part-*.{suffix}", "--data.source=table", "--data.time_column=at")


def test_bad_rows_are_named_by_the_address_and_the_line(storage: Storage, tmp_path: Path, capsys: Capture) -> None:
    rows = [f"{user},{item}" for user in "abcd" for item in range(5)]
    storage.write("bad/log.csv", "\n".join(["user,item", *rows[:9], "no item", *rows[9:]]).encode())
    url = f"{storage.http}/bad/log.csv"
    assert run(tmp_path / "dataset", f"--data.path={url}?sig=5ec2e7") == 0
    out = capsys.readouterr().out
    assert f"unusable: {url}, line 11: " in out
    assert "5ec2e7" not in out + (tmp_path / "dataset/metadata.json").read_text()
    for place, path in ((f"{url}, line 11", url), (none := "s3://open/none.csv", none)):
        assert run(tmp_path / "none", f"--data.path={path}", "--preprocessing.max_bad_rows=0") == 2
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert [error.startswith(f"error: {place}: ") for error in errors] == [True]
        assert [path.name for path in tmp_path.iterdir()] == ["dataset"]


def test_a_preparation_that_is_stopped_while_it_fetches_leaves_nothing_behind(storage: Storage, tmp_path: Path) -> None:
    storage.write("long/log.csv", b"user,item\n" + b"1,2\n" * 10_000_000)
    # Tests in the background ignore the signal, and so do their children; this one must not.
    heed = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heed}; runpy.run_path({preprocessing.__file__!r}, run_name='__main__')"
    settings = ["--config=/dev/null", f"--data.dataset_dir={tmp_path / 'dataset'}", "--data.path=s3://long/log.csv"]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while not any(path.stat().st_size for path in tmp_path.rglob("000000-log.csv")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert (process.returncode, list(tmp_path.iterdir())) == (130, [])
