"""The bodies of requests and answers."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, model_validator

MOST_QUERIES, MOST_EVENTS_SENT, LONGEST_HISTORY, MOST_K = 256, 1000, 10_000, 1000
MOST_LISTED = 100_000  # items to allow or deny
LONGEST_ID, LONGEST_CONDITION = 512, 2000  # characters
LARGEST = 2**63 - 1

Name: TypeAlias = Annotated[StrictStr, Field(min_length=1, max_length=LONGEST_ID, pattern=r"^[^\x00]+$")]  # PostgreSQL
Id: TypeAlias = Annotated[StrictInt, Field(ge=-LARGEST, le=LARGEST)] | Name
Seconds: TypeAlias = Annotated[
    StrictInt | StrictFloat, Field(ge=-62_135_596_800, le=253_402_300_799)
]  # the years 1 to 9999
Seen: TypeAlias = Literal["leave-out", "keep", "by-item"]


class Body(BaseModel):
    """A part of a request; a name that it does not know is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Rules(Body):
    """Which items may be in a list."""

    where: Annotated[str, Field(min_length=1, max_length=LONGEST_CONDITION)] | None = Field(
        None, description="a condition in SQL over the columns of the items", examples=["category = 'books'"]
    )
    at_most: Annotated[int, Field(ge=1, le=MOST_K)] | None = Field(
        None, description="at most so many items of a list have the same value in the column `per`", examples=[2]
    )
    per: Name | None = Field(None, description="a column of the items, for `at_most`", examples=["category"])

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.at_most is None) != (self.per is None):
            raise ValueError("at_most and per go together")
        return self


class Query(Body):
    """Who a list is for: a user of the dataset or of the events, or a history."""

    user: Id | None = Field(None, description="a user; the history is that of the dataset and of the events since")
    items: Annotated[list[Id], Field(max_length=LONGEST_HISTORY)] | None = Field(
        None, description="a history: ids of items, the oldest first; [] for a visitor of whom nothing is known",
        examples=[["a12", "b7"]],
    )  # fmt: skip
    times: Annotated[list[Seconds], Field(max_length=LONGEST_HISTORY)] | None = Field(
        None, description="the time of each item in seconds since 1970, ascending; for a model that reads times",
        examples=[[1_790_000_000, 1_790_000_060]],
    )  # fmt: skip
    events: Annotated[list[Name | None], Field(max_length=LONGEST_HISTORY)] | None = Field(
        None, description="the kind of event of each item, for a model that knows kinds", examples=[["view", "cart"]]
    )
    at: Seconds | None = Field(None, description="when the list is shown; default: at the time of the last item")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.user is None) == (self.items is None):
            raise ValueError("give either a user or items")
        for name, values in (("times", self.times), ("events", self.events)):
            if values is not None and self.items is None:
                raise ValueError(f"{name} belong to items, and there are none")
            if values is not None and self.items is not None and len(values) != len(self.items):
                raise ValueError(f"{len(self.items)} items and {len(values)} {name}; each item needs one")
        if self.times and any(time > later for time, later in pairwise(self.times)):
            raise ValueError("times descend; the oldest item comes first")
        if self.times and self.at is not None and self.at < self.times[-1]:
            raise ValueError("at is before the last item")
        return self


class RecommendRequest(Rules):
    """Queries, which are answered by the same version, and what their lists may contain."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"queries": [{"items": ["a12", "b7"]}, {"user": "c-17"}], "k": 5}}
    )
    queries: Annotated[list[Query], Field(min_length=1, max_length=MOST_QUERIES)] = Field(
        description="a list is returned for each of them, in this order"
    )
    k: int = Field(10, ge=1, le=MOST_K, description="the number of items of a list")
    seen: Seen | None = Field(
        None,
        description="items of the history: leave-out, keep, or by-item: only those are kept that people take again; "
        "default: as in the evaluation of the model",
    )
    allow: Annotated[list[Id], Field(max_length=MOST_LISTED)] | None = Field(
        None, description="recommend only these items; those that the model does not know are skipped"
    )
    deny: Annotated[list[Id], Field(max_length=MOST_LISTED)] = Field([], description="never recommend these items")


class SimilarRequest(Rules):
    """Items to which similar ones are wanted."""

    model_config = ConfigDict(json_schema_extra={"example": {"items": ["a12"], "k": 5}})
    items: Annotated[list[Id], Field(min_length=1, max_length=MOST_QUERIES)] = Field(
        description="ids of items; a list is returned for each of them, in this order"
    )
    k: int = Field(10, ge=1, le=MOST_K, description="the number of items of a list")


class NewEvent(Body):
    """An event: a user did something with an item."""

    user: Id = Field(description="the user, who may be new")
    item: Id = Field(description="the item, which may be new")
    time: Seconds | None = Field(None, description="when, in seconds since 1970; default: now")
    event: Name | None = Field(None, description="the kind of event, if the log has kinds", examples=["purchase"])
    rating: StrictFloat | StrictInt | None = Field(None, description="the rating, if the log has ratings")
    key: Name | None = Field(
        None,
        description="names this event: sent again with the same key, it is stored once; default: made of user, item, "
        "time and event if a time is given, else another one each time",
        examples=["order-4711-2"],
    )


class EventsRequest(Body):
    """Events to store; all of them or none."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"events": [{"user": "c-17", "item": "a12", "key": "click-8123"}]}}
    )
    events: Annotated[list[NewEvent], Field(min_length=1, max_length=MOST_EVENTS_SENT)] = Field(
        description="the events"
    )


