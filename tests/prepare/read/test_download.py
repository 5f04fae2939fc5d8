"""A MovieLens set is downloaded, checked and unpacked, or one line says what keeps it away; no test needs a network."""

import hashlib
import io
import socket
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from bert4rec.prepare.read import download
from bert4rec.prepare.read.download import ARCHIVES, Archive, fetch_movielens
from bert4rec.prepare.read.sources import SOURCES
from bert4rec.runtime.console import ProgressBar
from bert4rec.runtime.errors import DataError
from tests.prepare.files.log import opened

RATINGS = "".join(f"{user}::{item}::5::{user + item}\n" for user in range(200) for item in range(user % 7 + 3))


def zipped(members: dict[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in members.items():  # with the date of a ZipInfo, not of today: the same bytes in every process
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return file.getvalue()


SET = zipped({"ml-1m/": "", "ml-1m/ratings.dat": RATINGS, "ml-1m/movies.dat": "1::One::x\n", "ml-1m/README": "terms"})


@dataclass
class Site:
    """A server like GroupLens', and what it was asked for."""

    files: dict[str, bytes]
    ranges: bool = True
    status: int = 200
    sends_at_most: int = 10**9
    announces_length: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)


def handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, wanted = self.path.removeprefix("/"), self.headers.get("Range")
            site.asked.append((name, wanted))
            if site.status != 200 or name not in site.files:
                return self.send_error(404 if site.status == 200 else site.status)
            content = site.files[name]
            first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and site.ranges else 0
            if first and first >= len(content):
                return self.send_error(416)
            self.send_response(206 if first else 200)
            if first:
                self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
            if site.announces_length:
                self.send_header("Content-Length", str(len(content) - first))
            self.end_headers()
            self.wfile.write(content[first : first + site.sends_at_most])

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    md5 = f"MD5 (ml-latest-small.zip) = {hashlib.md5(SET).hexdigest()}\n"
    site = Site({"ml-1m.zip": SET, "ml-latest-small.zip.md5": md5.encode()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(site))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "BASE_URL", f"http://127.0.0.1:{server.server_port}")
    publish(monkeypatch, SET)
    yield site
    server.shutdown()
    thread.join()
    server.server_close()


def publish(monkeypatch: pytest.MonkeyPatch, content: bytes, source: str = "ml-1m") -> None:
    monkeypatch.setitem(ARCHIVES, source, Archive(len(content), hashlib.md5(content).hexdigest()))


def fetch(folder: Path, source: str = "ml-1m") -> list[str]:
    """Fetch, look at what came, and return what was said."""
    with redirect_stdout(StringIO()) as said:
        assert fetch_movielens(source, folder) == folder / source
    assert (folder / source / SOURCES[source].names[0]).read_text() == RATINGS
    return said.getvalue().splitlines()


def refused(folder: Path, *words: str, source: str = "ml-1m") -> None:
    with pytest.raises(DataError) as caught:
        fetch_movielens(source, folder)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    assert not (folder / source).exists()


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_the_table_names_every_movielens_source() -> None:
    assert list(ARCHIVES) == [source for source in SOURCES if source.startswith("ml-")]


def test_a_set_is_downloaded_once_and_can_be_read(tmp_path: Path, site: Site) -> None:
    folder = tmp_path / "new" / "data"
    said = fetch(folder)
    assert said[0] == f"{download.BASE_URL}/ml-1m.zip: downloading"
    assert said[1] == f"{folder}/ml-1m.zip: downloaded, MD5 as published"
    assert said[-1].startswith(f"{folder}/ml-1m/README: GroupLens' terms of use")
    unpacked = ["ml-1m", "ml-1m.zip", "ml-1m/README", "ml-1m/movies.dat", "ml-1m/ratings.dat"]
    assert names(folder) == unpacked
    site.status = 503
    assert fetch(folder) == [f"{folder}/ml-1m: there already, used as it is"]
    assert site.asked == [("ml-1m.zip", None)]
    rows = opened("ml-1m", path=str(folder / "ml-1m"))
    assert sum(len(part) for part, _ in rows) == RATINGS.count("\n")


def test_a_zip_put_there_by_hand_is_checked_and_used(tmp_path: Path, site: Site) -> None:
    (tmp_path / "ml-1m.zip").write_bytes(SET)
    assert fetch(tmp_path)[0] == f"{tmp_path}/ml-1m.zip: there already, MD5 as published"
    assert site.asked == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (SET[:-1], f"ml-1m.zip: {len(SET) - 1:,} bytes, {len(SET):,} expected; delete it and repeat the command"),
        (b"x" + SET[1:], f"ml-1m.zip: MD5 {hashlib.md5(b'x' + SET[1:]).hexdigest()}, {hashlib.md5(SET).hexdigest()} e"),
    ],
)
def test_another_zip_put_there_by_hand_is_refused_and_kept(
    tmp_path: Path, site: Site, content: bytes, words: str
) -> None:
    (tmp_path / "ml-1m.zip").write_bytes(content)
    refused(tmp_path, words)
    assert names(tmp_path) == ["ml-1m.zip"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_goes_on_where_it_broke_off(tmp_path: Path, site: Site, ranges: bool) -> None:
    site.sends_at_most = 1000
    refused(tmp_path, "interrupted at 0.0 MB of 0.0 MB (the server closed the connection); repeat the command")
    assert (tmp_path / "ml-1m.zip.part").read_bytes() == SET[:1000]
    site.sends_at_most, site.ranges = 10**9, ranges
    assert ("from 0.0 MB on" in fetch(tmp_path)[0]) == ranges
    assert site.asked == [("ml-1m.zip", None), ("ml-1m.zip", "bytes=1000-")]
    assert not (tmp_path / "ml-1m.zip.part").exists()


def test_a_whole_part_is_not_asked_for_again(tmp_path: Path, site: Site) -> None:
    (tmp_path / "ml-1m.zip.part").write_bytes(SET)
    fetch(tmp_path)
    assert site.asked == []


def test_a_part_that_is_too_long_starts_again(tmp_path: Path, site: Site) -> None:
    (tmp_path / "ml-1m.zip.part").write_bytes(SET + b"x")
    fetch(tmp_path)
    assert site.asked == [("ml-1m.zip", None)]


def test_a_wrong_part_is_deleted_and_the_next_call_succeeds(tmp_path: Path, site: Site) -> None:
    (tmp_path / "ml-1m.zip.part").write_bytes(b"x" * 100)
    refused(tmp_path, "ml-1m.zip: what came has MD5", "expected; it was deleted: repeat the command")
    assert names(tmp_path) == []
    fetch(tmp_path)


def test_an_interrupted_download_keeps_its_part(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "SECONDS_PER_LINE", 0.0)
    monkeypatch.setattr(download, "CHUNK", 100)

    with mock.patch.object(ProgressBar, "show", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        fetch_movielens("ml-1m", tmp_path)
    part = (tmp_path / "ml-1m.zip.part").read_bytes()
    assert 0 < len(part) <= 100
    assert names(tmp_path) == ["ml-1m.zip.part"]
    said = fetch(tmp_path)
    assert site.asked[-1] == ("ml-1m.zip", f"bytes={len(part)}-")
    progress = [line for line in said if line.startswith("  ")]
    assert len(progress) > 1
    assert progress[-1].startswith("  0.0 MB of 0.0 MB, ")
    assert progress[-1].endswith(" MB/s, 0 s left")


def test_a_changed_set_is_not_even_downloaded(tmp_path: Path, site: Site) -> None:
    site.files["ml-1m.zip"] = SET + b"x"
    refused(tmp_path, f"the server offers {len(SET) + 1:,} bytes, {len(SET):,} expected; try again later")
    assert names(tmp_path) == []


@pytest.mark.parametrize("content", [SET[:-1], SET + b"x" * 1000, b"y" + SET[1:]])
def test_what_differs_is_deleted(tmp_path: Path, site: Site, content: bytes) -> None:
    site.files["ml-1m.zip"], site.announces_length = content, content[:1] == b"y"
    refused(tmp_path)
    assert "ml-1m.zip" not in names(tmp_path)
    site.files["ml-1m.zip"], site.announces_length = SET, True
    fetch(tmp_path)


@pytest.mark.parametrize(("status", "words"), [(404, "HTTP 404 Not Found"), (503, "HTTP 503 Service Unavailable")])
def test_errors_of_the_server(tmp_path: Path, site: Site, status: int, words: str) -> None:
    site.status = status
    place = tmp_path / "ml-1m.zip"
    refused(tmp_path, f"{download.BASE_URL}/ml-1m.zip: {words}; ", f"put it at {place} and repeat the command")


def test_no_network(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(download, "BASE_URL", address)
    monkeypatch.chdir(tmp_path)
    refused(
        Path("data"),
        f"{address}/ml-1m.zip: cannot be reached (Connection refused); try again later, or get the zip some other way, "
        f"put it at {tmp_path}/data/ml-1m.zip and repeat the command",
    )


def test_a_silent_server(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setattr(download, "BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        refused(tmp_path, "cannot be reached (no answer in 0 s)")


def test_an_https_server_without_a_certificate(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "BASE_URL", download.BASE_URL.replace("http:", "https:"))
    refused(tmp_path, "ml-1m.zip: cannot be reached (", "put it at")


def test_the_set_that_changes_is_compared_with_the_checksum_beside_it(tmp_path: Path, site: Site) -> None:
    content = zipped({"ml-latest-small/ratings.csv": RATINGS})
    site.files["ml-latest-small.zip"] = content
    url = f"{download.BASE_URL}/ml-latest-small.zip"
    refused(tmp_path, f"{url}: what came has MD5", source="ml-latest-small")
    site.files["ml-latest-small.zip.md5"] = b"<html>moved</html>"
    refused(tmp_path, f"{url}.md5: holds no MD5", source="ml-latest-small")
    # The part is whole: the server has no bytes behind it, and is asked for all of them.
    site.files["ml-latest-small.zip.md5"] = f"{hashlib.md5(content).hexdigest().upper()}  x.zip\n".encode()
    said = fetch(tmp_path, "ml-latest-small")
    assert f"MD5 as published in {url}.md5" in said[1]
    assert said[-1].startswith("https://grouplens.org/datasets/movielens/: ")  # there is no README in this zip
    assert [name for name, wanted in site.asked if wanted] == ["ml-latest-small.zip"]


def test_the_set_that_changes_put_there_by_hand(tmp_path: Path, site: Site) -> None:
    (tmp_path / "ml-latest-small.zip").write_bytes(zipped({"ml-latest-small/ratings.csv": RATINGS}))
    refused(tmp_path, "ml-latest-small.zip: MD5", "delete it and repeat", source="ml-latest-small")
    site.status = 503
    assert "so only its CRCs are checked" in fetch(tmp_path, "ml-latest-small")[0]


def test_an_unknown_set(tmp_path: Path) -> None:
    refused(tmp_path / "data", '"ml-10m" cannot be downloaded; these can: ml-100k, ml-1m', source="ml-10m")
    assert names(tmp_path) == []


def test_a_folder_without_ratings_is_no_set(tmp_path: Path, site: Site) -> None:
    (tmp_path / "ml-1m").mkdir()
    with pytest.raises(DataError, match=r"ml-1m: is there, but without ratings.dat; remove it and repeat the command"):
        fetch_movielens("ml-1m", tmp_path)


def test_errors_of_the_disk(tmp_path: Path, site: Site) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", f"{tmp_path}/file: File exists; mend that and repeat the command")
    (tmp_path / "ml-1m.zip.part").symlink_to("/dev/full")
    refused(tmp_path, f"{tmp_path}: No space left on device; mend that")


def test_no_room_to_unpack(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ml-1m.zip").write_bytes(SET)

    def full(self: zipfile.ZipFile, path: Path) -> None:
        path.mkdir()
        (path / "some").write_text("")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    refused(tmp_path, "No space left on device")
    assert names(tmp_path) == ["ml-1m.zip"]


def test_what_a_killed_run_left_is_no_hindrance(tmp_path: Path, site: Site) -> None:
    (tmp_path / ".ml-1m.new" / "ml-1m").mkdir(parents=True)
    (tmp_path / ".ml-1m.new" / "ml-1m" / "ratings.dat").write_text("half")
    fetch(tmp_path)
    assert not (tmp_path / ".ml-1m.new").exists()


def test_two_at_once_download_once(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    other = threading.Thread(target=fetch_movielens, args=("ml-1m", tmp_path))

    def info(line: str) -> None:
        if threading.current_thread() is other:
            said.append(line)
        elif other.ident is None:
            other.start()
            while not said:  # pytest's own time limit ends a test that waits in vain
                time.sleep(0.005)

    monkeypatch.setattr(download, "logger", SimpleNamespace(info=info))
    fetch_movielens("ml-1m", tmp_path)
    other.join()
    assert said == [
        f"{tmp_path}: another process is fetching a set into it: waiting for it",
        f"{tmp_path}/ml-1m: there already, used as it is",
    ]
    assert len(site.asked) == 1


def with_member(name: str, text: str = "evil", **attributes: int) -> bytes:
    """A set with one member more."""
    file = io.BytesIO(SET)
    member = zipfile.ZipInfo(name)
    member.compress_type = zipfile.ZIP_DEFLATED
    for key, value in attributes.items():
        setattr(member, key, value)
    with zipfile.ZipFile(file, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name that is in it twice
        archive.writestr(member, text)
    return file.getvalue()


def encrypted() -> bytes:
    """As `with_member`, marked as encrypted in the directory at the end."""
    content = bytearray(with_member("ml-1m/secret"))
    content[content.rindex(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


def truncated_directory() -> bytes:
    return SET[: SET.index(b"PK\x01\x02") + 30]


def damaged() -> bytes:
    """A byte of the packed ratings is another: the CRC says so."""
    content = bytearray(SET)
    content[content.index(b"ratings.dat") + 200] ^= 1
    return bytes(content)


EVIL: dict[str, tuple[Callable[[], bytes], str]] = {
    "file below a file": (lambda: with_member("ml-1m/README/evil"), "not a sound zip file (Not a directory)"),
    "bomb": (lambda: with_member("ml-1m/bomb", "0" * 10**6), "would unpack to 1.0 MB, more than 20 times its size"),
    "encrypted": (encrypted, "is encrypted, password required"),
    "other set": (lambda: zipped({"ml-20m/ratings.csv": "x"}), "no ml-1m/ratings.dat in it"),
    "empty": (lambda: zipped({}), "no ml-1m/ratings.dat in it"),
    "no zip": (lambda: b"<html>Sign in to this network</html>", "not a sound zip file"),
    "truncated": (truncated_directory, "not a sound zip file"),
    "damaged": (damaged, "not a sound zip file"),
}


@pytest.mark.parametrize("kind", EVIL)
def test_an_evil_zip_writes_nothing(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    make, words = EVIL[kind]
    content = make()
    publish(monkeypatch, content)
    site.files["ml-1m.zip"] = content
    folder = tmp_path / "some" / "data"
    refused(folder, words)
    assert names(tmp_path) == ["some", "some/data", "some/data/ml-1m.zip"]


@pytest.mark.parametrize("name", ["/evil", "../evil", "ml-1m/../../evil", "C:/evil", "ml-1m\\..\\evil", "ml-1m/link"])
def test_no_member_of_a_zip_is_written_outside_of_the_set_or_as_a_link(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    content = with_member(name, "/etc/passwd", external_attr=0o120777 << 16)
    publish(monkeypatch, content)
    site.files["ml-1m.zip"] = content
    fetch(tmp_path / "some" / "data")
    outside = {path for path in names(tmp_path) if not path.startswith("some/data/ml-1m/")}
    assert outside == {"some", "some/data", "some/data/ml-1m", "some/data/ml-1m.zip"}
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink()]
