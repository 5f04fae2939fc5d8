"""A path or an address is recognized by names and first bytes, or refused with what to type."""

import gzip
import io
import pickle
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from bert4rec.config.addresses import check_url, is_url, without_secrets
from bert4rec.config.load import load_and_recognize, parse_command_line
from bert4rec.config.recognition import fetched_kind, format_of, recognize, what_is
from bert4rec.config.sources import GENERATED
from bert4rec.config.tables import Data, Preprocessing
from bert4rec.runtime.errors import DataError, SettingsError
from bert4rec.sources.interactions import open_interactions
from bert4rec.sources.synthetic import GENERATORS
from tests.checks import one_line

MOVIELENS = b"userId,movieId,rating,timestamp\n1,31,2.5,1260759144\n"
TABLE = b"customer,sku,at\nc1,a,5\nc2,b,6\n"
PAIRS = b"1 2\n1 3\n2 2\n"


Content = bytes | Callable[[Path], None]


def write(folder: Path, name: str, content: Content) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content) if isinstance(content, bytes) else content(file)
    return file


FOUND = [  # file, content, source
    ("log.csv", TABLE, "table"), ("LOG.CSV", TABLE, "table"), ("log.csv", b"1,2,3\n4,5,6\n", "table"),
    ("log.csv", b"user|item\n1|2\n", "table"), ("log.tsv", b'"user"\titem\n1\t2\n', "table"),
    ("log.csv.gz", gzip.compress(TABLE, mtime=0), "table"), ("w.csv", b"a,b,c,d,e,f,g,h,i\n", "table"),
    ("log.csv.zst", pa.compress(TABLE, codec="zstd", asbytes=True), "table"), ("part-0", b"PAR1\x15\x04", "table"),
    *[(f"log.{suffix}", b"", "table") for suffix in ("parquet", "pq", "jsonl", "ndjson", "jsonl.gz", "feather")],
    *[(f"log.{suffix}", b"", "table") for suffix in ("arrow", "ipc")], ("log.txt", b"user;item\na;b\n", "table"),
    ("log.txt", PAIRS, "sequences"), ("a.txt", b"1 2 3 4\n2 5\n3 1 2\n", "sequences"),
    ("ratings.dat", b"1::1193::5::978300760\n", "ml-1m"), ("u.data", b"196\t242\t3\t881250949\n", "ml-100k"),
    ("shop/ratings.csv", MOVIELENS, "table"), ("ml-25m/ratings.csv", MOVIELENS, "ml-25m"),
    ("goodreads_interactions.csv", b"user_id,book_id,is_read,rating\n0,948,1,5\n", "goodreads"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "source"), FOUND)
def test_a_file_is_recognized_and_so_is_the_folder_that_holds_it(
    tmp_path: Path, name: str, content: bytes, source: str
) -> None:
    file = write(tmp_path, name, content)
    for path in (file, file.parent, file.parent / "*"):
        found = recognize(str(path))
        assert (found.source, file.name in found.reason) == (source, True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("log.txt", b""), ("log.txt", b"ann tea\nbob pen\n"), ("log.txt", b"1,2\n3,4\n"),
        ("log.txt", b"1\t2\t5\t881\n2\t3\t4\t882\n"),  # ratings with times are no sequences
        ("log.txt", b"1 2 5\n2 3\n1 4\n"),  # a user who comes again on long lines
        ("log.txt", b"Dear reader,\nthis is, after all, text\n"), ("ratings.dat", b"1,2,3\n"),
        ("log.json", b'{"user":1,"item":2}\n{"user":1,"item":3}\n'), ("log.txt.gz", b"\x1f\x8b" + b"x" * 30),
        ("movies.dat", b"1::Toy Story (1995)::Animation\n"), ("log.txt.zst", b"\x28\xb5\x2f\xfd" + b"x" * 30),
        ("log.txt.gz", gzip.compress(TABLE, mtime=0)[:-20]),
    ],
)  # fmt: skip
def test_a_file_that_is_not_recognized_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    file = write(tmp_path, name, content)
    with one_line(f"{file}: "):
        recognize(str(file))