class Item(BaseModel):
    """An item of a list."""

    item: int | str = Field(description="its id, as in the log", examples=["a12"])
    title: str = Field(description='its title; "" if it has none', examples=["The Third Man"])
    score: float = Field(description="its score; higher is better. Only scores of the same version compare")


class ListOfItems(BaseModel):
    """The list for a query."""

    items: list[Item] = Field(description="the best first")
    fallback: Literal["", "popularity", "recent_popularity"] = Field(
        description="not empty if the model knows no item of the history: by what the items are popular then"
    )
    unknown: list[int | str] = Field(description="items of the history that the model does not know, at most ten")
    is_known: bool = Field(description="whether there is a history; false for a user without one")


class Lists(BaseModel):
    """Lists by one version."""

    version: str = Field(description="the version that answered", examples=["2026-11-26T03-00-00"])
    lists: list[ListOfItems] = Field(description="one for each query, in their order")


class FoundItem(BaseModel):
    """An item that a search has found."""

    item: int | str = Field(description="its id", examples=["a12"])
    title: str = Field(description='its title; "" if it has none', examples=["The Third Man"])


class FoundItems(BaseModel):
    """The items that a search has found."""

    version: str = Field(description="the version that answered")
    items: list[FoundItem] = Field(description="the best first")


class PastItem(FoundItem):
    """An item of a history."""

    time: float | None = Field(description="when, in seconds since 1970; null if the model reads no times")
    event: str = Field(description='the kind of event; "" for none')


class UserAnswer(BaseModel):
    """The history of a user."""

    version: str = Field(description="the version that answered")
    items: list[PastItem] = Field(description="the last items, the oldest first")
    n_items: int = Field(description="the number of items of the whole history")


class StoredEvents(BaseModel):
    """The numbers of stored events; they are on disk."""

    stored: int = Field(description="events that are stored now")
    known: int = Field(description="events whose key was there already")


class Version(BaseModel):
    """The version that answers."""

    model_config = ConfigDict(protected_namespaces=())
    version: str = Field(description="the version that answers now")
    model: str = Field(description="the kind of model", examples=["sasrec"])
    items: int = Field(description="number of items that it knows")
    users: int = Field(description="number of users whose histories the dataset has")
    events: list[str] = Field(description="kinds of events that it knows; [] for none")
    columns: list[str] = Field(description="columns of the items, for `where` and `per`")
    knows_users: bool = Field(description="whether a query may name a user")
    keeps_events: bool = Field(description="whether events are stored")
    has_page: bool = Field(description="whether there is a page of the nights of this model, /nights")
    data_until: str | None = Field(description="the time of the last row of the dataset; null if it is not known")
    loaded: str = Field(description="when it was loaded", examples=["2026-11-26T03:12:40+00:00"])
    program: str = Field(description="the version of bert4rec")


class Error(BaseModel):
    """An error, in one line."""

    error: str = Field(examples=["queries.0.items: give either a user or items"])


def one_line(errors: Sequence[Any]) -> str:
    """Return the first of pydantic's errors in one line, without the value, which may be long."""
    first = errors[0]
    place = [str(part) for part in first["loc"] if part not in ("body", "query")]
    text, n_more = str(first["msg"]).removeprefix("Value error, "), len(errors) - 1
    if place and place[-1].startswith("constrained-"):  # neither of the types of an id
        place, text, n_more = place[:-1], f"must be a whole number, or text of 1 to {LONGEST_ID} characters", 0
    more = f" (and {n_more} more)" if n_more else ""
    return f"{'.'.join(place)}: {text}{more}" if place else f"{text}{more}"
