"""A dataset in object storage is, once fetched, the local one, byte for byte; a failure is one line and leaves none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import preprocessing
from bert4rec import prepare
from bert4rec.config.load import load_config
from bert4rec.config.stored import dataset_folder
from bert4rec.config.tables import Config, Data
from bert4rec.dataset.runs import link_catalogue
from bert4rec.runtime.errors import DataError, SettingsError
from tests.checks import Capture
from tests.folders import contents
from tests.launch import ROOT
from tests.sources.storage import CLOSED, LOCKED, Storage

OPTIONS = ["--config=/dev/null", "--preprocessing.n_eval_negatives=2", "--preprocessing.validation_users=3"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bert4rec"


@pytest.fixture
def bucket(storage: Storage, tmp_path: Path) -> str:
    """The address of a new bucket."""
    name = f"b{abs(hash(tmp_path)) % 10**9}"
    (storage.folder / name).mkdir()
    return f"s3://{name}"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "log.csv", 8)


def write_log(path: Path, n_users: int) -> Path:
    rows = [f"u{user},i{(user * place) % 11},{place}" for user in range(n_users) for place in range(1, 7)]
    path.write_text("\n".join(["user,item,time", *rows, ""]))
    return path


def error_of(capsys: Capture) -> str:
    """The only line that a command wrote as its error."""
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    return line


def made(log: Path, place: str | Path, *options: str) -> int:
    return preprocessing.main([str(log), *OPTIONS, f"--data.dataset_dir={place}", *options])


def test_a_fetched_dataset_is_the_local_one(
    tmp_path: Path, bucket: str, log: Path, storage: Storage, cache: Path, capsys: Capture
) -> None:  # fmt: skip
    url = f"{bucket}/shops/one"
    assert made(log, tmp_path / "local") == made(log, url) == 0
    assert "next: python train.py " + url in capsys.readouterr().out
    sent = [line for line in storage.done if f"{bucket[5:]}/" in line]
    assert sent[-2:] == [f"PUT {url[5:]}/metadata.json", f"DELETE {url[5:]}/.unfinished"]
    assert [path for path in (cache / "prepare").rglob("*") if path.is_file()] == []
    folder = dataset_folder(url)
    assert contents(folder) == contents(tmp_path / "local")
    assert {f"shops/one/{name}" for name in contents(folder)} == {*storage.keys(bucket[5:])}
    before = len(storage.asked)
    assert dataset_folder(f"{url}/") == Data(dataset_dir=url).folder == folder
    assert {*storage.asked[before:]} == {f"{url[5:]}/metadata.json"}  # it is in the cache


def test_a_dataset_is_replaced_as_a_local_one_is(
    tmp_path: Path, bucket: str, log: Path, storage: Storage, capsys: Capture
) -> None:  # fmt: skip
    url, other = f"{bucket}/shop", write_log(tmp_path / "other.csv", 5)
    assert made(log, url) == 0
    before, keys = dataset_folder(url), storage.keys(bucket[5:])
    storage.write(f"{url[5:]}/users/part-0000009999.parquet", b"of an older dataset")
    capsys.readouterr()
    assert made(other, url) == 2
    line = error_of(capsys)
    assert all(word in line for word in (url, "log.csv", "other.csv", f"--data.dataset_dir={url}-2", "--replace"))
    assert made(other, url, "--replace") == 0
    assert storage.keys(bucket[5:]) == keys
    assert dataset_folder(url) != before
    assert (before / "metadata.json").is_file()
    (storage.folder / bucket[5:] / "shop" / "metadata.json").unlink()
    capsys.readouterr()
    assert made(log, url) == 2
    assert "is not empty and not a dataset" in error_of(capsys)


def test_a_run_of_this_host_keeps_its_dataset(tmp_path: Path, bucket: str, log: Path, capsys: Capture) -> None:
    url = f"{bucket}/shop"
    assert made(log, url) == 0
    (tmp_path / "runs" / "shop").mkdir(parents=True)
    link_catalogue(dataset_folder(url), tmp_path / "runs" / "shop")
    write_log(log, 6)
    capsys.readouterr()
    assert made(log, url) == 2
    assert "was trained on this dataset" in error_of(capsys)


def test_a_dataset_in_storage_grows(tmp_path: Path, bucket: str, log: Path) -> None:
    assert made(log, tmp_path / "local") == made(log, f"{bucket}/one") == 0
    write_log(log, 9)
    assert made(log, tmp_path / "grown", f"--data.extends={tmp_path / 'local'}") == 0
    assert made(log, f"{bucket}/two", f"--data.extends={bucket}/one") == 0
    assert contents(dataset_folder(f"{bucket}/two")) == contents(tmp_path / "grown")


def test_a_frame_goes_to_storage(bucket: str, log: Path) -> None:
    found = prepare(pl.read_csv(log), {"data.dataset_dir": f"{bucket}/frame", "preprocessing.n_eval_negatives": 2})
    assert found.n_users == 8
    assert found.folder == dataset_folder(f"{bucket}/frame")


@pytest.mark.long
def test_google_storage_is_another_place_for_the_same_files(
    tmp_path: Path, bucket: str, log: Path, storage: Storage, capsys: Capture
) -> None:  # fmt: skip
    assert made(log, tmp_path / "local") == 0
    (storage.folder / CLOSED).mkdir(exist_ok=True)
    url = f"gs://{bucket[5:]}/shops/one"
    assert made(log, url) == made(log, url) == 0
    assert contents(dataset_folder(url)) == contents(tmp_path / "local")
    for place, words in ((f"gs://{CLOSED}/shop", "access denied"), ("gs://nowhere/shop", "no such bucket")):
        capsys.readouterr()
        assert made(log, place) == 2
        assert words in error_of(capsys)


def test_an_interrupted_fetch_goes_on(bucket: str, log: Path, storage: Storage, cache: Path) -> None:
    url = f"{bucket}/shop"
    assert made(log, url) == 0
    path = storage.folder / url[5:] / "train_counts.npy"
    content = path.read_bytes()
    for damaged in (content[:-1], b"x" * len(content)):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=f"{url}/train_counts.npy"):
            dataset_folder(url)
    assert [*cache.glob("datasets/[!.]*")] == []
    path.write_bytes(content)
    fetched = {name for name in storage.keys(bucket[5:]) if [*cache.glob(f"datasets/.*.new/{name[5:]}")]}
    assert fetched
    before = len(storage.asked)
    assert (dataset_folder(url) / "train_counts.npy").read_bytes() == content
    assert not {f"{bucket[5:]}/{name}" for name in fetched} & {*storage.asked[before:]}


def test_several_processes_fetch_once(bucket: str, log: Path, storage: Storage) -> None:
    url = f"{bucket}/shop"
    assert made(log, url) == 0
    before = len(storage.asked)
    code = f"from bert4rec.config.stored import dataset_folder; print(dataset_folder({url!r}))"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert len({process.communicate(timeout=60)[0] for process in processes}) == 1
    asked = [name for name in storage.asked[before:] if name.endswith("train_counts.npy")]
    assert len(asked) <= 2  # its size, and its content


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("s3://nowhere/shop", "no such bucket"),
        (f"s3://{CLOSED}/shop", "access denied"),
        (f"s3://{LOCKED}/shop", "access denied"),
        ("s3://nowhere", "s3://bucket/name"),
        ("https://host/shop", "s3://bucket/name"),
        ("s3://key:secret@bucket/shop", "s3://bucket/name"),
    ],
)
def test_a_place_that_takes_no_dataset_is_one_line(
    log: Path, storage: Storage, cache: Path, place: str, words: str, capsys: Capture
) -> None:  # fmt: skip
    (storage.folder / LOCKED).mkdir(exist_ok=True)
    (storage.folder / CLOSED).mkdir(exist_ok=True)
    assert made(log, place) == 2
    assert words in error_of(capsys)
    assert storage.keys(LOCKED) == storage.keys(CLOSED) == []
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_what_is_no_dataset_is_one_line(bucket: str, storage: Storage) -> None:
    def refusal(name: str) -> str:
        with pytest.raises(DataError) as error:
            dataset_folder(f"{bucket}/{name}")
        return str(error.value)

    assert "expected a dataset" in refusal("nothing")
    about = {"files": {"../../escaped": {"bytes": 1, "sha256": "0" * 64}}, "fingerprint": "0" * 64}
    for number, content in enumerate((b"{", b"[]", b"{}", json.dumps(about).encode())):
        storage.write(f"{bucket[5:]}/{number}/metadata.json", content)
        assert "does not describe a dataset" in refusal(str(number))


def test_settings_keep_an_address() -> None:
    config = Config(data=Data(dataset_dir="s3://bucket/shops/one/"))
    assert (config.data.place, config.run_name) == ("s3://bucket/shops/one", "one")
    assert os.fspath(Data(dataset_dir="data/shop/").folder) == "data/shop"


def test_hosts_that_fetch_a_whole_dataset_do_not_have_parts_of_it() -> None:
    with pytest.raises(SettingsError, match=r"data\.parts_by_host"):
        load_config(None, {"data.dataset_dir": "s3://bucket/shop", "data.parts_by_host": True})
