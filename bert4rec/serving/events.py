"""Keep the events that a server gets until an update has them: in SQLite, or in PostgreSQL if several hosts serve.

Both have the same table and get the same statements. An event is stored once, however often it is sent: its key is the
table's. `received` is when it came, in nanoseconds, so that events of one second keep their order. `taken` names the
update that has read an event, or is null; what updates have appended is in the dataset.
"""

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bert4rec.config.addresses import check_url, is_url, with_variables, without_secrets
from bert4rec.runtime.errors import DataError, in_one_line

EVENTS_FILE = "events.db"  # in a models folder
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS events (key TEXT PRIMARY KEY, user_id TEXT NOT NULL, item_id TEXT NOT NULL, "
    "time BIGINT NOT NULL, event TEXT NOT NULL, rating DOUBLE PRECISION, received BIGINT NOT NULL, taken TEXT)",
    "CREATE INDEX IF NOT EXISTS events_of_users ON events (user_id, time)",
    "CREATE INDEX IF NOT EXISTS events_of_updates ON events (taken)",
)
SETUP_OF_SQLITE = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "PRAGMA secure_delete = ON")
SECONDS_OF_WAITING = 30.0  # for another writer, and for a database that is started again
DAYS_KEPT = 30  # of events that are in the dataset: so long their keys are known
VALUES_AT_ONCE = 500  # values in a statement
COLUMNS = {"user": "user_id", "item": "item_id", "time": "time", "event": "event", "rating": "rating"}
POSTGRESQL = ("postgresql://", "postgres://")

T = TypeVar("T")


class Event(NamedTuple):
    """Something that a user did with an item at a `time` in seconds; ids as text, `event` is "" for no kind."""

    key: str
    user: str
    item: str
    time: int
    event: str = ""
    rating: float | None = None


class StoredEvent(NamedTuple):
    """An event of a user, and the update that took it, if one did."""

    item: str
    time: int
    event: str
    taken: str | None


