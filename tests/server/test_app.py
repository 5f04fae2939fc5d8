"""The answers of the server are those of the model, and what a client does wrong is one line."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bert4rec import load
from bert4rec.server import guard, scorer
from bert4rec.server.app import make_app
from bert4rec.server.batches import TooBusyError
from bert4rec.server.parts import Settings
from bert4rec.serving.recommender import Recommender
from tests.fixture_types import Patch
from tests.server.conftest import Serve, as_query, figure, items_in

pytestmark = pytest.mark.usefixtures("alone", "quick")


def listed(model: Recommender, histories: Any, k: int, **options: Any) -> list[list[Any]]:
    return [[one.item for one in found] for found in model.recommend(histories, k, **options)]


def users_of(model: Recommender) -> dict[Any, Any]:
    users = model.users(with_times=model.reads_times, with_events=False)
    return {user: history for part in users.all() for user, history in part}


def test_answers_are_those_of_the_model(shop: Path, serve: Serve) -> None:
    model, client = load(shop), serve(shop)
    known = users_of(model)
    names = [*known][:40]
    answer = client.recommend([{"user": name} for name in names], k=7)
    assert items_in(answer) == listed(model, [known[name] for name in names], 7)
    assert answer["version"] == client.read("GET", "/v1/version")["version"]
    again = client.recommend([as_query(known[name]) for name in names], k=3)
    assert items_in(again) == [found[:3] for found in items_in(answer)]
    scores = [one.score for one in model.recommend([known[names[0]]], 7)[0]]
    assert [one["score"] for one in answer["lists"][0]["items"]] == pytest.approx(scores, abs=1e-4)
    assert all(found["is_known"] and not found["fallback"] for found in answer["lists"])


def test_options_are_those_of_the_model(shop: Path, serve: Serve) -> None:
    model, client = load(shop), serve(shop)
    known = users_of(model)
    histories = [known[name] for name in [*known][:9]]
    rules = model.rules(where="train_count > 3", at_most=1, per="train_count")
    for body, options in (
        ({"seen": "keep"}, {"leave_out_seen": False}),
        ({"seen": "leave-out"}, {"leave_out_seen": True}),
        ({"seen": "by-item"}, {"leave_out_seen": "by_item"}),
        ({"allow": [1, 2, 3, 999]}, {"allow": [1, 2, 3]}),
        ({"deny": [1, 2, 3, 999], "seen": "keep"}, {"deny": [1, 2, 3], "leave_out_seen": False}),
        ({"where": "train_count > 3", "at_most": 1, "per": "train_count"}, {"rules": rules}),
    ):
        answer = client.recommend([as_query(history) for history in histories], k=4, **body)
        assert items_in(answer) == listed(model, histories, 4, **options), body
    similar = client.read("POST", "/v1/similar", json={"items": [1, "2"], "k": 4, "where": "train_count > 3"})
    expected = model.similar([1, 2], 4, rules=model.rules(where="train_count > 3"))
    assert items_in(similar) == [[one.item for one in found] for found in expected]


def test_who_is_not_known_gets_popular_items_and_is_told_so(shop: Path, serve: Serve) -> None:
    model, client = load(shop), serve(shop)
    answer = client.recommend([{"items": []}, {"items": [999]}, {"user": "nobody"}, {"items": [1, 999]}], k=5)
    popular = model.recommend([[]], 5)[0]
    assert items_in(answer)[:3] == [[one.item for one in popular]] * 3
    assert [found["fallback"] for found in answer["lists"]] == [popular.fallback] * 3 + [""]
    assert [found["unknown"] for found in answer["lists"]] == [[], [999], [], [999]]
    assert [found["is_known"] for found in answer["lists"]] == [True, True, False, True]
    assert figure(client, "bert4rec_unknown_items_total") == 2


WRONG = [
        ("{", 400), ("", 422), ("[1]", 422), ("null", 422), ('"x"', 422), ('{"queries": [{"items": [1e400]}]}', 422),
        ({"queries": []}, 422), ({"queries": [{}]}, 422), ({"queries": [{"user": "u1", "items": [1]}]}, 422),
        ({"queries": [{"items": [1]}], "k": 0}, 422), ({"queries": [{"items": [1]}], "k": True}, 422),
        ({"queries": [{"items": [1]}], "k": 10**30}, 422), ({"queries": [{"items": [1.5]}]}, 422),
        ({"queries": [{"items": [[1]]}]}, 422), ({"queries": [{"items": [10**30]}]}, 422),
        ({"queries": [{"items": ["x" * 600]}]}, 422), ({"queries": [{"items": [1], "times": [1, 2]}]}, 422),
        ({"queries": [{"items": [1, 2], "times": [2, 1]}]}, 422), ({"queries": [{"user": "u1", "times": [2]}]}, 422),
        ({"queries": [{"items": [1], "times": [5], "at": 4}]}, 422), ({"queries": [{"items": [1]}], "other": 1}, 422),
        ({"queries": [{"items": [1]}], "seen": "maybe"}, 422), ({"queries": [{"items": [1]}], "at_most": 1}, 422),
        ({"queries": [{"items": [1]}], "where": "no_column = 1"}, 422),
        ({"queries": [{"items": [1]}], "where": "("}, 422), ({"queries": [{"items": [1]}], "where": "item / 0"}, 422),
        ({"queries": [{"items": [1]}], "where": "train_count > 10000"}, 422),
        ({"queries": [{"items": [1]}], "where": "item = (SELECT 1)"}, 422),
        ({"queries": [{"items": [1]}], "at_most": 1, "per": "no_column"}, 422),
        ({"queries": [{"items": [1]}], "allow": [999]}, 422), ({"queries": [{"items": ["\ud800"]}]}, 422),
]  # fmt: skip


def test_what_is_wrong_is_one_line(shop: Path, serve: Serve) -> None:
    client = serve(shop, events="")
    for body, status in WRONG:
        content = body if isinstance(body, str) else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        client.read("POST", "/v1/recommend", status, content=content, headers=headers)
    assert items_in(client.recommend([{"items": [1]}], k=2))  # it goes on


def test_a_bad_query_costs_no_other_request_its_answer(shop: Path, serve: Serve) -> None:
    model, client = load(shop), serve(shop)
    parts = client.app.app.state.parts  # type: ignore[attr-defined]
    options = scorer.Options()

    async def both() -> list[Any]:
        good, bad = ([scorer.Query(3, options, history=history)] for history in ([1], {"no": "list"}))
        return await asyncio.gather(parts.scorer.recommend(good), parts.scorer.recommend(bad), return_exceptions=True)

    (good, *_), bad = asyncio.run(both())
    assert [one.item for one in good.found] == listed(model, [[1]], 3)[0]
    assert isinstance(bad, scorer.Problem)


def test_paths_that_are_not_there_and_other_methods(shop: Path, serve: Serve) -> None:
    client = serve(shop)
    for method, path, status in (
        ("GET", "/nothing", 404), ("GET", "/v1/../../etc/passwd", 404), ("GET", "/v1/recommend", 405),
        ("POST", "/v1/items", 405), ("GET", "/v1/users/nobody", 404), ("GET", "/v1/users/%2e%2e%2fx", 404),
        ("GET", "/v1/items?limit=0", 422), ("GET", "/v1/items?limit=x", 422),
        ("GET", f"/v1/items?query={'x' * 300}", 422),
    ):  # fmt: skip
        client.read(method, path, status)
    assert client.read("POST", "/v1/similar", 404, json={"items": [999]})


def test_requests_need_the_key_if_there_is_one(shop: Path, serve: Serve) -> None:
    client = serve(shop, key="s3cret")
    for headers in (
        {},
        {"X-API-Key": "s3cre"},
        {"X-API-Key": "s3crets"},
        {"Authorization": "Bearer x"},
        {"Authorization": "s3cret"},
    ):
        client.read("GET", "/v1/version", 401, headers=headers)
    for headers in ({"X-API-Key": "s3cret"}, {"Authorization": "Bearer s3cret"}, {"authorization": "bearer s3cret"}):
        client.read("GET", "/v1/version", headers=headers)
    for path in ("/health/live", "/health/ready", "/"):
        assert client.get(path).status_code == 200


def test_bodies_have_limits(shop: Path, serve: Serve, monkeypatch: Patch) -> None:
    monkeypatch.setattr(guard, "MOST_BYTES", 1000)
    monkeypatch.setattr(guard, "SECONDS_OF_BODY", 0.05)
    client = serve(shop)
    big = json.dumps({"queries": [{"items": [1] * 600}]})
    client.read("POST", "/v1/recommend", 413, content=big)
    client.read(
        "POST", "/v1/recommend", 413, content=iter([big[:500].encode(), big[500:].encode()])
    )  # without a length

    sent: list[Any] = []

    async def slow() -> Any:
        await asyncio.sleep(5)

    async def send(message: Any) -> None:
        sent.append(message)

    app = make_app(Settings(shop))
    scope = {"type": "http", "method": "POST", "path": "/v1/recommend", "headers": []}
    asyncio.run(app(scope, slow, send))
    assert sent[0]["status"] == 408


def test_who_waits_too_long_a_queue_is_told_to_come_again(shop: Path, serve: Serve, monkeypatch: Patch) -> None:
    monkeypatch.setattr(scorer, "MOST_QUERIES_WAITING", 3)
    client = serve(shop)
    parts = client.app.app.state.parts  # type: ignore[attr-defined]

    async def many() -> list[Any]:
        query = [scorer.Query(3, scorer.Options(), history=[1])]
        return await asyncio.gather(*(parts.scorer.recommend(query) for _ in range(50)), return_exceptions=True)

    results = asyncio.run(many())
    busy = [one for one in results if isinstance(one, TooBusyError)]
    answered = [one for one in results if isinstance(one, list)]
    assert busy
    assert answered
    assert len(busy) + len(answered) == 50


def test_the_page_is_whole_and_nothing_else_is_loaded(shop: Path, serve: Serve) -> None:
    client = serve(shop)
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert "http://" not in page.text.replace("http://www.w3.org", "")
    assert "https://" not in page.text
    assert client.get("/nights").status_code in (200, 404)
