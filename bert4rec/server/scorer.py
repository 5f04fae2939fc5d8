"""Answer queries in batches, in one thread that has the cores for itself: what waits meanwhile is the next batch."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from bert4rec.evaluation.seen_items import SeenRule
from bert4rec.runtime.errors import ArgumentError, DataError, UserError
from bert4rec.server.batches import Batches
from bert4rec.server.metrics import Metrics
from bert4rec.server.served import Served
from bert4rec.serving.events import Events, StoredEvent
from bert4rec.serving.histories import History, items_of
from bert4rec.serving.recommender import Recommendations

MOST_IN_BATCH = 256  # queries of a batch
MOST_QUERIES_WAITING = 4096  # queries that wait
LISTS_KEPT, LONGEST_KEPT = 2000, 50  # answers that are kept, and the items of each
BAD_VALUE, UNAVAILABLE = 422, 503  # HTTP status

logger = logging.getLogger(__name__)


class Problem(Exception):  # noqa: N818  # an answer
    """Says what is wrong with a query, in one line, and the status of HTTP for it."""

    def __init__(self, text: str, status: int = BAD_VALUE) -> None:
        super().__init__(text)
        self.text, self.status = text, status


class Options(NamedTuple):
    """The options of a list; queries with the same ones are answered together."""

    seen: SeenRule | None = None
    allow: tuple[Any, ...] | None = None
    deny: tuple[Any, ...] = ()
    where: str | None = None
    at_most: int | None = None
    per: str | None = None


class Query(NamedTuple):
    """A `history`, or a `user` whose history is looked up, the number `k` of items, and the other options."""

    k: int
    options: Options
    user: Any = None
    history: History | None = None
    at: float | None = None


class Answer(NamedTuple):
    """The items for a query, from a version, and the items of the history that it does not know.

    `is_known`: whether the user has a history.
    """

    version: str
    found: Recommendations
    unknown: Sequence[Any]
    is_known: bool = True


class Scorer:
    """Answers requests by the version that it `serves`, one batch after another; `events` are those of live users."""

    def __init__(self, served: Served, metrics: Metrics, events: Events | None = None) -> None:
        self._serving, self._metrics, self._events = (served, 0), metrics, events  # and how many came before it
        self._lists, self._number_of_lists = OrderedDict[Any, Recommendations](), 0
        self._batches = Batches("scorer", self._answer, most_in_batch=MOST_IN_BATCH, most_waiting=MOST_QUERIES_WAITING)

    @property
    def served(self) -> Served:
        """Return the version that answers now."""
        return self._serving[0]

    @property
    def is_alive(self) -> bool:
        """Return whether requests are answered."""
        return self._batches.is_alive

    def serve(self, served: Served) -> None:
        """Let a version answer all batches that begin from now on; it may be the same one with another dataset."""
        self._serving = served, self._serving[1] + 1

    async def recommend(self, queries: Sequence[Query]) -> list[Answer]:
        """Return the answers to the queries of one request, all by one version.

        Raises `TooBusyError`, and `Problem` for a query that cannot be answered.
        """
        answers: list[Answer] = await self._enter(queries, len(queries))
        return answers

    async def do(self, work: Callable[[Served], Any]) -> Any:
        """Return what `work` returns for the version of the next batch. Raises as `recommend` does."""
        return await self._enter(work, 1)

    def end(self) -> None:
        """Answer what waits, and end the thread."""
        self._batches.end()

    async def _enter(self, work: Any, size: int) -> Any:
        self._metrics.waiting.set(self._batches.n_waiting + size)
        return await self._batches.enter(work, size)

    def _answer(self, works: Sequence[Any]) -> list[Any]:
        """Return the answers to the queries of each request, or what its function returns, or an exception."""
        (served, number), began = self._serving, time.perf_counter()
        if number != self._number_of_lists:
            self._lists.clear()
            self._number_of_lists = number
        queries = [query for work in works if not callable(work) for query in work]
        answers = iter(_without_errors(lambda: self._recommend(served, queries), len(queries)))
        results = list[Any]()
        for work in works:
            if callable(work):
                results += _without_errors(partial(_listed, work, served), 1)
            else:
                mine = [next(answers) for _ in work]
                results.append(next((one for one in mine if isinstance(one, Exception)), mine))
        if queries:
            self._metrics.batches.observe(len(queries))
            self._metrics.batch_seconds.observe(time.perf_counter() - began)
        return results

    def _recommend(self, served: Served, queries: Sequence[Query]) -> list[Any]:
        """Return an `Answer` or an exception for each query."""
        histories = self._histories(served, queries)
        answers: list[Any] = [history if isinstance(history, Problem) else None for history in histories]
        groups: dict[Options, list[int]] = {}
        for place, query in enumerate(queries):
            if answers[place] is None:
                groups.setdefault(query.options, []).append(place)
        for options, places in groups.items():
            group = [(histories[place] or [], queries[place].k) for place in places]
            for place, found in zip(places, self._lists_of(served, options, group), strict=True):
                if isinstance(found, Exception):
                    answers[place] = found
                    continue
                history = histories[place]
                unknown = _chosen(served, items_of(history), are_known=False) if history else []
                self._metrics.count_list(found, n_items=len(items_of(history or [])), n_unknown=len(unknown))
                answers[place] = Answer(served.version, found, unknown, history is not None)
        return answers

    def _histories(self, served: Served, queries: Sequence[Query]) -> list[Any]:
        """Return the history of each query, None for a user without one, or a `Problem`."""
        histories: list[Any] = [query.history for query in queries]
        asked = [place for place, query in enumerate(queries) if query.history is None]
        if not asked:
            return histories
        users, at = [queries[place].user for place in asked], [queries[place].at for place in asked]
        try:
            found: list[Any] = served.histories_of(users, self._events_of(served, users), at)
        except Problem as problem:
            found = [problem] * len(asked)
        for place, history in zip(asked, found, strict=True):
            histories[place] = history
        return histories

    def _events_of(self, served: Served, users: Sequence[Any]) -> dict[str, list[StoredEvent]]:
        if self._events is None:
            if served.users is None:
                raise Problem("this server knows no users; give items instead of a user")
            return {}
        try:
            return self._events.by_user({served.user_key(user) for user in users})
        except DataError as error:
            logger.warning(str(error))
            raise Problem("the events of users cannot be read now; try again later", UNAVAILABLE) from None

    def history_of(self, user: Any, served: Served) -> tuple[Served, History | None]:
        """Return the version and the whole history of a user, None without one; for `do`."""
        return served, served.histories_of([user], self._events_of(served, [user]), [None])[0]

    def _lists_of(self, served: Served, options: Options, asked: Sequence[tuple[History, int]]) -> list[Any]:
        """Return a list or an exception for each history and k."""
        results: list[Any] = [None] * len(asked)
        keys = [(options, k, repr(history)) for history, k in asked]
        is_kept = [k <= LONGEST_KEPT and not served.model.reads_times for _, k in asked]  # times are as of now
        for place, key in enumerate(keys):
            if is_kept[place] and (found := self._lists.get(key)) is not None:
                self._lists.move_to_end(key)
                results[place] = found
        if not (missing := [place for place, result in enumerate(results) if result is None]):
            return results
        try:
            found_lists = _recommend(served, options, [asked[place] for place in missing])
        except (UserError, MemoryError) as error:
            if len(missing) > 1:  # the others must not suffer from it
                return [self._lists_of(served, options, [one])[0] for one in asked]
            return [_problem(error)]
        for place, found in zip(missing, found_lists, strict=True):
            results[place] = found
            if is_kept[place]:
                self._lists[keys[place]] = found
        while len(self._lists) > LISTS_KEPT:
            self._lists.popitem(last=False)
        return results


def _recommend(served: Served, options: Options, asked: Sequence[tuple[History, int]]) -> list[Recommendations]:
    """Return the list of each history. A list of k items is the beginning of a longer one."""
    model, k = served.model, max(k for _, k in asked)
    if options.seen == "by_item" and not served.can_come_again:
        raise ArgumentError("seen = by-item: this model does not know which items people take again")
    # An item that the model does not know is not recommended anyway.
    allow, deny = (
        None if some is None else _chosen(served, some, are_known=True) for some in (options.allow, options.deny)
    )
    if options.allow and not allow:
        raise ArgumentError(f"allow: the model knows none of the items, such as {options.allow[0]}")
    rules = _rules(served, options)
    # The first part alone: at the end of the parts it would warn on the terminal of what the answer says.
    lists = next(
        model.recommend_in_parts(
            [[history for history, _ in asked]], k, leave_out_seen=options.seen, allow=allow, deny=deny or (),
            rules=rules,
        )
    )  # fmt: skip
    return [Recommendations(found[:k], fallback=found.fallback) for found, (_, k) in zip(lists, asked, strict=True)]


def _chosen(served: Served, items: Sequence[Any], *, are_known: bool) -> list[Any]:
    """Return those of `items` that the model knows, or those that it does not know."""
    return [one for one, is_known in zip(items, served.model.knows(items), strict=True) if is_known == are_known]


def _rules(served: Served, options: Options) -> Any:
    try:
        return served.rules(options.where, options.at_most, options.per)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ArgumentError(f"where = {options.where}: cannot be computed") from None


def _listed(work: Callable[[Served], Any], served: Served) -> list[Any]:
    return [work(served)]


def _without_errors(work: Callable[[], list[Any]], n: int) -> list[Any]:
    """Return what `work` returns; if it raises, `n` times what is wrong: the thread must go on."""
    try:
        return work()
    except BaseException as error:  # polars has panics, which are no exceptions
        return [_problem(error)] * n


def _problem(error: BaseException) -> Exception:
    if isinstance(error, Problem):
        return error
    if isinstance(error, ArgumentError):
        return Problem(str(error))
    if isinstance(error, MemoryError):
        return Problem("not enough memory for this request", UNAVAILABLE)
    if isinstance(error, DataError):
        logger.warning(str(error))
        return Problem("the data of the server cannot be read at the moment", UNAVAILABLE)
    logger.error("a request could not be answered", exc_info=error)
    return Problem("the server could not answer; its log says why", 500)
