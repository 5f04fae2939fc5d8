"""A server on this machine that speaks what S3, Google Cloud Storage and web servers have in common, for one folder.

It is a process of its own: Arrow may hold the lock of the Python that waits for an answer. Its first folders are the
buckets. Those called `closed`, `broken`, `whole` and `locked` have ways of their own.
"""

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4
from xml.sax.saxutils import escape

from tests.sources.google import API, UPLOAD, Google

# Not allowed; breaks off in the middle; knows no ranges; can only be read.
CLOSED, BROKEN, WHOLE, LOCKED = "closed", "broken", "whole", "locked"
ROOT = Path(__file__).parents[2]
UPLOADS = ".uploads"  # folder of the parts of uploads that are not complete
ENTRY = (
    "<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>x</ETag><Size>{size}</Size>"
    "</Contents>"
)
FOLDER = "<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>"
DENIED = b"<Error><Code>AccessDenied</Code></Error>"


class Lines:
    """A list of texts that both processes know: it is a file beside the folder."""

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, storage: "Storage", _: type) -> list[str]:
        return storage.note_of(self._name).read_text(encoding="utf-8").splitlines()


class Numbers(Lines):
    """A list of numbers like `Lines`."""

    def __get__(self, storage: "Storage", owner: type) -> list[int]:  # type: ignore[override]
        return [*map(int, super().__get__(storage, owner))]


class Number(Numbers):
    """A number that a test sets: the last of the list."""

    def __get__(self, storage: "Storage", owner: type) -> int:  # type: ignore[override]
        return super().__get__(storage, owner)[-1]

    def __set__(self, storage: "Storage", value: int) -> None:
        storage.note(self._name, value)


