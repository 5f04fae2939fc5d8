"""What lies at a path is told by names and first lines; what is not known is refused with what to type."""

import gzip
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from bert4rec.config.load import load_and_recognize, parse_command_line
from bert4rec.config.source_of_path import has_sequences, recognize
from bert4rec.config.tables import GENERATED
from bert4rec.prepare.read.synthetic import GENERATORS
from bert4rec.runtime.errors import DataError, SettingsError

ROOT = Path(__file__).parents[2]
MOVIELENS = b"userId,movieId,rating,timestamp\n1,31,2.5,1260759144\n"
TABLE = b"customer,sku,at\nc1,a,5\nc2,b,6\n"
PAIRS = b"1 2\n1 3\n2 2\n"


def write(folder: Path, name: str, content: bytes) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


FOUND = [  # file, content, source, reason
    ("log.csv", TABLE, "table", "log.csv is a CSV file with the columns customer, sku, at"),
    ("LOG.CSV", TABLE, "table", "LOG.CSV is a CSV file with the columns customer, sku, at"),
    ("log.csv", b"1,2,3\n4,5,6\n", "table", "log.csv is a CSV file without a header"),
    ("log.csv", b"user|item\n1|2\n", "table", "log.csv is a CSV file"),
    ("log.tsv", b'"user"\titem\n1\t2\n', "table", "log.tsv is a TSV file with the columns user, item"),
    (
        "log.csv.gz", gzip.compress(TABLE, mtime=0), "table",
        "log.csv.gz is a CSV file with the columns customer, sku, at",
    ),
    (
        "log.csv.zst", pa.compress(TABLE, codec="zstd", asbytes=True), "table",
        "log.csv.zst is a CSV file with the columns customer, sku, at",
    ),
    ("w.csv", b"a,b,c,d,e,f,g,h,i\n", "table", "w.csv is a CSV file with the columns a, b, c, d, e, f, g, h, …"),
    ("log.parquet", b"", "table", "log.parquet is a Parquet file"),
    ("log.pq", b"", "table", "log.pq is a Parquet file"),
    ("part-0", b"PAR1\x15\x04", "table", "part-0 is a Parquet file"),
    ("log.jsonl", b"", "table", "log.jsonl is a file of JSON lines"),
    ("log.ndjson", b"", "table", "log.ndjson is a file of JSON lines"),
    ("log.jsonl.gz", b"", "table", "log.jsonl.gz is a file of JSON lines"),
    ("log.feather", b"", "table", "log.feather is a Feather file"),
    ("log.arrow", b"", "table", "log.arrow is an Arrow file"),
    ("log.ipc", b"", "table", "log.ipc is an Arrow file"),
    ("log.txt", b"user;item\na;b\n", "table", "log.txt is text with the columns user, item"),
    ("log.txt", PAIRS, "sequences", "the lines of log.txt are whole numbers with blanks between them"),
    ("a.txt", b"1 2 3 4\n2 5\n3 1 2\n", "sequences", "the lines of a.txt are whole numbers with blanks between them"),
    ("ratings.dat", b"1::1193::5::978300760\n", "ml-1m", "ratings.dat has lines of user::movie::rating::time"),
    ("u.data", b"196\t242\t3\t881250949\n", "ml-100k", "u.data has lines of user, movie, rating and time between tabs"),
    (
        "ml-25m/ratings.csv", MOVIELENS, "ml-25m",
        "ratings.csv has the columns userId, movieId, rating, timestamp, in a folder ml-25m",
    ),
    (
        "goodreads_interactions.csv", b"user_id,book_id,is_read,rating,is_reviewed\n0,948,1,5,0\n", "goodreads",
        "goodreads_interactions.csv has the columns user_id, book_id, is_read, rating, is_reviewed",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "source", "reason"), FOUND)
