"""A MovieLens set is downloaded, checked and unpacked, or one line says what failed; no test needs a network."""

import hashlib
import io
import socket
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from bert4rec.sources import remote
from bert4rec.sources.interactions import SOURCES
from bert4rec.sources.remote import fetch_movielens
from tests.checks import Patch, one_line
from tests.sources.log import opened
from tests.sources.storage import Storage, serving

RATINGS = "".join(f"{user}::{item}::5::{user + item}\n" for user in range(200) for item in range(user % 7 + 3))


def zipped(members: dict[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in members.items():  # with the date of a ZipInfo, not of today: the same bytes in every process
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return file.getvalue()


SET = zipped({"ml-1m/": "", "ml-1m/ratings.dat": RATINGS, "ml-1m/movies.dat": "1::One::x\n", "ml-1m/README": "terms"})
SMALL = zipped({"ml-latest-small/ratings.csv": RATINGS})


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory, monkeypatch: Patch) -> Iterator[Storage]:
    """A server like GroupLens', and what it was asked for."""
    with serving(tmp_path_factory.mktemp("site")) as site:
        site.write("ml-1m.zip", SET)
        site.write("ml-latest-small.zip", SMALL)
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setattr(remote, "BASE_URL", site.http)
        publish(monkeypatch, SET)
        yield site


def publish(monkeypatch: Patch, content: bytes) -> None:
    monkeypatch.setitem(SOURCES, "ml-1m", replace(SOURCES["ml-1m"], md5=hashlib.md5(content).hexdigest()))


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def fetch(folder: Path, source: str = "ml-1m") -> None:
    assert fetch_movielens(source, folder) == folder / source
    assert (folder / source / SOURCES[source].names[0]).read_text() == RATINGS


def refused(folder: Path, *words: str, source: str = "ml-1m") -> None:
    with one_line("", *words):
        fetch_movielens(source, folder)
    assert not (folder / source).exists()


def test_a_set_is_downloaded_once_and_can_be_read(tmp_path: Path, site: Storage) -> None:
    folder = tmp_path / "new" / "data"
    (folder / ".ml-1m.new/ml-1m").mkdir(parents=True)  # left by a killed run
    (folder / ".ml-1m.new/ml-1m/ratings.dat").write_text("half")
    fetch(folder)
    assert names(folder) == ["ml-1m", "ml-1m.zip", "ml-1m/README", "ml-1m/movies.dat", "ml-1m/ratings.dat"]
    site.status = 503
    fetch(folder)
    assert site.asked == ["ml-1m.zip"]
    rows = opened("ml-1m", path=str(folder / "ml-1m"))
    assert sum(len(part) for part, _ in rows) == RATINGS.count("\n")


@pytest.mark.parametrize(
    ("source", "content", "asked"),
    [
        ("ml-1m", SET, []), ("ml-1m", SET[:-1], ["ml-1m.zip"]), ("ml-1m", b"", ["ml-1m.zip"]),
        ("ml-latest-small", SMALL, []), ("ml-latest-small", None, ["ml-latest-small.zip"]),  # it changes: has no MD5
    ],
)  # fmt: skip
def test_the_published_zip_is_used(
    tmp_path: Path, site: Storage, source: str, content: bytes | None, asked: list[str]
) -> None:
    if content is not None:
        (tmp_path / f"{source}.zip").write_bytes(content)
    fetch(tmp_path, source)
    assert site.asked == asked
    assert (tmp_path / f"{source}.zip").read_bytes() == (SET if source == "ml-1m" else SMALL)


@pytest.mark.parametrize("how", [{"sends_at_most": 1000}, {"status": 404}, {"status": 503}, SET + b"x", b"<html>"])
def test_nothing_is_left_of_a_failed_download(tmp_path: Path, site: Storage, how: dict[str, int] | bytes) -> None:
    site.write("ml-1m.zip", how if isinstance(how, bytes) else SET)
    for name, value in how.items() if isinstance(how, dict) else ():
        setattr(site, name, value)
    refused(tmp_path, remote.BASE_URL)
    site.status, site.sends_at_most = 200, 10**9
    assert names(tmp_path) == []
    site.write("ml-1m.zip", SET)
    interrupt = Mock(side_effect=KeyboardInterrupt)
    with patch("requests.Response.iter_content", interrupt), pytest.raises(KeyboardInterrupt):
        fetch_movielens("ml-1m", tmp_path)
    assert names(tmp_path) == []
    fetch(tmp_path)


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_server_that_does_not_answer(tmp_path: Path, site: Storage, monkeypatch: Patch, is_silent: bool) -> None:
    monkeypatch.setattr(remote, "TIMEOUT", 0.1)
    monkeypatch.chdir(tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if is_silent:
            other.listen()
        monkeypatch.setattr(remote, "BASE_URL", f"http://127.0.0.1:{other.getsockname()[1]}")
        refused(Path("data"), f"{remote.BASE_URL}/ml-1m.zip", f"{tmp_path}/data/ml-1m.zip")
    assert names(tmp_path) == ["data"]


PLACE = SET.index(b"ratings.dat") + 200  # within the packed ratings, whose CRC shows another byte
DAMAGED = [
    zipped({"ml-20m/ratings.csv": "x"}), zipped({}), b"no zip", SET[: SET.index(b"PK\x01\x02") + 30],
    SET[:PLACE] + bytes([SET[PLACE] ^ 1]) + SET[PLACE + 1 :],
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_zip_writes_nothing(tmp_path: Path, site: Storage, monkeypatch: Patch, content: bytes) -> None:
    publish(monkeypatch, content)
    site.write("ml-1m.zip", content)
    refused(tmp_path, f"{tmp_path}/ml-1m.zip: ")
    assert names(tmp_path) == ["ml-1m.zip"]


def test_errors_of_the_disk(tmp_path: Path, site: Storage, monkeypatch: Patch) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", f"{tmp_path}/file: ")
    refused(tmp_path / "data", '"ml-10m"', source="ml-10m")  # no set
    (tmp_path / "other/ml-1m").mkdir(parents=True)
    with one_line(f"{tmp_path}/other/ml-1m: ", "ratings.dat"):
        fetch_movielens("ml-1m", tmp_path / "other")

    def fill(self: zipfile.ZipFile, path: Path) -> None:
        path.mkdir()
        (path / "some").write_text("")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extractall", fill)
    refused(tmp_path / "data")
    assert names(tmp_path / "data") == ["ml-1m.zip"]


def test_several_at_once_download_once(tmp_path: Path, site: Storage) -> None:
    with ThreadPoolExecutor(4) as pool:  # each has a lock of its own, as processes have
        assert [*pool.map(fetch_movielens, ["ml-1m"] * 4, [tmp_path] * 4)] == [tmp_path / "ml-1m"] * 4
    assert site.asked == ["ml-1m.zip"]
