"""Servers in processes of their own: ended, killed, several of them.

KILLS=1000 in the environment kills as often instead of three times; POSTGRESQL=postgresql://… keeps the events there.
"""

import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvicorn

from bert4rec.server.app import make_app
from bert4rec.server.parts import Settings
from bert4rec.serving.events import EVENTS_FILE, Events
from tests.launch import ROOT

KILLS = int(os.environ.get("KILLS", "3"))
LONGEST = 90.0  # seconds of a start


@contextmanager
def served(model: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server that answers, at its address."""
    command = [sys.executable, "-m", "bert4rec", "serve", str(model), "--port=0", *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split(": ")[0]
        until = time.monotonic() + LONGEST
        while True:
            try:
                ask(address, "/health/ready")
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.05)
        yield address, process
    finally:
        process.kill()
        process.wait()


def ask(address: str, path: str, body: Any = None, timeout: float = 30) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read())


def recommend(address: str, queries: Sequence[Any]) -> list[list[Any]]:
    lists = ask(address, "/v1/recommend", {"queries": queries, "k": 5})["lists"]
    return [[one["item"] for one in found["items"]] for found in lists]


@pytest.mark.usefixtures("alone", "quick")
def test_it_answers_what_it_has_begun_when_it_is_told_to_end(shop: Path) -> None:
    with served(shop, "--access-log") as (address, process):
        expected, answers = recommend(address, [{"items": [1, 2]}]), list[Any]()
        asking = [
            threading.Thread(target=lambda: answers.append(recommend(address, [{"items": [1, 2]}] * 200)))
            for _ in range(4)
        ]
        for thread in asking:
            thread.start()
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        for thread in asking:
            thread.join()
        assert process.wait(60) == 0
        assert answers == [expected * 200] * len(answers)
        assert answers


@pytest.mark.long
@pytest.mark.usefixtures("alone", "quick")
def test_workers_answer_alike_and_one_that_is_killed_comes_back(shop: Path) -> None:
    with served(shop, "--workers=2") as (address, process):
        children = {int(one) for one in children_of(process.pid)}
        expected = recommend(address, [{"items": [1, 2]}])
        assert len(children) >= 2
        for user in range(30):
            ask(address, "/v1/events", {"events": [{"user": f"v{user}", "item": 3}]})
        for user in range(30):  # by whichever worker
            assert recommend(address, [{"user": f"v{user}"}]) == recommend(address, [{"items": [3]}])
        assert recommend(address, [{"items": [1, 2]}]) == expected
        for child in children:
            os.kill(child, signal.SIGKILL)
        until = time.monotonic() + LONGEST
        while True:
            try:
                assert recommend(address, [{"items": [1, 2]}]) == expected
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.long
@pytest.mark.usefixtures("alone", "quick")
def test_clients_that_cut_drip_and_lie_cost_the_others_nothing(shop: Path) -> None:
    draw, body = random.Random(1), json.dumps({"queries": [{"items": [1, 2]}]}).encode()
    head = b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    whole = head + b"content-length: %d\r\n\r\n%s" % (len(body), body)
    kinds = (
        lambda: whole[: draw.randrange(len(whole))],
        lambda: bytes(draw.randrange(256) for _ in range(draw.randrange(1, 400))),
        lambda: head + b"content-length: 99999999999\r\n\r\n" + body,
        lambda: head + b"content-length: -1\r\n\r\n" + body,
        lambda: head + b"transfer-encoding: chunked\r\n\r\nffffff\r\n" + body,
        lambda: b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        lambda: b"GET / HTTP/1.1\r\n" + b"a: " + b"b" * 200_000 + b"\r\n\r\n",
        lambda: b"GET /../../../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n",
        lambda: b"GET /v1/users/%00%ff%2e%2e HTTP/1.1\r\nhost: x\r\n\r\n",
        lambda: whole * draw.randrange(1, 4),
    )
    with served(shop, "--events=none") as (address, process):
        host, port = address.removeprefix("http://").split(":")
        expected, idle = recommend(address, [{"items": [1, 2]}]), list[socket.socket]()
        for number in range(3000):
            connection = socket.create_connection((host, int(port)), timeout=5)
            try:
                connection.sendall(kinds[number % len(kinds)]())
                if number % 3 == 0:
                    connection.settimeout(0.02)
                    answer = connection.recv(65_536)
                    assert b" 500 " not in answer.split(b"\r\n")[0]
                    assert str(ROOT).encode() not in answer
                    assert b"root:" not in answer
            except OSError:  # it hangs up, or waits for more
                pass
            idle.append(connection)
            if len(idle) > 200:  # so many stay open without a word
                idle.pop(0).close()
            if number == 500:
                before = psutil.Process(process.pid).memory_info().rss
            if number % 100 == 0:
                assert recommend(address, [{"items": [1, 2]}]) == expected
        assert psutil.Process(process.pid).memory_info().rss - before < 60e6
        assert recommend(address, [{"items": [1, 2]}]) == expected


def children_of(process: int) -> list[str]:
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def serve_at(model: Path, place: str, listening: socket.socket) -> None:
    """Serve at a socket, until the process is killed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    app = make_app(Settings(model, events=place))
    uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on")).run([listening])


@pytest.mark.long
@pytest.mark.timeout(20_000)
@pytest.mark.usefixtures("alone", "quick")
def test_what_was_acknowledged_before_a_kill_is_stored_once(shop: Path) -> None:
    place = os.environ.get("POSTGRESQL", str(shop / EVENTS_FILE))
    draw, acknowledged, n_sent = random.Random(1), set[str](), 0
    start, context = Events(place), multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bert4rec.server.app", "tests.server.test_processes"])
    before, ending = set(start.ids("user_id")), threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"

    def post(writer: int) -> None:
        nonlocal n_sent
        while not ending.is_set():
            n_sent += 1
            name = f"{os.getpid()}-{writer}-{time.monotonic_ns()}"
            event = {"user": name, "item": 1, "key": name}
            for _ in range(1000):
                try:
                    ask(address, "/v1/events", {"events": [event, event]}, timeout=1)
                    acknowledged.add(name)
                    break
                except (OSError, ValueError, HTTPException):  # whether it is stored is unknown: it is sent again
                    if ending.is_set():
                        return

    writers = [threading.Thread(target=post, args=(writer,)) for writer in range(4)]
    for writer in writers:
        writer.start()
    for _ in range(KILLS):
        n_before = len(acknowledged)
        process = context.Process(target=serve_at, args=(shop, place, listening))
        process.start()
        until = time.monotonic() + LONGEST
        while len(acknowledged) == n_before:
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(draw.random() * 0.2)
        process.kill()
        process.join()
    ending.set()
    for writer in writers:
        writer.join()
    stored = start.by_user(acknowledged)
    assert {*stored} == acknowledged
    assert all(len(events) == 1 for events in stored.values())
    assert len(acknowledged) > KILLS
    assert start.claim("update", []) >= len(acknowledged)
    assert start.claim("next", ["update"]) == 0
    start.forget("user_id", [*{*start.ids("user_id")} - before])
    start.close()
    print(f"{KILLS} kills, {n_sent:,} events, {len(acknowledged):,} acknowledged")