def test_a_file_is_known_and_so_is_the_folder_that_holds_it(
    tmp_path: Path, name: str, content: bytes, source: str, reason: str
) -> None:
    file = write(tmp_path, name, content)
    for path in (file, file.parent, file.parent / "*"):
        found = recognize(str(path))
        assert (found.source, found.reason) == (source, reason)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("ratings.csv", MOVIELENS, "a MovieLens file, but of which set? name it with --data.source=… (ml-20m, ml-25m"),
        ("log.txt", b"", "log.txt: not recognized by its name and first lines (it is empty); say what it is: --data"),
        ("log.txt", b"ann tea\nbob pen\n", '(it begins with "ann tea"); say what it is: --data.source='),
        ("log.txt", b"1,2\n3,4\n", 'log.txt: not recognized by its name and first lines (it begins with "1,2"); say'),
        ("log.txt", b"1\t2\t5\t881\n1\t3\t4\t882\n", "not recognized"),  # ratings with times are no sequences
        ("log.txt", b"1\t2\t5\t881\n2\t3\t4\t882\n", "not recognized"),  # of whatever users
        ("log.txt", b"1 2 5\n2 3\n1 4\n", "not recognized"),  # a user who comes again on long lines
        ("log.txt", b"Dear reader,\nthis is, after all, text\n", "not recognized"),
        ("log.json", b'{"user":1,"item":2}\n{"user":1,"item":3}\n', 'it begins with "{"user":1,"item":2}"'),
        ("movies.dat", b"1::Toy Story (1995)::Animation\n", "not recognized"),
        ("ratings.dat", b"1,2,3\n", "not recognized"),
        ("log.txt.gz", gzip.compress(TABLE, mtime=0)[:-20], "log.txt.gz: cannot be read: "),
        ("log.txt.gz", b"\x1f\x8b" + b"x" * 30, "log.txt.gz: cannot be read: "),
        ("log.txt.zst", b"\x28\xb5\x2f\xfd" + b"x" * 30, "log.txt.zst: cannot be read: "),
    ],
)  # fmt: skip
def test_a_file_that_is_not_known_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    file = write(tmp_path, name, content)
    with pytest.raises(DataError) as caught:
        recognize(str(file))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--data.source=" in str(caught.value) or "cannot be read" in str(caught.value)


