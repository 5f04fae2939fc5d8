"""The JSON requests of Google Cloud Storage, for the files of a `Storage`: those that Arrow makes."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4

API, UPLOAD = "/storage/v1/b/", "/upload/storage/v1/b/"
Answer = tuple[int, bytes, dict[str, str]]  # status, content, headers
MISSING = {"error": {"code": 404, "message": "The specified object does not exist."}}
NO_BUCKET = {"error": {"code": 404, "message": "The specified bucket does not exist."}}
DENIED = {"error": {"code": 403, "message": "does not have access"}}


class Google:
    """The answers to requests for the buckets in `folder`; `note` is told of each that changes something."""

    def __init__(self, folder: Path, http: str, closed: tuple[str, str], note: Callable[[str], None]) -> None:
        self._folder, self._http, self._closed, self._note = folder, http, closed, note
        self._uploads = dict[str, tuple[str, bytearray]]()

    def answer(self, method: str, url: str, headers: Mapping[str, str], content: bytes) -> Answer:
        """The answer to a request."""
        address, query = urlsplit(url), parse_qs(urlsplit(url).query)
        bucket, *names = address.path.removeprefix("/upload").removeprefix(API).split("/o", 1)
        key = unquote(names[0].removeprefix("/")) if names else ""
        if bucket == self._closed[0] or (bucket == self._closed[1] and method != "GET"):
            return self._json(DENIED, 403)
        if not (self._folder / bucket).is_dir():
            return self._json(NO_BUCKET, 404)
        if address.path.startswith(UPLOAD):
            return self._upload(method, bucket, query, headers, content)
        if not names:
            return self._json({"kind": "storage#bucket", "name": bucket})
        if not key:
            return self._list(bucket, query.get("prefix", [""])[0])
        if method == "POST":
            return self._copy(bucket, key)
        path = self._folder / bucket / key
        if not path.is_file():
            return self._json(MISSING, 404)
        if method == "DELETE":
            self._note(f"DELETE {bucket}/{key}")
            path.unlink()
            return 204, b"", {}
        return self._read(path, headers) if "media" in query.get("alt", []) else self._json(self._about(bucket, key))

    def _json(self, about: Any, status: int = 200, **headers: str) -> Answer:
        return status, json.dumps(about).encode(), {"Content-Type": "application/json", **headers}

    def _about(self, bucket: str, key: str) -> dict[str, Any]:
        size = (self._folder / bucket / key).stat().st_size
        time = {"timeCreated": "2024-01-01T00:00:00Z", "updated": "2024-01-01T00:00:00Z"}
        about = {"kind": "storage#object", "bucket": bucket, "name": key, "size": str(size), "generation": "1"}
        return {**about, "metageneration": "1", **time}

    def _read(self, path: Path, headers: Mapping[str, str]) -> Answer:
        content = path.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("Range", ""))
        if asked is None:
            return 200, content, {}
        first, last = int(asked[1]), int(asked[2] or len(content) - 1)
        part = content[first : last + 1]
        return 206, part, {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(content)}"}

    def _list(self, bucket: str, prefix: str) -> Answer:
        folder = self._folder / bucket
        keys = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        items = [self._about(bucket, key) for key in keys if key.startswith(prefix)]
        return self._json({"kind": "storage#objects", "items": items})

    def _copy(self, bucket: str, key: str) -> Answer:
        source, _, target = key.partition("/rewriteTo/b/")
        other, _, new = target.partition("/o/")
        if not (self._folder / bucket / source).is_file():
            return self._json(MISSING, 404)
        self._note(f"COPY {bucket}/{source} {other}/{new}")
        self._write(other, new, (self._folder / bucket / source).read_bytes())
        about = self._about(other, new)
        size = {"totalBytesRewritten": about["size"], "objectSize": about["size"]}
        return self._json({"kind": "storage#rewriteResponse", "done": True, "resource": about, **size})

    def _upload(
        self, method: str, bucket: str, query: Mapping[str, list[str]], headers: Mapping[str, str], content: bytes
    ) -> Answer:
        if method == "POST":
            upload = uuid4().hex
            self._uploads[upload] = query["name"][0], bytearray()
            place = f"{self._http}{UPLOAD}{bucket}/o?uploadType=resumable&upload_id={upload}"
            return self._json({}, Location=place)
        key, parts = self._uploads[query["upload_id"][0]]
        parts += content
        if headers.get("Content-Range", "").endswith("/*"):
            return 308, b"", {"Range": f"bytes=0-{len(parts) - 1}"} if parts else {}
        self._note(f"PUT {bucket}/{key}")
        self._write(bucket, key, bytes(parts))
        return self._json(self._about(bucket, key))

    def _write(self, bucket: str, key: str, content: bytes) -> None:
        path = self._folder / bucket / key
        if key.endswith("/"):  # the marker of a folder
            path.mkdir(parents=True, exist_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