def archive(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        for name in names:
            packed.writestr(name, "user,item\n1,2\n")
    return file.getvalue()


def database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table log (user, item)")


ZIP, WORKBOOK = archive("log.csv"), archive("docProps/app.xml", "xl/workbook.xml", "[Content_Types].xml")
SHEETS = archive("content.xml").replace(b"content.xml", b"mimetypeapplication/vnd.oasis.opendocument.spreadsheet", 1)
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Log in, please</title></head></html>\n"
ARRAY, OLD_WORKBOOK = b'[\n {"user": 1, "item": 2}\n]', b"\xd0\xcf\x11\xe0 "
TOO = True  # a file that is not said to be a table is refused, too
UNREAD = [  # files, content; whether the name or the content alone tell it
    (["log.csv", "log.zip", "log"], ZIP, TOO), (["log.csv", "log.tsv", "log.html", "log"], PAGE, TOO),
    (["log.csv.gz"], gzip.compress(PAGE, mtime=0), TOO), (["a.json", "a.csv", "a", "a.txt"], ARRAY, TOO),
    (["log.xlsx", "log.csv", "log"], WORKBOOK, False), (["log.xlsx"], ZIP, False), (["log.xls"], OLD_WORKBOOK, False),
    (["log.db", "log.bin"], database, False), (["log.pickle", "log.dat"], pickle.dumps(TABLE), False),
    (["log.h5"], b"\x89HDF\r\n\x1a\n", False), (["log.feather"], b"FEA1 ", False),
    (["log.csv.bz2"], b"BZh9", False), (["log.csv.xz"], b"x", False), (["log.jsonl"], ARRAY, False),
    (["log.json"], b'{\n"user": [1],\n"item": [2]\n}\n', False),
    (["log.json.gz"], gzip.compress(ARRAY, mtime=0), False),
    (["log.parquet.gz"], gzip.compress(b"PAR1 ", mtime=0), False),
    (["t.feather", "t.arrow"], b"user,item\n1,2\n", False), (["t.arrow"], b"", False),
]  # fmt: skip


@pytest.mark.parametrize(("names", "content", "is_recognized"), UNREAD)
def test_a_format_that_is_not_read_is_refused(
    tmp_path: Path, names: list[str], content: Content, is_recognized: bool
) -> None:
    for name in names:
        file = write(tmp_path / name.replace(".", "-"), name, content)
        for path in (file, file.parent, file.parent / "*") if is_recognized else ():
            with one_line(f"{file}: "):
                recognize(str(path))
        with one_line(f"{file}: "):
            format_of(file)


@pytest.mark.parametrize(
    ("names", "content", "kind"),
    [
        (["log.xlsx", "log.csv", "log.txt", "log"], WORKBOOK, "workbook"), (["log.xlsx"], ZIP, "workbook"),
        (["log.ods", "log"], SHEETS, "workbook"), (["log.xls", "log"], OLD_WORKBOOK, "workbook"),
        (["log.xlsx"], b"", "workbook"), (["log.db", "log.bin"], database, "database"),
        (["lake/_delta_log/0.json", "ice/metadata/v1.metadata.json"], b"{}", "lake"),
        (["log.xlsx", "log.db", "log.csv"], TABLE, ""), (["log.csv", "log"], ZIP, ""),
    ],
)  # fmt: skip
def test_what_is_copied_before_it_is_read_is_known_by_its_first_bytes(
    tmp_path: Path, names: list[str], content: Content, kind: str
) -> None:
    for file in (write(tmp_path, name, content) for name in names):
        place = file.parents[1] if kind == "lake" else file
        assert fetched_kind(str(place)) == kind
        if kind:
            assert recognize(str(place)).source == "table"


def test_of_a_folder_the_one_file_with_data_is_read_or_a_public_set(tmp_path: Path) -> None:
    logs, public = tmp_path / "logs", tmp_path / "ml-latest-small"
    for name, content in (("README.txt", b"x,y\n1,2\n"), ("log.xlsx", WORKBOOK), ("log.zip", ZIP), ("page.html", PAGE)):
        write(logs, name, content)
    with one_line("", "data.path"):
        recognize(str(write(tmp_path / "none", "README.txt", b"user,item\n1,2\n").parent))
    write(logs, "a.csv", TABLE)
    assert recognize(str(logs)).reason.startswith("a.csv ")
    write(logs, "b.csv", TABLE)
    with one_line(f"{logs}: ", "a.csv", "b.csv"):
        recognize(str(logs))
    assert recognize(f"{logs}/*.csv").source == "table"
    others = [("movies.csv", b"movieId,title\n"), ("tags.csv", b"userId,tag\n"), ("README.txt", b"x,y\n")]
    for name, content in (("ratings.csv", MOVIELENS), *others):
        write(public, name, content)
    (tmp_path / "mine").symlink_to(public)
    assert {recognize(str(path)).source for path in (public, tmp_path / "mine")} == {"ml-latest-small"}


def test_a_path_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(f'[data]\npath = "{tmp_path / "log.csv"}"\n')
    with one_line(f"{tmp_path / 'log.csv'}: ", "data.path"):
        load_and_recognize(str(tmp_path / "my.toml"))
    for path in (f"{tmp_path}/logs/a.csv", f"{tmp_path}/*.csv"):
        with one_line(f"{path}: "):
            recognize(path)


@pytest.mark.parametrize("typed", ["ratngs.csv", "Ratings.csv", "ratings", "ratings.csv.gz"])
def test_a_mistyped_name_gets_the_nearest_one(tmp_path: Path, typed: str) -> None:
    for name in ("ratings.csv", "zebra.txt"):
        write(tmp_path, name, TABLE)
    for find in (recognize, lambda path: open_interactions(Data(source="table", path=path), Preprocessing())):
        with one_line(f"{tmp_path / typed}: ", f"{tmp_path / 'ratings.csv'}?"):
            find(str(tmp_path / typed))


def test_a_dataset_that_does_not_exist_gets_those_that_do(tmp_path: Path) -> None:
    for name in ("log/metadata.json", "shop/metadata.json", "run/environment.json", "run/items/metadata.json"):
        write(tmp_path, name, b"{}")
    for typed, end in (("nosuch", ": log, shop"), ("shopp", f"{tmp_path / 'shop'}?"), ("run", "a run")):
        assert what_is(tmp_path / typed).endswith(end)


def test_an_address_is_recognized_by_its_name_alone() -> None:
    for url, name in (
        ("s3://nowhere/Log.CSV.gz", "Log.CSV.gz"), ("gs://nowhere/logs/*.parquet", "*.parquet"),
        ("https://no.such.host.invalid/log.jsonl?sig=a.csv", "log.jsonl"),
    ):  # fmt: skip
        assert (recognize(url).source, recognize(url).reason.split()[0]) == ("table", name)
    with pytest.raises(DataError, match=r"^https://no\.such\.host\.invalid/log\.txt: .*--data\.source="):
        recognize("https://ann:pw@no.such.host.invalid/log.txt?sig=5ec2e7")


def test_the_generated_sources_are_those_that_the_preparation_knows() -> None:
    assert {*GENERATED} == {*GENERATORS}


BOTH = "--data.source=random --data.path="


@pytest.mark.parametrize(
    ("content", "words", "source"),
    [
        ("", "--data.path=log.csv", "table"), ('source = "synthetic"', "--data.path=log.csv", "table"),
        ('path = "log.csv"', "", "table"), ('source = "ml-1m"', "--data.path=log.csv", "ml-1m"),
        ('path = "log.csv"', "--data.source=sequences", "sequences"), ("", "", "synthetic"),
        ('path = "log.csv"', BOTH, "random"), ('source = "random"\npath = "x"', "--data.path=", "random"),
        ("", f"{BOTH}log.csv", None), ("", f"{BOTH}https://host/log.csv?sig=5ec2e7", None),
        ('path = "log.csv"', "--data.source=random", None), ('path = "log.csv"\nsource = "synthetic"', "", None),
    ],
)  # fmt: skip
def test_a_path_decides_where_no_source_was_named_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, words: str, source: str | None
) -> None:
    monkeypatch.chdir(write(tmp_path, "log.csv", TABLE).parent)
    write(tmp_path, "my.toml", f"[data]\n{content}\n".encode())
    settings = parse_command_line(["--config=my.toml", *words.split()])
    if source is None:  # a generated source is named beside a path
        with one_line("", "data.source", error=SettingsError) as caught:
            load_and_recognize(*settings)
        assert "5ec2e7" not in str(caught.value)
        return
    config, recognized = load_and_recognize(*settings)
    assert config.data.source == source
    assert recognized is None or recognized.source == source