def archive(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        for name in names:
            packed.writestr(name, "user,item\n1,2\n")
    return file.getvalue()


ZIP, WORKBOOK = archive("log.csv"), archive("docProps/app.xml", "xl/workbook.xml", "[Content_Types].xml")
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Log in, please</title></head></html>\n"
SHEET, UNPACK = (
    "is an Excel workbook, which is not read: save the sheet as CSV",
    "is a ZIP archive, which is not read: unpack",
)
UNREAD = [
    *[(name, WORKBOOK, SHEET) for name in ("log.xlsx", "log.csv", "log.txt", "log")],
    *[(name, ZIP, UNPACK) for name in ("log.csv", "log.zip", "log")],
    *[(name, PAGE, "is a web page (HTML), which is not read: ") for name in ("log.csv", "log.tsv", "log.html", "log")],
    ("log.csv.gz", gzip.compress(PAGE), "is a web page (HTML), which is not read: "),
    *[
        (name, b'[\n{"user": 1, "item": 2}]', "write one object a line (JSON lines)")
        for name in ("a.json", "a.csv", "a")
    ],
]


@pytest.mark.parametrize(("name", "content", "message"), UNREAD)
def test_a_format_that_is_not_read_is_refused_by_its_name(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    file = write(tmp_path, name, content)
    for path in (file, file.parent, file.parent / "*"):
        with pytest.raises(DataError) as caught:
            recognize(str(path))
        assert message in str(caught.value)
        assert str(caught.value).startswith(f"{file}: ")
        assert str(caught.value).isprintable()


def test_what_is_not_read_beside_a_log_is_no_trouble(tmp_path: Path) -> None:
    for name, content in {"log.csv": TABLE, "log.xlsx": WORKBOOK, "log.zip": ZIP, "page.html": PAGE}.items():
        write(tmp_path, name, content)
    assert recognize(str(tmp_path)).reason == "log.csv is a CSV file with the columns customer, sku, at"


def test_a_public_set_is_known_by_its_file_whatever_stands_beside_it(tmp_path: Path) -> None:
    for name, content in {
        "ratings.csv": MOVIELENS, "movies.csv": b"movieId,title\n", "tags.csv": b"userId,tag\n", "README.txt": b"x,y\n",
    }.items():  # fmt: skip
        write(tmp_path / "ml-latest-small", name, content)
    assert recognize(str(tmp_path / "ml-latest-small")).source == "ml-latest-small"
    (tmp_path / "mine").symlink_to(tmp_path / "ml-latest-small")
    assert recognize(str(tmp_path / "mine")).source == "ml-latest-small"


def test_a_folder_of_several_or_no_files_that_are_known_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "README.txt", b"user,item\n1,2\n")
    with pytest.raises(DataError, match=r"holds no file that is recognized; name it in data.path, and say what it is"):
        recognize(str(tmp_path))
    for name in ("a.csv", "b.csv", "c.csv", "d.csv"):
        write(tmp_path, name, TABLE)
    with pytest.raises(DataError, match=r"which of a.csv, b.csv, c.csv, …\? name it in data.path"):
        recognize(str(tmp_path))
    found = recognize(f"{tmp_path}/*.csv")
    assert found.reason == "a.csv is a CSV file with the columns customer, sku, at (the first of 4)"


def test_what_is_not_there_is_refused_with_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        recognize(str(tmp_path / "log.csv"))
    assert str(caught.value) == (
        f"{tmp_path / 'log.csv'}: No such file or directory; correct data.path, or, where only the dataset folder is "
        "on this machine, give --data.source=… as well, or --data.dataset_dir=… in its place"
    )
    with pytest.raises(DataError, match="no file fits this pattern"):
        recognize(f"{tmp_path}/*.csv")


def test_an_address_is_recognized_by_its_name_alone() -> None:
    for url, reason in (
        ("s3://nowhere/Log.CSV.gz", "Log.CSV.gz is a CSV file by its name"),
        ("gs://nowhere/logs/*.parquet", "*.parquet is a Parquet file by its name"),
        ("https://no.such.host.invalid/log.jsonl?sig=a.csv", "log.jsonl is a file of JSON lines by its name"),
    ):
        found = recognize(url)
        assert (found.source, found.reason) == ("table", reason)
    with pytest.raises(DataError) as caught:
        recognize("https://ann:pw@no.such.host.invalid/log.txt?sig=5ec2e7")
    assert str(caught.value) == (
        "https://no.such.host.invalid/log.txt: not recognized by its name; say what it is: --data.source=table "
        "(columns by their names), sequences (lines of a user and items), ml-1m, …"
    )


def test_sequences_are_told_from_ratings(tmp_path: Path) -> None:
    assert has_sequences(write(tmp_path, "ml-1m.txt", PAIRS))
    assert not has_sequences(write(tmp_path, "u.data", b"1\t2\t5\t881\n2\t3\t4\t882\n"))


def test_the_generated_sources_are_those_that_the_preparation_knows() -> None:
    assert {*GENERATED} == {*GENERATORS}


def load(tmp_path: Path, file: str, *arguments: str) -> tuple[str, str]:
    """The source and the path that apply, given the content of a settings file and the command line."""
    (tmp_path / "my.toml").write_text(file)
    config, recognized = load_and_recognize(*parse_command_line([f"--config={tmp_path / 'my.toml'}", *arguments]))
    assert recognized is None or recognized.source == config.data.source
    return config.data.source, config.data.path


def test_a_path_decides_where_no_source_was_named_for_it(tmp_path: Path) -> None:
    path = str(write(tmp_path, "log.csv", TABLE))
    in_file = f'[data]\npath = "{path}"\n'
    assert load(tmp_path, "", f"--data.path={path}") == ("table", path)
    assert load(tmp_path, '[data]\nsource = "synthetic"\n', f"--data.path={path}") == ("table", path)
    assert load(tmp_path, in_file) == ("table", path)
    assert load(tmp_path, '[data]\nsource = "ml-1m"\n', f"--data.path={path}") == ("ml-1m", path)
    assert load(tmp_path, in_file, "--data.source=sequences") == ("sequences", path)
    assert load(tmp_path, in_file, "--data.source=random", "--data.path=") == ("random", "")
    assert load(tmp_path, '[data]\nsource = "random"\npath = "x"\n', "--data.path=") == ("random", "")
    assert load(tmp_path, "") == ("synthetic", "")


def test_a_path_beside_a_generated_source_that_was_chosen_is_an_error(tmp_path: Path) -> None:
    file = '[data]\npath = "log.csv"\n'
    for content, arguments, message in [
        ("", ["--data.source=synthetic", "--data.path=log.csv"],
         '--data.source=synthetic: reads no file, but data.path = "log.csv"; leave one of them out'),
        (file, ["--data.source=random"],
         '--data.source=random: reads no file, but data.path = "log.csv"; leave one of them out (--data.path= clears '
         "the one in the file)"),
        (file + 'source = "synthetic"\n', [],
         f'{tmp_path}/my.toml: data.source = "synthetic": reads no file, but data.path = "log.csv"; set data.source to '
         "what the file is (table, ml-1m, …), or leave it out so that the file is recognized"),
        ("", ["--data.source=random", "--data.path=https://host/log.csv?sig=5ec2e7"],
         '--data.source=random: reads no file, but data.path = "https://host/log.csv"; leave one of them out'),
    ]:  # fmt: skip
        with pytest.raises(SettingsError) as caught:
            load(tmp_path, content, *arguments)
        assert str(caught.value) == message


def test_neither_polars_nor_torch_is_imported_to_recognize_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "log.csv.zst", pa.compress(TABLE, codec="zstd", asbytes=True))
    code = (
        "import sys; from bert4rec.config.load import load_config\n"
        "print(load_config(None, {'data.path': sys.argv[1]}).data.source, {'torch', 'polars'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "table set()\n"
