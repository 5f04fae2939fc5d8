"""The same input gives the same dataset, wherever it lies; what goes wrong leaves none."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

import preprocessing
from tests.checks import Capture
from tests.folders import contents
from tests.sources.storage import Storage

ROOT = Path(preprocessing.__file__).parent
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
    frame = pl.DataFrame(rows, schema=["user", "item", "at", "stars", "name"], orient="row")
    options = ["--data.source=table", "--data.time_column=at", "--data.rating_column=stars", "--data.title_column=name"]
    made = []
    for suffix, kind in (("csv", "csv"), ("parquet", "parquet"), ("jsonl", "ndjson"), ("feather", "ipc")):
        getattr(frame, f"write_{kind}")(storage.write(f"same/log.{suffix}", b""))
        made.append(assert_same_everywhere(storage, f"same/log.{suffix}", *options))
    assert made == made[:1] * 4


def test_sequences_and_titles_are_read_from_elsewhere(storage: Storage, tmp_path: Path) -> None:
    storage.write("seq/log.txt", b"1 5 6 7 8\r\n2 6 5 9\n3 7 8 5")
    storage.write("seq/titles.csv", "item,title\n5,Amélie\n".encode())
    options = ["--data.source=sequences", "--data.titles_path=s3://seq/titles.csv"]
    assert_same_everywhere(storage, "seq/log.txt", *options)
    assert run(tmp_path / "log", "--data.path=s3://seq/log.txt", *options) == 0
    items = pl.read_parquet(tmp_path / "log/items.parquet")
    assert items.filter(pl.col("title").is_not_null()).select("original", "title").rows() == [(5, "Amélie")]


def test_many_rows_with_few_times_keep_the_order_of_their_files(storage: Storage) -> None:
    number = pl.int_range(20_000, eager=True)
    frame = pl.DataFrame({"user": number * 7 % 500, "item": number * number % 97, "at": 10**9 + number % 2})
    for at, part in enumerate(frame.iter_slices(9_000)):
        part.write_csv(storage.write(f"many/part-{at}.csv", b""))
        part.write_parquet(storage.write(f"many/part-{at}.parquet", b""), row_group_size=2_000)
    for suffix in ("csv", "parquet"):
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


def test_columns_are_recognized_as_in_a_file_of_this_machine(storage: Storage, tmp_path: Path, capsys: Capture) -> None:
    frame = pl.DataFrame({"customer": [1, 1, 1, 2, 2, 2], "sku": [1, 2, 3] * 2, "created_at": [1_700_000_000] * 6})
    frame.write_parquet(storage.write("advice/log.parquet", b""))
    frame.rename({"sku": "what", "customer": "who"}).write_parquet(storage.write("advice/unclear.parquet", b""))
    for path in (str(storage.folder / "advice/log.parquet"), "s3://advice/log.parquet"):
        assert run(tmp_path / "log", f"--data.path={path}", "--data.replace=true") == 0
        columns = json.loads((tmp_path / "log/metadata.json").read_text())["columns"]
        assert columns == {"user": "customer", "item": "sku", "time": "created_at"}
    capsys.readouterr()
    for path in (str(storage.folder / "advice/unclear.parquet"), "s3://advice/unclear.parquet"):
        assert run(tmp_path / "none", f"--data.path={path}") == 2
        assert capsys.readouterr().err.startswith(f"error: {path}: ")


def test_a_preparation_that_is_stopped_while_it_fetches_leaves_nothing_behind(storage: Storage, tmp_path: Path) -> None:
    storage.write("long/log.csv", b"user,item\n" + b"1,2\n" * 5_000_000)
    # Where the tests run in the background the signal is ignored, by their children too: here it is not.
    heed = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heed}; runpy.run_path({str(ROOT / 'preprocessing.py')!r}, run_name='__main__')"
    command = [sys.executable, "-c", program, "--config=/dev/null"]
    command += [f"--data.dataset_dir={tmp_path / 'dataset'}", "--data.path=s3://long/log.csv"]
    process = subprocess.Popen(command, env={**os.environ}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not any(path.stat().st_size for path in tmp_path.rglob("000000-log.csv")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert (process.returncode, list(tmp_path.iterdir())) == (130, [])
