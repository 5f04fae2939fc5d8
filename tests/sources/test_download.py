"""A MovieLens set is downloaded, checked and unpacked, or one line says what failed; no test needs a network."""

import hashlib
import io
import socket
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

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
    files = {"ml-1m.zip": SET, "ml-latest-small.zip": SMALL}
    with serving(tmp_path_factory.mktemp("site")) as site:
        for name, content in files.items():
            site.write(name, content)
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setattr(remote, "BASE_URL", site.http)
        publish(monkeypatch, SET)
        yield site


def publish(monkeypatch: Patch, content: bytes) -> None:
    monkeypatch.setitem(SOURCES, "ml-1m", replace(SOURCES["ml-1m"], md5=hashlib.md5(content).hexdigest()))


def fetch(folder: Path, source: str = "ml-1m") -> None:
    assert fetch_movielens(source, folder) == folder / source
    assert (folder / source / SOURCES[source].names[0]).read_text() == RATINGS


def refused(folder: Path, *words: str, source: str = "ml-1m") -> None:
    with one_line("", *words):
        fetch_movielens(source, folder)
    assert not (folder / source).exists()


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_set_is_downloaded_once_and_can_be_read(tmp_path: Path, site: Storage) -> None:
    folder = tmp_path / "new" / "data"
    fetch(folder)
    assert names(folder) == ["ml-1m", "ml-1m.zip", "ml-1m/README", "ml-1m/movies.dat", "ml-1m/ratings.dat"]
    site.status = 503
    fetch(folder)
    assert site.asked == ["ml-1m.zip"]
    rows = opened("ml-1m", path=str(folder / "ml-1m"))
    assert sum(len(part) for part, _ in rows) == RATINGS.count("\n")


@pytest.mark.parametrize(("content", "asked"), [(SET, []), (SET[:-1], ["ml-1m.zip"]), (b"", ["ml-1m.zip"])])
def test_a_zip_in_the_folder_is_used_if_it_is_the_published_one(
    tmp_path: Path, site: Storage, content: bytes, asked: list[str]
) -> None:
    (tmp_path / "ml-1m.zip").write_bytes(content)
    fetch(tmp_path)
    assert site.asked == asked
    assert (tmp_path / "ml-1m.zip").read_bytes() == SET


@pytest.mark.parametrize(
    "how", [{"sends_at_most": 1000}, {"status": 404}, {"status": 503}, SET + b"x", b"<html>Sign in</html>"]
)
def test_nothing_is_left_of_a_failed_download_and_the_next_one_succeeds(
    tmp_path: Path, site: Storage, monkeypatch: Patch, how: dict[str, int] | bytes
) -> None:
    site.write("ml-1m.zip", how if isinstance(how, bytes) else SET)
    with monkeypatch.context() as patch:
        for name, value in how.items() if isinstance(how, dict) else ():
            patch.setattr(site, name, value)
        refused(tmp_path, remote.BASE_URL)
    assert names(tmp_path) == []
    site.write("ml-1m.zip", SET)
    fetch(tmp_path)


def test_an_interrupted_download_leaves_nothing(tmp_path: Path, site: Storage, monkeypatch: Patch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("requests.Response.iter_content", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch_movielens("ml-1m", tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", ["refused", "silent", "no certificate"])
def test_a_server_that_does_not_answer(tmp_path: Path, site: Storage, monkeypatch: Patch, kind: str) -> None:
    monkeypatch.setattr(remote, "TIMEOUT", 0.1)
    monkeypatch.chdir(tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if kind == "silent":
            other.listen()
        if kind == "no certificate":
            monkeypatch.setattr(remote, "BASE_URL", remote.BASE_URL.replace("http:", "https:"))
        else:
            monkeypatch.setattr(remote, "BASE_URL", f"http://127.0.0.1:{other.getsockname()[1]}")
        refused(Path("data"), f"{remote.BASE_URL}/ml-1m.zip", f"{tmp_path}/data/ml-1m.zip")
    assert names(tmp_path) == ["data"]


def test_the_set_that_changes_has_no_md5_of_its_own(tmp_path: Path, site: Storage) -> None:
    fetch(tmp_path / "new", "ml-latest-small")
    site.status = 503
    (tmp_path / "ml-latest-small.zip").write_bytes(SMALL)
    fetch(tmp_path, "ml-latest-small")  # without a network, as its zip is there


def damaged() -> bytes:
    """Return `SET` with another byte in the packed ratings, which the CRC shows."""
    content = bytearray(SET)
    content[content.index(b"ratings.dat") + 200] ^= 1
    return bytes(content)


@pytest.mark.parametrize(
    "content",
    [zipped({"ml-20m/ratings.csv": "x"}), zipped({}), b"no zip", SET[: SET.index(b"PK\x01\x02") + 30], damaged()],
)
def test_a_damaged_or_another_zip_writes_nothing(
    tmp_path: Path, site: Storage, monkeypatch: Patch, content: bytes
) -> None:
    publish(monkeypatch, content)
    site.write("ml-1m.zip", content)
    refused(tmp_path, f"{tmp_path}/ml-1m.zip: ")
    assert names(tmp_path) == ["ml-1m.zip"]


def test_a_folder_without_ratings_is_no_set(tmp_path: Path, site: Storage) -> None:
    (tmp_path / "ml-1m").mkdir()
    with one_line(f"{tmp_path}/ml-1m: ", "ratings.dat"):
        fetch_movielens("ml-1m", tmp_path)


def test_an_unknown_set(tmp_path: Path) -> None:
    refused(tmp_path / "data", '"ml-10m"', source="ml-10m")
    assert names(tmp_path) == []


def test_errors_of_the_disk(tmp_path: Path, site: Storage, monkeypatch: Patch) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", f"{tmp_path}/file: ")

    def fill(self: zipfile.ZipFile, path: Path) -> None:
        path.mkdir()
        (path / "some").write_text("")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extractall", fill)
    refused(tmp_path / "data")
    assert names(tmp_path / "data") == ["ml-1m.zip"]


def test_files_of_a_killed_run_are_replaced(tmp_path: Path, site: Storage) -> None:
    (tmp_path / ".ml-1m.new" / "ml-1m").mkdir(parents=True)
    (tmp_path / ".ml-1m.new" / "ml-1m" / "ratings.dat").write_text("half")
    fetch(tmp_path)
    assert not (tmp_path / ".ml-1m.new").exists()


def test_two_processes_at_once_download_once(tmp_path: Path, site: Storage, monkeypatch: Patch) -> None:
    lines: list[str] = []
    other = threading.Thread(target=fetch_movielens, args=("ml-1m", tmp_path))

    def info(line: str) -> None:
        if threading.current_thread() is other:
            lines.append(line)
        elif other.ident is None:
            other.start()
            while not lines:  # pytest's own time limit ends a test that waits in vain
                time.sleep(0.005)

    monkeypatch.setattr(remote, "logger", SimpleNamespace(info=info))
    fetch_movielens("ml-1m", tmp_path)
    other.join()
    assert [line.partition(": ")[0] for line in lines] == [str(tmp_path), str(tmp_path / "ml-1m")]
    assert site.asked == ["ml-1m.zip"]