@pytest.mark.parametrize(
    "url",
    [
        "s3://b/log.csv", "gs://b/a/*.csv", "hf://datasets/u/r@main/x.parquet", "https://h/a?b", "s3://b/table/",
        "postgresql://", "postgres://ann@h:5432/shop?options=a@b", "snowflake://ann:$PW@account/db",
        "grpc+tls://h:443", "postgresql://h:5432,g:5432/shop?user=ann&password=$PW",
    ],
)  # fmt: skip
def test_an_address_that_is_read_stays_as_it_is(url: str) -> None:
    assert (is_url(url), check_url(url)) == (True, url)


@pytest.mark.parametrize("path", ["", "log.csv", "/a/b:c", "a//b", "logs/*.csv", "https:/h/a", "://x"])
def test_a_path_is_no_address(path: str) -> None:
    assert (is_url(path), check_url(path), without_secrets(path)) == (False, path, path)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("ftp://h/log.csv", "ftp://"), ("S3://b/log.csv", "S3://"), ("https://h/logs/*.csv", "https://"),
        ("s3://bucket", "file"), ("https://host/logs/", "file"), ("https://host", "file"), ("s3://bucket/", "file"),
        ("mysql://h/shop", "mysql://.*postgresql://.*driver"),
        *[(f"postgresql://{login}", "password") for login in (
            "ann:pw@h/shop", "ann:p/w@h/shop", "ann:p@w@h", "h/shop?user=a&password=pw",
            "h/shop?sslpassword=pw", ":pw@h", "ann:1234@h/shop", "ann:12:3@h/shop", "ann:$@h/shop")],
    ],
)  # fmt: skip
def test_an_address_that_cannot_be_read_is_refused(url: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        check_url(url)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://h/log.csv?X-Amz-Signature=1f&a=b", "https://h/log.csv"),
        ("http://h:80/my log.csv#part", "http://h:80/my log.csv"),
        ("https://ann:p%40ss@h/a@b.csv", "https://h/a@b.csv"),
        ("s3://key:secret@bucket/log?.csv", "s3://bucket/log?.csv"),
        ("hf://datasets/u/r@main/x.csv", "hf://datasets/u/r@main/x.csv"),
        ("--data.path=https://h/a.csv?sig=1", "--data.path=https://h/a.csv"),
        ("postgresql://ann:p@ss@h-1.b:5432,[::1]/shop?password=x@y", "postgresql://h-1.b:5432,[::1]/shop"),
        ("postgresql://ann:p/w@h/shop", "postgresql://…"),
        ("postgresql://ann:p?w@h/shop", "postgresql://…"),
        ("--data.path=snowflake://ann:pw@account/db", "--data.path=snowflake://account/db"),
    ],
)
def test_neither_a_login_nor_a_signature_is_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize("path", ["shop.db", "/logs/shop.db"])
def test_the_address_of_a_file_is_its_path(path: str) -> None:
    assert check_url(f"sqlite:///{path}") == path