@dataclass
class Storage:
    """The `folder` that is served at `port`.

    `asked` has the keys of requests, `sent` the bytes of ranges, `done` requests that do not only read, as
    "PUT bucket/key". The server answers with `status`, if it is not 200, and breaks off after `sends_at_most` bytes.
    """

    folder: Path
    port: int = 0
    asked, sent, done = Lines(), Numbers(), Lines()
    status, sends_at_most = Number(), Number()

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def note(self, name: str, what: object) -> None:
        """Add a line to what was `asked`, `sent` or `done`, or has changed."""
        with self.note_of(name).open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")

    def note_of(self, name: str) -> Path:
        """The file of a list."""
        return self.folder.with_name(f"{self.folder.name}-{name}")

    def variables(self) -> dict[str, str]:
        """The variables by which Polars and Arrow find the buckets here."""
        account = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        google = json.dumps({"gcs_base_url": self.http, "disable_oauth": True, **account})
        amazon = {"AWS_ENDPOINT_URL": self.http, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        login = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "secret"}
        return amazon | login | {"GOOGLE_SERVICE_ACCOUNT_KEY": google, "STORAGE_EMULATOR_HOST": self.http}

    def write(self, name: str, content: bytes) -> Path:
        """A file, by bucket and key."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def keys(self, bucket: str) -> list[str]:
        """The keys of a bucket, without the markers of folders."""
        folder = self.folder / bucket
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    storage: ClassVar[Storage]
    google: ClassVar[Google]

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self._is_google():
            return
        name, query, path = self._address()
        self.storage.note("asked", name)
        if self._is_refused(name):
            return
        if "list-type" in query:
            self._list(path, query)
        elif path.is_file():
            self._file(path, cut=name.startswith(BROKEN), ranges=not name.startswith(WHOLE))
        elif path.is_dir() and "/" not in name:
            self._answer(200, b"")
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def do_PUT(self) -> None:
        if self._is_google():
            return
        name, query, path = self._address()
        content = self._content()
        if self._is_refused(name) or self._has_no_bucket(name):
            return
        if "uploadId" in query:
            self._write(self.storage.folder / UPLOADS / query["uploadId"][0] / query["partNumber"][0], content)
        elif source := self.headers.get("x-amz-copy-source"):
            self._note(f"COPY {unquote(source).strip('/')} {name}")
            self._write(path, (self.storage.folder / unquote(source).strip("/")).read_bytes())
            self._answer(200, b'<CopyObjectResult><ETag>"x"</ETag></CopyObjectResult>')
            return
        elif self.path.endswith("/"):  # the marker of a folder
            path.mkdir(parents=True, exist_ok=True)
        else:
            self._note(f"PUT {name}")
            self._write(path, content)
        self._answer(200, b"")

    def do_POST(self) -> None:
        if self._is_google():
            return
        name, query, path = self._address()
        content = self._content()
        if self._is_refused(name) or self._has_no_bucket(name):
            return
        if "delete" in query:
            for key in re.findall(r"<Key>(.*?)</Key>", content.decode()):
                self._remove(path / key)
            self._answer(200, b"<DeleteResult></DeleteResult>")
        elif "uploads" in query:
            upload = uuid4().hex
            (self.storage.folder / UPLOADS / upload).mkdir(parents=True)
            result = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            self._answer(200, result.encode())
        else:
            parts = self.storage.folder / UPLOADS / query["uploadId"][0]
            self._note(f"PUT {name}")
            self._write(
                path, b"".join(part.read_bytes() for part in sorted(parts.iterdir(), key=lambda p: int(p.name)))
            )
            shutil.rmtree(parts)
            self._answer(200, b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")

    def do_DELETE(self) -> None:
        if self._is_google():
            return
        name, query, path = self._address()
        if self._is_refused(name):
            return
        if "uploadId" in query:
            shutil.rmtree(self.storage.folder / UPLOADS / query["uploadId"][0], ignore_errors=True)
        else:
            self._note(f"DELETE {name}")
            self._remove(path)
        self.send_response(204)
        self.end_headers()

    def _is_google(self) -> bool:
        """Answer a request of Arrow's client for Google Cloud Storage."""
        if not self.path.startswith((API, UPLOAD)):
            return False
        self.storage.note("asked", unquote(urlsplit(self.path).path.removeprefix(API).replace("/o/", "/", 1)))
        status, content, headers = self.google.answer(self.command, self.path, self.headers, self._content())
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        return True

    def _address(self) -> tuple[str, dict[str, list[str]], Path]:
        address = urlsplit(self.path)
        name = unquote(address.path).strip("/")
        return name, parse_qs(address.query, keep_blank_values=True), self.storage.folder / name

    def _is_refused(self, name: str) -> bool:
        """Answer a request that is not allowed, or comes while the server is out of order."""
        is_locked = name.startswith(LOCKED) and self.command not in ("GET", "HEAD")
        is_refused = self.storage.status != 200 or name.startswith(CLOSED) or is_locked
        if is_refused:
            is_denied = self.storage.status == 200
            self._answer(403 if is_denied else self.storage.status, DENIED if is_denied else b"")
        return is_refused

    def _has_no_bucket(self, name: str) -> bool:
        is_missing = not (self.storage.folder / name.partition("/")[0]).is_dir()
        if is_missing:
            self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        return is_missing

    def _note(self, text: str) -> None:
        self.storage.note("done", text)

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file in one step: S3 shows a whole object or none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.storage.folder / UPLOADS / uuid4().hex
        unfinished.parent.mkdir(exist_ok=True)
        unfinished.write_bytes(content)
        unfinished.replace(path)

    def _remove(self, path: Path) -> None:
        with suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)

    def _content(self) -> bytes:
        """Return what the client sends: in chunks, and those of AWS inside, or as it is."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self._unpacked(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return self._unpacked(b"".join(parts))

    def _unpacked(self, content: bytes) -> bytes:
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return content
        parts, place = [], 0
        while True:
            end = content.index(b"\r\n", place)
            size = int(content[place:end].split(b";")[0], 16)
            if not size:
                return b"".join(parts)
            parts.append(content[end + 2 : end + 2 + size])
            place = end + 2 + size + 2

    def _list(self, bucket: Path, query: dict[str, list[str]]) -> None:
        if not bucket.is_dir():
            self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
            return
        prefix, delimiter, after = (query.get(name, [""])[0] for name in ("prefix", "delimiter", "continuation-token"))
        most, sizes, folders = int(query.get("max-keys", ["1000"])[0]), dict[str, int](), set[str]()
        for path in bucket.rglob("*"):
            key = path.relative_to(bucket).as_posix()
            inner = key.removeprefix(prefix)
            if not path.is_file() or not key.startswith(prefix):
                continue
            if delimiter and delimiter in inner:
                folders.add(prefix + inner.partition(delimiter)[0] + delimiter)
            else:
                with suppress(FileNotFoundError):  # removed just now
                    sizes[key] = path.stat().st_size
        names = [name for name in sorted({*sizes, *folders}) if name > after]
        shown = names[:most]
        entries = [
            FOLDER.format(prefix=escape(name)) if name in folders else ENTRY.format(key=escape(name), size=sizes[name])
            for name in shown
        ]
        is_cut = len(names) > most
        head = f"<IsTruncated>{str(is_cut).lower()}</IsTruncated><KeyCount>{len(shown)}</KeyCount>"
        head += f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>" if is_cut and shown else ""
        self._answer(200, f"<ListBucketResult>{head}{''.join(entries)}</ListBucketResult>".encode())

    def _file(self, path: Path, *, cut: bool, ranges: bool) -> None:
        content, size = path.read_bytes(), path.stat().st_size
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")) if ranges else None
        if asked is None:
            self._answer(200, content)
            return
        if not size:
            self._answer(416, b"")
            return
        first = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
        last = min(int(asked[2]), size - 1) if asked[1] and asked[2] else size - 1
        part = content[first : last + 1]
        self.storage.note("sent", len(part))
        self._answer(206, part, f"bytes {first}-{last}/{size}", cut=cut)

    def _answer(self, status: int, content: bytes, content_range: str = "", *, cut: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        most = self.storage.sends_at_most
        if self.command != "HEAD":
            self.wfile.write(content[: min(len(content) // 2 if cut else len(content), most)])
        self.close_connection = cut or len(content) > most


@contextmanager
def serving(folder: Path) -> Iterator[Storage]:
    """The files in `folder`, at a free port, while the block runs."""
    storage = Storage(folder)
    storage.status, storage.sends_at_most = 200, 10**9
    for name in ("asked", "sent", "done"):
        storage.note_of(name).touch()
    command = [sys.executable, "-m", "tests.sources.storage", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdin
        storage.port = int(process.stdout.readline())
        yield storage
        process.stdin.close()


def main(folder: Path) -> None:
    """Serve a folder until the standard input ends, as that of a test that was killed does."""
    storage = Storage(folder)
    handler = type("_HandlerOfOne", (_Handler,), {"storage": storage})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        storage.port = server.server_port
        handler.google = Google(folder, storage.http, (CLOSED, LOCKED), partial(storage.note, "done"))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        print(storage.port, flush=True)
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
