"""An event changes the next list of its user, is stored once, and is in the dataset once after an update."""

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert4rec import load
from bert4rec.__main__ import main
from bert4rec.checkpoint.models_folder import read_updates
from bert4rec.runtime.errors import DataError
from bert4rec.server.served import Served
from bert4rec.serving.events import EVENTS_FILE, Event, Events
from bert4rec.serving.histories import items_of
from bert4rec.update.checks import Problem
from tests.fixture_types import Capture, Patch
from tests.postgresql import PASSWORD, PROGRAMS, Server, running
from tests.server.conftest import Serve, figure, items_in
from tests.update.conftest import FIRST

pytestmark = pytest.mark.usefixtures("alone", "quick")

LATER = FIRST + 4 * 86_400


def history_of(model: Path, user: Any) -> list[Any]:
    """The items that the server knows of a user, of the dataset and of the events."""
    served = Served.load(model)
    events = Events(model / EVENTS_FILE)
    (history,) = served.histories_of([user], events.by_user([served.user_key(user)]), [None])
    events.close()
    return [] if history is None else [int(item) for item in items_of(history)]


def test_a_new_event_changes_the_next_list_on_every_server(shop: Path, serve: Serve) -> None:
    model, one, other = load(shop), serve(shop), serve(shop)
    before = history_of(shop, "u1")
    assert one.store({"user": "u1", "item": 5, "time": LATER}, {"user": "u1", "item": "7", "time": LATER}) == {
        "stored": 2, "known": 0,
    }  # fmt: skip
    assert history_of(shop, "u1") == [*before, 5, 7]
    expected = [[found.item for found in model.recommend([[*before, 5, 7]], 6)[0]]]
    assert (
        items_in(one.recommend([{"user": "u1"}], k=6)) == items_in(other.recommend([{"user": "u1"}], k=6)) == expected
    )
    shown = other.read("GET", "/v1/users/u1?limit=3")
    assert [str(item["item"]) for item in shown["items"]] == [str(before[-1]), "5", "7"]
    assert shown["n_items"] == len(before) + 2


def test_who_is_new_has_the_history_of_the_events(shop: Path, serve: Serve) -> None:
    client = serve(shop)
    for item in (3, 999, 4):  # the second one is new
        client.store({"user": "stranger", "item": item})
    answer = client.recommend([{"user": "stranger"}], k=5)
    assert items_in(answer) == [[found.item for found in load(shop).recommend([[3, 4]], 5)[0]]]
    assert answer["lists"][0]["unknown"] == ["999"]
    assert answer["lists"][0]["is_known"]


def test_an_event_is_stored_once_by_its_key(shop: Path, serve: Serve) -> None:
    client = serve(shop)
    event = {"user": "u1", "item": 5, "key": "a"}
    assert client.store(event, {**event, "key": "b"}, event) == {"stored": 2, "known": 1}
    assert client.store({**event, "item": 6}) == {"stored": 0, "known": 1}
    timed = {"user": "u1", "item": 5, "time": LATER}  # user, item and time are its key
    assert client.store(timed, {**timed, "item": "5"}, {**timed, "time": LATER + 1}) == {"stored": 2, "known": 1}
    assert client.store({"user": "u1", "item": 5}, {"user": "u1", "item": 5}) == {"stored": 2, "known": 0}
    assert figure(client, "bert4rec_events_total") == 9


def test_events_that_cannot_be_used_are_refused_whole(shop: Path, serve: Serve) -> None:
    client = serve(shop)
    good = {"user": "u1", "item": 5}
    for bad in (
        {"user": "u1"},
        {"user": "", "item": 5},
        {**good, "time": "x"},
        {**good, "time": 1e300},
        {**good, "time": time.time() + 2 * 86_400},
        {**good, "item": "no number"},
        {**good, "more": 1},
        {**good, "user": "a\0b"},
        {**good, "user": 1.5},
    ):
        client.store(good, bad, status=422)
    assert client.read("POST", "/v1/events", 422, json={"events": []})
    assert client.read("POST", "/v1/events", 422, json={"events": [good] * 1001})
    assert figure(client, "bert4rec_events_total") == 0
    serve(shop, events="").store(good, status=404)


