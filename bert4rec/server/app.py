"""The application: the paths, and what stands behind them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version as version_of
from importlib.resources import files
from itertools import zip_longest
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from bert4rec.config.kinds import SEEN
from bert4rec.dataset.format import NO_ITEM
from bert4rec.runtime.startup import DISTRIBUTION
from bert4rec.server import bodies
from bert4rec.server.batches import TooBusyError
from bert4rec.server.guard import Guard
from bert4rec.server.inbox import key_of
from bert4rec.server.metrics import Metrics
from bert4rec.server.parts import Parts, Settings, started
from bert4rec.server.scorer import Answer, Options, Problem
from bert4rec.server.scorer import Query as Asked
from bert4rec.server.served import Served
from bert4rec.serving.events import Event
from bert4rec.serving.histories import TimedHistory, items_of

VERSION_OF_PROGRAM = version_of(DISTRIBUTION)
MOST_FOUND = 100
MOST_AHEAD = 86_400  # seconds of an event: local times are up to 14 hours ahead of UTC
MOST_UNKNOWN_SHOWN = 10
MOST_OF_USER = 200  # items of a user's history that are shown
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": bodies.Error, "description": text}
    for status, text in {
        400: "the body is no JSON", 401: "the key is missing or wrong", 404: "there is no such thing",
        405: "the path has other methods", 408: "the body did not come in time",
        413: "the body is too large", 422: "a value cannot be used", 429: "too many requests wait",
        503: "not now; try again later",
    }.items()
}  # fmt: skip


def make_app(settings: Settings, served: Served | None = None) -> Guard:
    """Return the application; `served` is the model if it is loaded already."""
    metrics, tools = Metrics(), None
    if settings.with_tools:
        from bert4rec.server.tools import make_tools, tools_app

        tools = make_tools(lambda: app.state.parts)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with started(settings, metrics, served) as app.state.parts:
            async with AsyncExitStack() as also:
                if tools:
                    await also.enter_async_context(tools.session_manager.run())
                yield

    app = FastAPI(
        title="bert4rec", version=VERSION_OF_PROGRAM, lifespan=lifespan, root_path=settings.root_path, responses=ERRORS,
        description="Recommendations of a sequential model.", docs_url=None, redoc_url=None,
    )  # fmt: skip
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(HTTPException, _no_such_path)
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(TooBusyError, _too_busy)
    _add_paths(app)
    if tools:
        app.router.routes.extend(tools_app(tools).routes)
    return Guard(app, metrics, key=settings.key, log=settings.log)


def _add_paths(app: FastAPI) -> None:
    app.post("/v1/recommend", response_model=bodies.Lists, summary="The next items for users or histories")(_recommend)
    app.post("/v1/similar", response_model=bodies.Lists, summary="The items most similar to items")(_similar)
    app.get("/v1/items", response_model=bodies.FoundItems, summary="Items by title")(_items)
    app.get("/v1/users/{user:path}", response_model=bodies.UserAnswer, summary="The history of a user")(_user)
    app.post("/v1/events", response_model=bodies.StoredEvents, summary="Store events")(_events)
    app.get("/v1/version", response_model=bodies.Version, summary="What answers")(_version)
    app.get("/health/live", summary="Whether the process answers")(_live)
    app.get("/health/ready", summary="Whether requests are answered")(_ready)
    app.get("/metrics", summary="Figures for Prometheus", response_class=Response)(_metrics)
    app.get("/", include_in_schema=False, response_class=HTMLResponse)(_page)
    app.get("/nights", include_in_schema=False, response_class=HTMLResponse)(_nights)


def _parts(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


async def _recommend(body: bodies.RecommendRequest, request: Request) -> Response:
    options = Options(
        None if body.seen is None else SEEN[body.seen], None if body.allow is None else tuple(body.allow),
        tuple(body.deny), body.where, body.at_most, body.per,
    )  # fmt: skip
    asked = [
        Asked(body.k, options, query.user, None if query.items is None else _history(query), query.at)
        for query in body.queries
    ]
    return _lists(await _parts(request).scorer.recommend(asked))


def _history(query: bodies.Query) -> Any:
    """Return the history that a query has, as a recommender takes it."""
    if query.times is None and query.events is None and query.at is None:
        return query.items
    return TimedHistory(query.items or [], query.times or (), query.at, query.events or ())


async def _similar(body: bodies.SimilarRequest, request: Request) -> Response:
    def similar(served: Served) -> list[Answer]:
        for item, index in zip(body.items, served.model.ids.indices(body.items), strict=True):
            if index == NO_ITEM:
                raise Problem(f"items: the model does not know the item {item}", 404)
        rules = served.rules(body.where, body.at_most, body.per)
        return [Answer(served.version, found, []) for found in served.model.similar(body.items, body.k, rules=rules)]

    return _lists(await _parts(request).scorer.do(similar))


async def _items(
    request: Request,
    query: Annotated[
        str, Query(max_length=200, description="words of a title, or of an id; empty: popular items")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=MOST_FOUND, description="the most items to return")] = 10,
) -> Response:
    served = _parts(request).scorer.served
    found = await asyncio.to_thread(served.search.find, query, limit)
    return _json({"version": served.version, "items": _named(served, found)})


async def _user(
    request: Request,
    user: str,
    limit: Annotated[int, Query(ge=1, le=MOST_OF_USER, description="the most items to return")] = 50,
) -> Response:
    scorer = _parts(request).scorer
    served, history = await scorer.do(partial(scorer.history_of, user))
    if history is None:
        raise Problem(f"user {user}: is not known", 404)
    items = items_of(history)[-limit:]
    times, kinds = (history.times, history.events) if isinstance(history, TimedHistory) else ((), ())
    shown = [
        {**one, "time": time, "event": kind or ""}
        for one, time, kind in zip_longest(_named_ids(served, items), times[-limit:], kinds[-limit:])
    ]
    return _json({"version": served.version, "items": shown, "n_items": len(items_of(history))})


async def _events(body: bodies.EventsRequest, request: Request) -> Response:
    parts = _parts(request)
    if parts.inbox is None:
        raise Problem("this server keeps no events; start it with a models folder or with --events=PLACE", 404)
    served, received = parts.scorer.served, int(time.time())
    rows = []
    for number, event in enumerate(body.events):
        if event.event is not None and served.kinds and event.event not in served.kinds:
            known = ", ".join(served.kinds[1:])
            raise Problem(f"events.{number}.event: the model knows no kind {event.event}; it knows: {known}")
        if (keys := served.keys_of_event(event.user, event.item)) is None:
            raise Problem(f"events.{number}: the ids of the dataset are whole numbers; {event.user}, {event.item}")
        if event.time is not None and event.time > received + MOST_AHEAD:
            raise Problem(f"events.{number}.time: is in the future; expected seconds since 1970")
        (user, item), kind = keys, event.event or ""
        key = event.key or key_of(user, item, event.time, kind)
        when = received if event.time is None else int(event.time)
        rows.append(Event(key, user, item, when, kind, event.rating))
    stored = await parts.inbox.store(rows)
    parts.metrics.events.labels("stored").inc(stored)
    parts.metrics.events.labels("known").inc(len(rows) - stored)
    return _json({"stored": stored, "known": len(rows) - stored})


async def _version(request: Request) -> Response:
    parts = _parts(request)
    more = {"keeps_events": parts.inbox is not None, "has_page": parts.page is not None, "program": VERSION_OF_PROGRAM}
    about = parts.scorer.served.about()
    return _json({**about, "knows_users": about["users"] > 0 or parts.inbox is not None, **more})


async def _live() -> dict[str, str]:
    return {"status": "live"}


async def _ready(request: Request) -> Response:
    parts = _parts(request)
    if not parts.scorer.is_alive or (parts.inbox is not None and not parts.inbox.is_alive):
        return _error(503, "a thread of the server has ended; start it again")
    return _json({"status": "ready", "version": parts.scorer.served.version})


async def _metrics(request: Request) -> Response:
    return Response(_parts(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _page() -> Response:
    return _html(files("bert4rec.server").joinpath("page.html").read_text(encoding="utf-8"))


async def _nights(request: Request) -> Response:
    if (page := _parts(request).page) is None:
        raise Problem("there is no page of nights: the model is no models folder", 404)
    return _html(page.read_text(encoding="utf-8"))


def _html(text: str) -> Response:
    return HTMLResponse(text, headers=PAGE_HEADERS)


def _lists(answers: list[Answer]) -> Response:
    lists = [
        {
            "items": [one._asdict() for one in answer.found],
            "fallback": answer.found.fallback,
            "unknown": list(answer.unknown[:MOST_UNKNOWN_SHOWN]),
            "is_known": answer.is_known,
        }
        for answer in answers
    ]
    return _json({"version": answers[0].version, "lists": lists})


def _named(served: Served, indices: list[int]) -> list[dict[str, Any]]:
    ids = served.model.ids
    names = zip(ids.of(indices), ids.titles_of(indices), strict=True)
    return [{"item": item, "title": title} for item, title in names]


def _named_ids(served: Served, items: Sequence[Any]) -> list[dict[str, Any]]:
    """Return items by original id with their titles; "" for one that the model does not know."""
    indices = served.model.ids.indices(items).tolist()
    known = iter(_named(served, [index for index in indices if index != NO_ITEM]))
    return [
        next(known) if index != NO_ITEM else {"item": item, "title": ""}
        for item, index in zip(items, indices, strict=True)
    ]


def _json(content: Any) -> Response:
    return Response(json.dumps(content, ensure_ascii=False), media_type="application/json")


def _error(status: int, text: str, **headers: str) -> Response:
    return JSONResponse({"error": " ".join(text.split())}, status, headers or None)


async def _not_valid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), "registered for it"
    errors = error.errors()
    status = 400 if errors[0]["type"] == "json_invalid" else 422
    return _error(status, bodies.one_line(errors))


async def _no_such_path(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for it"
    return _error(error.status_code, f"{error.detail}; /openapi.json describes the paths")


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem), "registered for it"
    return _error(error.status, error.text)


async def _too_busy(_: Request, error: Exception) -> Response:
    return _error(429, "too many requests wait; try again later", **{"Retry-After": "1"})
