"""A server on this machine that speaks what S3, Google Cloud Storage and web servers have in common, for one folder.

Its first folders are the buckets. Those called `closed`, `broken` and `whole` have ways of their own.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

CLOSED, BROKEN, WHOLE = "closed", "broken", "whole"  # nobody may; breaks off in the middle; knows no ranges
ENTRY = (
    "<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>x</ETag><Size>{size}</Size>"
    "</Contents>"
)


@dataclass
class Storage:
    """The `folder` that is served at `port`, while `status` is 200; what was asked for, how many bytes were sent."""

    folder: Path
    port: int = 0
    status: int = 200
    sends_at_most: int = 10**9
    asked: list[str] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def variables(self) -> dict[str, str]:
        """With which Polars finds the buckets here."""
        account = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        google = json.dumps({"gcs_base_url": self.http, "disable_oauth": True, **account})
        amazon = {"AWS_ENDPOINT_URL": self.http, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        login = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "secret"}
        return amazon | login | {"GOOGLE_SERVICE_ACCOUNT_KEY": google}

    def write(self, name: str, content: bytes) -> Path:
        """A file, by bucket and key."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    storage: ClassVar[Storage]

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        name, query = unquote(address.path).strip("/"), parse_qs(address.query)
        path = self.storage.folder / name
        self.storage.asked.append(name)
        if self.storage.status != 200:
            self._answer(self.storage.status, b"")
        elif name.startswith(CLOSED):
            self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        elif "list-type" in query:
            self._list(path, query.get("prefix", [""])[0])
        elif path.is_file():
            self._file(path, cut=name.startswith(BROKEN), ranges=not name.startswith(WHOLE))
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _list(self, bucket: Path, prefix: str) -> None:
        if not bucket.is_dir():
            self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
            return
        sizes = {path.relative_to(bucket).as_posix(): path.stat().st_size for path in bucket.rglob("*.*")}
        keys = [ENTRY.format(key=escape(key), size=sizes[key]) for key in sorted(sizes) if key.startswith(prefix)]
        head = f"<IsTruncated>false</IsTruncated><KeyCount>{len(keys)}</KeyCount>"
        self._answer(200, f"<ListBucketResult>{head}{''.join(keys)}</ListBucketResult>".encode())

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
        self.storage.sent.append(len(part))
        self._answer(206, part, f"bytes {first}-{last}/{size}", cut=cut)

    def _answer(self, status: int, content: bytes, content_range: str = "", *, cut: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: min(len(content) // 2 if cut else len(content), self.storage.sends_at_most)])
        self.close_connection = cut or len(content) > self.storage.sends_at_most


@contextmanager
def serving(folder: Path) -> Iterator[Storage]:
    """The files in `folder`, at a free port, while the block runs."""
    storage = Storage(folder)
    handler = type("_HandlerOfOne", (_Handler,), {"storage": storage})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        storage.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield storage
        finally:
            server.shutdown()
            thread.join()