def test_an_update_reads_the_events_once(shop: Path, serve: Serve, capsys: Capture) -> None:
    client, before = serve(shop), history_of(shop, "u1")
    rows = [{"user": f"u{user}", "item": (user + 1) % 30, "time": LATER + 60 * user} for user in range(60)]
    rows += [{"user": "u1", "item": item, "time": LATER + 5000} for item in (9, 8)]  # in one second, in this order
    client.store(*rows, {"user": "stranger", "item": 77, "time": LATER})
    assert main(["update", str(shop), "--data=events", "--accept"]) in (0, 3)
    update = read_updates(shop)[-1]
    assert update["decision"] != "stopped", update
    assert (update["rows"]["read"], update["rows"]["new"]) == (63, 63)
    assert history_of(shop, "u1") == [*before, 2, 9, 8]  # neither doubled nor lost
    assert history_of(shop, "stranger") == [77]
    assert main(["update", str(shop), "--data=events"]) == 3
    assert read_updates(shop)[-1]["reasons"] == ["stopped: no event has come since the last update"]
    client.store({"user": "u1", "item": 3, "time": LATER + 9000})
    assert history_of(shop, "u1") == [*before, 2, 9, 8, 3]
    capsys.readouterr()


def test_what_a_stopped_update_took_is_taken_by_the_next(shop: Path, serve: Serve, monkeypatch: Patch) -> None:
    client, before = serve(shop), history_of(shop, "u1")
    client.store(*[{"user": "u1", "item": item, "time": LATER + item} for item in range(5)])
    with monkeypatch.context() as stopping:
        stopping.setattr("bert4rec.update.nightly.before_training", lambda *_: [Problem("made up", "stopped", True)])
        assert main(["update", str(shop), "--data=events"]) == 3
    assert read_updates(shop)[-1]["decision"] == "stopped"
    assert history_of(shop, "u1") == [*before, *range(5)]
    client.store(*[{"user": f"u{user}", "item": 3, "time": LATER + user} for user in range(2, 40)])
    assert main(["update", str(shop), "--data=events", "--accept"]) in (0, 3)
    assert read_updates(shop)[-1]["rows"]["new"] == 43
    assert history_of(shop, "u1") == [*before, *range(5)]


@pytest.mark.long
def test_an_update_with_a_file_leaves_the_events_for_the_next(shop: Path, serve: Serve) -> None:
    client, before = serve(shop), history_of(shop, "u1")
    client.store({"user": "u1", "item": 5, "time": FIRST + 3 * 86_400 - 1})
    assert main(["update", str(shop), f"--data={shop.parents[1] / 'day-3.csv'}"]) in (0, 3)
    assert len(history_of(shop, "u1")) > len(before)
    assert history_of(shop, "u1").count(5) == before.count(5) + 1 + items_of_day(shop, "u1").count(5)
    assert main(["update", str(shop), "--data=events", "--accept"]) in (0, 3)
    assert read_updates(shop)[-1]["rows"]["new"] == 1


def items_of_day(shop: Path, user: str) -> list[int]:
    lines = (shop.parents[1] / "day-3.csv").read_text().splitlines()[1:]
    return [int(item) for name, item, _ in (line.split(",") for line in lines) if name == user]


def test_the_events_of_who_is_forgotten_are_in_no_file(shop: Path, serve: Serve, capsys: Capture) -> None:
    client = serve(shop)
    client.store(*[{"user": user, "item": 5, "time": LATER} for user in ("u1", "visitor-4711", "u2")])
    assert main(["models", "forget", str(shop), "--user=visitor-4711", "--prove"]) == 1
    for user, rest in (("visitor-4711", {"u1", "u2"}), ("u1", {"u2"})):
        assert main(["models", "forget", str(shop), f"--user={user}"]) == 0
        assert main(["models", "forget", str(shop), f"--user={user}", "--prove"]) == 0
        assert not any(user.encode() in path.read_bytes() for path in shop.glob(f"{EVENTS_FILE}*") if len(user) > 3)
        with sqlite3.connect(shop / EVENTS_FILE) as database:
            assert {name for (name,) in database.execute("SELECT user_id FROM events")} == rest
    assert main(["models", "forget", str(shop), "--item=5"]) == 0
    with sqlite3.connect(shop / EVENTS_FILE) as database:
        assert database.execute("SELECT count(*) FROM events").fetchone() == (0,)
    capsys.readouterr()


