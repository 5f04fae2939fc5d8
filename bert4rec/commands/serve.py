"""`bert4rec serve MODEL`: answer requests for recommendations over HTTP."""

import argparse
import os
import signal
import socket
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.checkpoint.models_folder import is_models_folder
from bert4rec.config.addresses import without_secrets
from bert4rec.runtime.console import log_to_terminal
from bert4rec.runtime.errors import DataError, SettingsError, pluralize
from bert4rec.runtime.startup import importing, threads_of_process

if TYPE_CHECKING:
    from bert4rec.server.guard import Guard
    from bert4rec.server.parts import Settings

KEY_VARIABLE = "BERT4REC_API_KEY"
SECONDS_TO_END = 30  # for what was begun when SIGTERM comes
SECONDS_OF_DATABASE = 5.0  # in which the one of the events must answer at the start
IDLE_SECONDS = 75  # of a connection; more than a proxy in front of it keeps one
NOWHERE = "none"
BACKLOG = 2048  # connections that wait to be accepted, as in uvicorn

USUAL_HOST, USUAL_PORT = "127.0.0.1", 8000
OF_HTTP = {
    "host": USUAL_HOST,
    "port": USUAL_PORT,
    "workers": 1,
    "api_key_file": None,
    "root_path": "",
    "access_log": False,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, the address, and what else a server needs."""
    parser.description = (
        "Answers requests for recommendations over HTTP, with a page at / to try it. Of a models folder the champion "
        "answers; a new one takes over without a pause. /openapi.json describes all requests."
    )
    model = "a models folder, such as models/shop, a run folder or an exported package"
    parser.add_argument("model", metavar="MODEL", type=Path, help=model)
    parser.add_argument("--dataset", metavar="FOLDER", type=Path, help="the dataset, if it was moved")
    parser.add_argument("--host", default=USUAL_HOST, help="default: 127.0.0.1, this machine alone; 0.0.0.0: all")
    parser.add_argument("--port", type=int, default=USUAL_PORT, help="default: 8000; 0: any free one")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes; default: 1")
    threads = "threads of each of them; default: the cores, shared among them"
    parser.add_argument("--threads", type=int, metavar="N", help=threads)
    events = (
        f"where events are kept: a file of SQLite, postgresql://…, or {NOWHERE}; default: events.db in a models folder"
    )
    parser.add_argument("--events", metavar="PLACE", default="", help=events)
    key = f"a file with the key that requests need; or the variable {KEY_VARIABLE}; default: none is needed"
    parser.add_argument("--api-key-file", metavar="FILE", type=Path, help=key)
    parser.add_argument("--root-path", metavar="PATH", default="", help="the path under which a proxy shows it")
    near = "find lists among near items (usearch), for more than a million; what that misses is measured first"
    parser.add_argument("--ann", action="store_true", help=near)
    tools = "tools for assistants (MCP): http, at /mcp beside the rest; or stdio, and then nothing else"
    parser.add_argument("--mcp", choices=("http", "stdio"), nargs="?", const="http", help=tools)
    log = "a line of JSON on standard error for each request, without ids"
    parser.add_argument("--access-log", action="store_true", help=log)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes, and return the exit status. Raises `UserError`."""
    log_to_terminal(stream="stderr", outlives_reader=True)
    for name, value, least in (("workers", arguments.workers, 1), ("threads", arguments.threads, 1)):
        if value is not None and value < least:
            raise SettingsError(f"--{name}={value}: must be at least {least}")
    if not 0 <= arguments.port <= 65_535:
        raise SettingsError(f"--port={arguments.port}: must be from 0 to 65,535")
    if arguments.root_path and not arguments.root_path.startswith("/"):
        raise SettingsError(f"--root-path={arguments.root_path}: must begin with /")
    if arguments.mcp == "stdio":
        for name, usual in OF_HTTP.items():
            if getattr(arguments, name) != usual:
                raise SettingsError(
                    f"--{name.replace('_', '-')}: is for HTTP, and --mcp=stdio has none; remove one of them"
                )
        return _serve_assistant(arguments)
    key = _key(arguments.api_key_file)
    listening = _listen(arguments.host, arguments.port)
    with importing():
        import torch
        import uvicorn
        import uvicorn.supervisors

        from bert4rec.server.app import make_app
        from bert4rec.server.metrics import SHARED
        from bert4rec.server.parts import Settings
        from bert4rec.server.served import Served
        from bert4rec.serving.events import Events
    threads = arguments.threads or threads_of_process(arguments.workers) or torch.get_num_threads()
    settings = Settings(
        arguments.model, arguments.dataset, _events(arguments), key, threads, arguments.root_path, arguments.access_log,
        with_tools=arguments.mcp == "http", searches_near=arguments.ann,
    )  # fmt: skip
    host, port = listening.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    config: dict[str, Any] = {
        "log_level": "error", "access_log": False, "timeout_keep_alive": IDLE_SECONDS, "server_header": False,
        "timeout_graceful_shutdown": SECONDS_TO_END, "root_path": "", "lifespan": "on", "fd": None,
    }  # fmt: skip
    torch.set_num_threads(threads)
    # Also before several processes do the same: what is wrong is one line.
    if settings.events:
        Events(settings.events, patience=SECONDS_OF_DATABASE).close()
    served = Served.load(settings.model, settings.dataset, searches_near=arguments.ann)
    listening.listen(BACKLOG)  # who reads the address may connect at once
    _say(served, settings, address)
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn ends by it, and raises it again when all is answered
    if arguments.workers == 1:
        server = uvicorn.Server(uvicorn.Config(make_app(settings, served), **config))
        server.run([listening])
        return int(not server.started)
    del served
    with tempfile.TemporaryDirectory(prefix="bert4rec-serve-") as folder:
        os.environ[SHARED] = folder
        multiple = uvicorn.Config(partial(_worker, settings), factory=True, workers=arguments.workers, **config)
        uvicorn.supervisors.Multiprocess(multiple, sockets=[listening]).run()
    return 0


def _worker(settings: "Settings") -> "Guard":
    """Return the application of one of several processes."""
    from bert4rec.server.app import make_app

    log_to_terminal(stream="stderr", outlives_reader=True)
    return make_app(settings)


def _serve_assistant(arguments: argparse.Namespace) -> int:
    """Serve one assistant, over standard input and output, until it ends; return the exit status."""
    with importing():
        import asyncio

        from bert4rec.server.metrics import Metrics
        from bert4rec.server.parts import Settings, started
        from bert4rec.server.tools import make_tools
    threads = arguments.threads or threads_of_process(1) or 1
    settings = Settings(
        arguments.model, arguments.dataset, _events(arguments), threads=threads, searches_near=arguments.ann
    )
    with started(settings, Metrics()) as parts:
        asyncio.run(make_tools(lambda: parts).run_stdio_async())
    return 0


def _say(served: Any, settings: "Settings", address: str) -> None:
    """Say what answers where, and how to ask."""
    about = served.about()
    users = f", {pluralize(about['users'], 'user')}" if about["users"] else ""
    print(
        f"{address}: {about['model']}, {pluralize(about['items'], 'item')}{users}, version {about['version']}; "
        f"{pluralize(settings.threads, 'thread')}, events: "
        f"{without_secrets(settings.events) if settings.events else 'not kept'}\n"
        f"A page to try it:\n  {address}{settings.root_path}/\n"
        f"A request:\n  curl {address}/v1/recommend --json '{_example(served)}'",
        flush=True,
    )


def _example(served: Any) -> str:
    import json

    ids = served.model.ids
    items = ids.of(ids.most_popular(2).tolist())
    return json.dumps({"queries": [{"items": items}], "k": 3}, ensure_ascii=False).replace("'", "\\u0027")


def _key(file: Path | None) -> str:
    """Return the key that requests need; "" for none. Raises `DataError` for a file without one."""
    if file is None:
        return os.environ.get(KEY_VARIABLE, "").strip()
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--api-key-file={file}: cannot be read: {error}") from None
    if not key:
        raise DataError(f"--api-key-file={file}: is empty; expected: a key in one line")
    return key


def _events(arguments: argparse.Namespace) -> str:
    """Return where events are kept; "" for nowhere."""
    from bert4rec.serving.events import EVENTS_FILE

    if arguments.events:
        return "" if arguments.events == NOWHERE else str(arguments.events)
    return str(arguments.model / EVENTS_FILE) if is_models_folder(arguments.model) else ""


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the address. Raises `SettingsError` if it cannot be."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        raise SettingsError(
            f"--host={host} --port={port}: {error.strerror}; name another one, or stop what is there"
        ) from None
    listening.set_inheritable(True)
    return listening