class Events:
    """The events at a `place`: a file of SQLite, or the address of a PostgreSQL database, made when it is not there.

    One thread may use it. What fails since the database is away is tried again for `SECONDS_OF_WAITING`; nothing is
    lost or doubled by that. Raises `DataError` if it stays away, and `ModuleNotFoundError` without its driver.
    """

    def __init__(self, place: str | Path, *, patience: float = SECONDS_OF_WAITING) -> None:
        self._place, self._patience = str(place), patience
        self._is_sqlite = not self._place.startswith(POSTGRESQL)
        self._connection: Any = None
        shown = without_secrets(self._place)
        if self._is_sqlite and is_url(self._place):
            raise DataError(f"{shown}: events are kept in SQLite or PostgreSQL; expected a file, or postgresql://…")
        try:
            check_url(self._place)
        except ValueError as error:
            raise DataError(f"{shown}: {error}") from None
        if self._is_sqlite:
            self._errors: tuple[type[Exception], ...] = (sqlite3.OperationalError,)
        else:
            import psycopg

            self._errors = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.SerializationFailure)
        self._again(lambda _: None)

    def add(self, events: Sequence[Event]) -> set[str]:
        """Store events in one transaction, and return the keys of those that were not there; on disk when it returns.

        Of events with the same key the first one counts.
        """
        rows = list({event.key: event for event in reversed(events)}.values())[::-1]

        def add(connection: Any) -> set[str]:
            keys = [row.key for row in rows]
            known = {key for part in _parts(keys) for (key,) in self._select(connection, "key", "key", part)}
            now = time.time_ns()
            new = [(*row, now + number, None) for number, row in enumerate(rows) if row.key not in known]
            if new:
                self._execute_many(
                    connection, f"INSERT INTO events VALUES ({_marks(new[0])}) ON CONFLICT DO NOTHING", new
                )
            return {row[0] for row in new}

        return self._again(add, writes=True)

    def by_user(self, users: Collection[str]) -> dict[str, list[StoredEvent]]:
        """Return user → events by time, for the users who have any."""
        columns, found = "user_id, item_id, time, event, taken", dict[str, list[StoredEvent]]()

        def read(connection: Any) -> list[Any]:
            parts = _parts([*users])
            return [
                row for part in parts for row in self._select(connection, columns, "user_id", part, "time, received")
            ]

        for user, *event in self._again(read):
            found.setdefault(user, []).append(StoredEvent(*event))
        return found

    def claim(self, update: str, appended: Collection[str]) -> int:
        """Let the `update` take all events that no update has `appended`, and return how many it has then.

        Those that one has appended, and that came more than `DAYS_KEPT` ago, are removed.
        """

        def claim(connection: Any) -> int:
            taken = {name for (name,) in self._execute(connection, "SELECT DISTINCT taken FROM events", ()).fetchall()}
            for name in taken - {*appended}:
                where = "taken IS NULL" if name is None else "taken = ?"
                values = (update,) if name is None else (update, name)
                self._execute(connection, f"UPDATE events SET taken = ? WHERE {where}", values)
            for name in taken & {*appended}:
                old = (name, time.time_ns() - DAYS_KEPT * 86_400 * 10**9)
                self._execute(connection, "DELETE FROM events WHERE taken = ? AND received < ?", old)
            count = "SELECT count(*) FROM events WHERE taken = ?"
            return int(self._execute(connection, count, (update,)).fetchone()[0])

        return self._again(claim, writes=True)

    def ids(self, column: str) -> list[str]:
        """Return the different users ("user_id") or items ("item_id") that have events."""

        def read(connection: Any) -> list[str]:
            return [one for (one,) in self._execute(connection, f"SELECT DISTINCT {column} FROM events", ())]

        return self._again(read)

    def forget(self, column: str, ids: Sequence[str]) -> int:
        """Remove all events of the users ("user_id") or items ("item_id") with these `ids`; return how many."""

        def forget(connection: Any) -> int:
            return sum(
                self._execute(connection, f"DELETE FROM events WHERE {column} IN ({_marks(part)})", part).rowcount
                for part in _parts(ids)
            )

        n_events = self._again(forget, writes=True)
        if self._is_sqlite:  # what was written before the removal is in the log of SQLite until it is emptied
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return n_events

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
            self._connection = None

    def _select(self, connection: Any, columns: str, column: str, values: Sequence[str], order: str = "") -> list[Any]:
        text = f"SELECT {columns} FROM events WHERE {column} IN ({_marks(values)})"
        rows: list[Any] = self._execute(connection, f"{text} ORDER BY {order}" if order else text, values).fetchall()
        return rows

    def _execute(self, connection: Any, text: str, values: Sequence[Any]) -> Any:
        return connection.execute(text if self._is_sqlite else text.replace("?", "%s"), values)

    def _execute_many(self, connection: Any, text: str, rows: Sequence[Sequence[Any]]) -> None:
        cursor = connection.cursor()
        cursor.executemany(text if self._is_sqlite else text.replace("?", "%s"), rows)

    def _again(self, work: Callable[[Any], T], *, writes: bool = False) -> T:
        """Return what `work` returns, done in one transaction; as long as the database is away, try it again."""
        until, pause = time.monotonic() + self._patience, 0.05
        while True:
            try:
                with self._transaction(writes=writes) as connection:
                    return work(connection)
            except self._errors as error:
                self.close()
                if time.monotonic() > until:
                    raise DataError(f"{without_secrets(self._place)}: {in_one_line(error)}") from None
                time.sleep(pause)
                pause = min(2 * pause, 1.0)

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[Any]:
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE" if writes and self._is_sqlite else "BEGIN")
        try:
            yield connection
        except BaseException:
            with suppress(Exception):
                connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _connect(self) -> Any:
        if self._is_sqlite:
            connection: Any = sqlite3.connect(
                self._place, timeout=self._patience, isolation_level=None, check_same_thread=False
            )
            setup: Sequence[str] = (*SETUP_OF_SQLITE, *SCHEMA)
        else:
            import psycopg

            address = with_variables(self._place, self._place)
            connection = psycopg.connect(address, autocommit=True, connect_timeout=10)
            setup = SCHEMA
        for statement in setup:
            connection.execute(statement)
        return connection


def settings_to_read(place: str | Path, update: str, columns: Collection[str]) -> dict[str, Any]:
    """Return the settings of a preparation that reads what the `update` has claimed.

    `columns` are those that its log had: "user", "item", "time", and "event" or "rating".
    """
    named = {name: column for name, column in COLUMNS.items() if name in columns}
    query = f"SELECT {', '.join(named.values())} FROM events WHERE taken = '{update}' ORDER BY time, received"
    others = {f"data.{name}_column": named.get(name, "") for name in (*COLUMNS, "order", "title")}
    usual = {"data.separator": "auto", "data.has_header": True, "data.time_format": ""}  # of a log in a file
    return {"data.source": "table", "data.path": str(place), "data.query": query, **others, **usual}


def _parts(values: Sequence[T]) -> list[Sequence[T]]:
    return [values[start : start + VALUES_AT_ONCE] for start in range(0, len(values), VALUES_AT_ONCE)]


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))
