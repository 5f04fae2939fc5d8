"""Stand before the application: limits of a request, the key, the access log and the times of requests."""

import asyncio
import hmac
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

from bert4rec.server.metrics import Metrics

MOST_BYTES = 4 << 20  # of a body
SECONDS_OF_BODY = 10.0
OPEN = ("/health/live", "/health/ready", "/", "/favicon.ico")  # paths that need no key; the page has no data of its own

Message: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
App: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)


class Guard:
    """The application `app` behind a guard. With a `key`, requests need it; with `log`, each is a line of JSON."""

    def __init__(self, app: App, metrics: Metrics, *, key: str = "", log: bool = False) -> None:
        self.app, self._metrics, self._key, self._log = app, metrics, key.encode(), log

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, or let the application do it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._answer(scope, receive, sent)
        except Exception as error:  # what happens to one request must not end the server
            logger.error("a request could not be answered", exc_info=error)
            if not status:
                await refuse(sent, 500, "the server could not answer; its log says why")
        finally:
            seconds = time.perf_counter() - began
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            if self._log:
                line = {"time": round(time.time(), 3), "method": scope["method"], "route": route, "status": status}
                print(json.dumps(line | {"milliseconds": round(1000 * seconds, 2)}), file=sys.stderr, flush=True)

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        if self._key and path not in OPEN and not self._has_key(headers):
            await refuse(send, 401, "the key is missing or wrong; send it as X-API-Key or as Authorization: Bearer …")
            return
        try:
            body = await asyncio.wait_for(_read(receive, headers), SECONDS_OF_BODY)
        except _TooLargeError:
            await refuse(
                send, 413, f"the body is larger than {MOST_BYTES:,} bytes; send fewer queries or events at once"
            )
            return
        except TimeoutError:
            await refuse(send, 408, f"the body did not come within {SECONDS_OF_BODY:.0f} s")
            return
        if body is None:  # the client has gone
            return
        has_been_read = False

        async def again() -> Message:
            nonlocal has_been_read
            if has_been_read:
                return await receive()
            has_been_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, again, send)

    def _has_key(self, headers: Mapping[bytes, bytes]) -> bool:
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = headers.get(b"x-api-key", b"") or (token.strip() if scheme.lower() == b"bearer" else b"")
        return hmac.compare_digest(given, self._key)


class _TooLargeError(Exception):
    pass


async def _read(receive: Receive, headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the body; None if the client goes before it is whole."""
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > MOST_BYTES:
        raise _TooLargeError
    parts, n = list[bytes](), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        n += len(parts[-1])
        if n > MOST_BYTES:
            raise _TooLargeError
        if not message.get("more_body", False):
            return b"".join(parts)


async def refuse(send: Send, status: int, text: str) -> None:
    """Answer with an error of one line; the connection is closed, since a body may be on its way."""
    content = json.dumps({"error": text}).encode()
    headers = [
        (b"content-type", b"application/json"), (b"content-length", str(len(content)).encode()),
        (b"connection", b"close"),
    ]  # fmt: skip
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