def test_many_writers_of_one_file_store_each_event_once(tmp_path: Path) -> None:
    """The workers of a server, with the same events sent to several of them."""
    place, stored = tmp_path / "events.db", list[int]()

    def write(first: int) -> None:
        events = Events(place)
        for number in range(first, first + 40):
            stored.append(len(events.add([Event(str(number % 97), f"u{number}", "1", number)])))
        events.close()

    writers = [threading.Thread(target=write, args=(first,)) for first in range(0, 160, 20)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sum(stored) == 97
    events = Events(place)
    assert sum(map(len, events.by_user([f"u{number}" for number in range(200)]).values())) == 97
    assert events.claim("first", []) == 97
    assert events.claim("second", ["first"]) == 0
    assert events.claim("third", []) == 97  # the first one has not appended them
    events.close()


def test_a_database_that_is_away_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="events"):
        Events(tmp_path / "no folder" / "events.db", patience=0.1)
    with pytest.raises(DataError, match="SQLite or PostgreSQL"):
        Events("mysql://host/db")


def test_events_that_are_in_the_dataset_are_removed_after_a_while(tmp_path: Path, monkeypatch: Patch) -> None:
    events, rows = Events(tmp_path / "events.db"), [Event(str(number), "u1", "1", number) for number in range(5)]
    events.add(rows[:3])
    assert events.claim("first", []) == 3
    events.add(rows[3:])
    assert events.claim("second", ["first"]) == 2  # the first ones are still known
    assert events.add(rows) == set()
    monkeypatch.setattr("bert4rec.serving.events.DAYS_KEPT", 0)
    assert events.claim("third", ["first"]) == 2  # the second update has not appended its own
    assert [event.taken for event in events.by_user(["u1"])["u1"]] == ["third"] * 2
    events.close()


@pytest.mark.parametrize(
    "place",
    [
        "mysql://host/db",
        "postgresql://ann:secret@host/db",
        "/no folder/events.db",
        "postgresql://127.0.0.1:9/db",
        "postgresql://$NOWHERE/db",
    ],
)
def test_a_place_that_cannot_keep_events_is_one_line(
    shop: Path, place: str, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("bert4rec.commands.serve.SECONDS_OF_DATABASE", 0.1)
    capsys.readouterr()
    assert main(["serve", str(shop), "--port=0", f"--events={place}"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1


def test_a_server_with_other_ids_finds_users_by_their_numbers(shop: Path, serve: Serve) -> None:
    client = serve(shop)
    client.store({"user": "u1", "item": 7.0 and "7", "time": LATER})
    assert json.dumps(client.read("GET", "/v1/users/u1")["items"][-1]["item"]).strip('"') == "7"


@pytest.fixture
def postgresql(monkeypatch: Patch) -> Iterator[Server]:
    """A server of its own, and its address."""
    pytest.importorskip("psycopg")
    if not PROGRAMS:
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with running(syncs=True) as server:
        yield server


def test_several_hosts_keep_their_events_in_postgresql(
    shop: Path, serve: Serve, postgresql: Server, capsys: Capture
) -> None:
    place, control = postgresql
    model, one, other = load(shop), serve(shop, events=place), serve(shop, events=place)
    before = [int(item) for item in items_of(Served.load(shop).histories_of(["u1"], {}, [None])[0] or [])]
    assert one.store({"user": "u1", "item": 5, "key": "a"}, {"user": "u1", "item": 7}) == {"stored": 2, "known": 0}
    assert other.store({"user": "u1", "item": 5, "key": "a"}) == {"stored": 0, "known": 1}
    expected = [[found.item for found in model.recommend([[*before, 5, 7]], 6)[0]]]
    assert items_in(other.recommend([{"user": "u1"}], k=6)) == expected
    control("restart", "-m", "immediate")  # it is away, and forgets its connections
    assert one.store({"user": "u1", "item": 9}) == {"stored": 1, "known": 0}
    other.recommend([{"user": "u1"}], k=6)
    assert main(["update", str(shop), "--data=events", f"--events={place}", "--accept"]) in (0, 3)
    assert read_updates(shop)[-1]["rows"]["new"] == 3
    assert main(["update", str(shop), "--data=events", f"--events={place}"]) == 3
    assert main(["models", "forget", str(shop), "--user=u1", f"--events={place}"]) == 0
    events = Events(place)
    assert events.ids("user_id") == []
    events.close()
    capsys.readouterr()
    assert PASSWORD.encode() not in (shop / "updates.jsonl").read_bytes()


def test_options_that_would_do_nothing_are_refused(shop: Path, capsys: Capture) -> None:
    for words in (
        ["serve", str(shop), "--mcp=stdio", "--port=9000"], ["serve", str(shop), "--mcp=stdio", "--access-log"],
        ["models", "forget", str(shop), "--user=u1", "--prove", "--events=postgresql://db/shop"],
    ):  # fmt: skip
        capsys.readouterr()
        assert main(words) == 2
        said = capsys.readouterr()
        assert (said.out, len(said.err.splitlines())) == ("", 1)
