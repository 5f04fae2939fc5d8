"""The requests a second of `bert4rec serve`, and how long they take, beside a plain server of twenty lines.

    python -m benchmarks.server_load [--items=100000] [--length=20] [--connections=16] [--seconds=20] [--rounds=3]
                                     [--ann | --alone | --events] [--rectools=PYTHON]

The model has the shape of config.toml (width 64) with random weights; vectors of items have 16 factors and some noise,
since near ones could not be found among vectors of noise alone. Both servers and the load are on this machine; the load
is one process of raw sockets, whose share of a core is printed. Each request is another history. The servers take
turns. `--rectools` adds `recommend` of RecTools behind such a plain server (`benchmarks/rectools_server.py`), run by
the Python of an environment that has it. `--ann` measures `bert4rec serve --ann` instead, `--alone` without the plain
server, `--events` requests that store one event each, in SQLite.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bert4rec.runtime.console import log_to_terminal

K = 10
SERVERS = ("bert4rec serve", "plain", "RecTools")
HEADERS = "content-type: application/json"
WARM_UP_SECONDS = 1.0
LONGEST_START = 600.0  # seconds


def main() -> None:
    """Print a line for each server."""
    options = _options()
    if options.child:
        serve(options)
        return
    ours, plain, rectools = SERVERS
    servers = [ours] if options.ann or options.alone or options.events else [ours, plain]
    servers += [rectools] if options.rectools else []
    found: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    for _ in range(options.rounds):
        for name in servers:
            found[name].append(measured(name, options))
    for name, rounds in found.items():
        best = {key: float(np.median([one[key] for one in rounds])) for key in rounds[0]}
        print(
            f"{name}: {options.items:,} items, histories of {options.length}, {options.connections} connections: "
            f"{best['rate']:.0f} requests/s, median {best['p50']:.1f} ms, 99th percentile {best['p99']:.1f} ms; "
            f"the load took {100 * best['load']:.0f} % of a core, the server {100 * best['server']:.0f} %; its memory "
            f"grew by {best['growth']:.1f} MB over {best['n']:,.0f} requests"
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ann", action="store_true")
    parser.add_argument("--events", action="store_true")
    parser.add_argument("--alone", action="store_true", help="without the plain server")
    parser.add_argument("--rectools", metavar="PYTHON", help="beside RecTools, in this Python's environment")
    parser.add_argument("--child", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rectools and (options.ann or options.alone or options.events):
        parser.error("--rectools: is beside the plain server, which --ann, --alone and --events leave out")
    return options


def random_model(n_items: int) -> Any:
    """Return a recommender with random weights."""
    import torch

    from benchmarks.recommend import random_network
    from bert4rec.serving.histories import ItemIds
    from bert4rec.serving.recommender import Recommender

    ids = ItemIds([f"i{item}" for item in range(n_items)], [f"Title {item}" for item in range(n_items)])
    network = random_network(n_items)
    width = network.embed_dim
    factors = torch.randn(len(network.rows), 16) @ torch.randn(16, width) / 4
    network.rows[:, :width] = factors + 0.1 * network.rows[:, :width]
    network.rows = network.rows[:n_items]
    return Recommender(network, ids, settings={"model": {"kind": "bert4rec"}})


def serve(options: argparse.Namespace) -> None:
    """Serve with a random model until the process is killed."""
    import torch
    import uvicorn

    torch.manual_seed(1)
    model = random_model(options.items)
    if options.child == "plain":
        from fastapi import FastAPI

        app: Any = FastAPI()

        @app.post("/v1/recommend")
        def recommend(body: dict[str, Any]) -> list[dict[str, Any]]:
            (found,) = model.recommend([body["queries"][0]["items"]], body["k"])
            return [{"item": one.item, "title": one.title, "score": one.score} for one in found]
    else:
        from bert4rec.server.app import make_app
        from bert4rec.server.parts import Settings
        from bert4rec.server.served import Served
        from bert4rec.serving.nearest import NearestItems

        threads = len(os.sched_getaffinity(0))
        if options.ann:
            model = replace(model, nearest=NearestItems(model.network.item_vectors, None, threads=threads))
        served = Served("1", model, None, frozenset(), None, "")
        if options.ann:
            log_to_terminal()
            served.find_breadth()
        events = str(Path(tempfile.mkdtemp(), "events.db")) if options.events else ""
        app = make_app(Settings(Path("none"), events=events, threads=threads), served)
    uvicorn.run(app, port=options.port, log_level="error", access_log=False)


def measured(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Return the figures of a round of a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = [
        f"--items={options.items}",
        f"--child={name}",
        f"--port={port}",
        *["--ann"] * options.ann,
        *["--events"] * options.events,
    ]
    command = [sys.executable, "-m", "benchmarks.server_load", *given]
    if name == "RecTools":
        command = [options.rectools, "benchmarks/rectools_server.py", given[0], given[2]]
    server = subprocess.Popen(command)
    try:
        wait_for(port)
        call_load(port, options, WARM_UP_SECONDS)
        process = psutil.Process(server.pid)
        before, cpu = process.memory_info().rss, sum(process.cpu_times()[:2])
        figures = call_load(port, options, options.seconds)
        figures["growth"] = (process.memory_info().rss - before) / 1e6
        figures["server"] = (sum(process.cpu_times()[:2]) - cpu) / figures["seconds"]
        return figures
    finally:
        server.kill()
        server.wait()


def wait_for(port: int) -> None:
    """Return when something answers at the port."""
    until = time.monotonic() + LONGEST_START
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json")
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server did not start")


def call_load(port: int, options: argparse.Namespace, seconds: float) -> dict[str, float]:
    """Return what the load measures, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(load, (port, options, seconds))


def load(port: int, options: argparse.Namespace, seconds: float) -> dict[str, float]:
    """Send requests over some connections, each after the answer to the one before, and return the figures."""
    latencies: list[float] = []
    draw, path = np.random.default_rng(), "/v1/events" if options.events else "/v1/recommend"

    async def talk(until: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < until:
            items = [f"i{item}" for item in draw.integers(options.items, size=options.length)]
            content: Any = {"queries": [{"items": items}], "k": K}
            if options.events:
                content = {"events": [{"user": f"u{draw.integers(10**9)}", "item": items[0]}]}
            body = json.dumps(content).encode()
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\n{HEADERS}\r\ncontent-length: {len(body)}"
            began = time.perf_counter()
            writer.write(head.encode() + b"\r\n\r\n" + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            n = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(n)
            latencies.append(time.perf_counter() - began)
        writer.close()

    async def all_connections() -> None:
        until = time.perf_counter() + seconds
        await asyncio.gather(*(talk(until) for _ in range(options.connections)))

    began, cpu = time.perf_counter(), time.process_time()
    asyncio.run(all_connections())
    took = time.perf_counter() - began
    p50, p99 = 1e3 * np.percentile(latencies, [50, 99])
    return {
        "rate": len(latencies) / took, "p50": p50, "p99": p99, "load": (time.process_time() - cpu) / took,
        "n": len(latencies), "seconds": took,
    }  # fmt: skip


if __name__ == "__main__":
    main()
