"""Servers of a small models folder, in this process."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from bert4rec.server.app import make_app
from bert4rec.server.parts import Settings
from bert4rec.serving.events import EVENTS_FILE
from tests.update.conftest import first_run, quick, shop

__all__ = ["first_run", "quick", "shop"]


class Asking(TestClient):
    """A client that reads answers, and checks that errors are of one line that shows no path of the server."""

    def read(self, method: str, path: str, status: int = 200, **given: Any) -> Any:
        answer = self.request(method, path, **given)
        assert answer.status_code == status, answer.text
        content = answer.json()
        if status >= 400:
            assert set(content) == {"error"}
            assert "\n" not in content["error"]
            assert str(Path.cwd()) not in content["error"]
            assert "/tmp" not in content["error"]
        return content

    def recommend(self, queries: Sequence[Any], status: int = 200, **options: Any) -> Any:
        return self.read("POST", "/v1/recommend", status, json={"queries": queries, **options})

    def store(self, *events: Any, status: int = 200) -> Any:
        return self.read("POST", "/v1/events", status, json={"events": list(events)})


Serve = Callable[..., Asking]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server of a model: `serve(path, key="…")`."""
    with ExitStack() as running:

        def start(model: Path, *, events: str | None = None, **settings: Any) -> Asking:
            kept = str(model / EVENTS_FILE) if events is None else events
            return running.enter_context(Asking(make_app(Settings(model, events=kept, **settings))))

        yield start


def items_in(answer: Any) -> list[list[Any]]:
    """The items of each list of an answer."""
    return [[one["item"] for one in found["items"]] for found in answer["lists"]]


def figure(client: Asking, name: str) -> float:
    """The sum of a figure of the server over its labels."""
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def as_query(history: Any) -> dict[str, Any]:
    """A history of a recommender as a query."""
    if isinstance(history, list):
        return {"items": history}
    found = {"items": [*history.items], "times": [*history.times], "events": [*history.events]}
    return json.loads(json.dumps({name: value for name, value in found.items() if value}))
