"""Answer queries in batches, in one thread that has the cores for itself: what waits meanwhile is the next batch."""

import asyncio
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bert4rec.evaluation.seen_items import SeenRule
from bert4rec.runtime.errors import ArgumentError, DataError, UserError
from bert4rec.server.metrics import Metrics
from bert4rec.server.served import Served, known_items, unknown_items
from bert4rec.serving.events import Events, StoredEvent
from bert4rec.serving.histories import History, items_of
from bert4rec.serving.recommender import Recommendations

MOST_IN_BATCH = 256  # queries of a batch
MOST_QUERIES_WAITING = 4096  # queries that wait
LISTS_KEPT, LONGEST_KEPT = 2000, 50  # answers that are kept, and the items of each
BAD_VALUE, UNAVAILABLE = 422, 503  # HTTP status

logger = logging.getLogger(__name__)


class TooBusyError(Exception):
    """Too many queries wait already."""


class Problem(Exception):  # noqa: N818  # an answer
    """Says what is wrong with a query, in one line, and the status of HTTP for it."""

    def __init__(self, text: str, status: int = BAD_VALUE) -> None:
        super().__init__(text)
        self.text, self.status = text, status


class Options(NamedTuple):
    """How to recommend; queries with the same options are answered together."""

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


@dataclass(eq=False)
class _Job:
    """Work for one request, done with one version: its answers go to the `future` of the event `loop`."""

    queries: Sequence[Query]
    work: Callable[[Served], Any] | None
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    result: Any = field(default=None)

    @property
    def size(self) -> int:
        """Return the number of queries; other work counts as one."""
        return max(1, len(self.queries))

    def end(self) -> None:
        """Hand over the result; in the event loop."""
        if self.future.done():  # the client has gone
            return
        if isinstance(self.result, Exception):
            self.future.set_exception(self.result)
        else:
            self.future.set_result(self.result)


class Scorer:
    """Answers requests by the version that it `serves`, one batch after another; `events` are those of live users."""

    def __init__(self, served: Served, metrics: Metrics, events: Events | None = None) -> None:
        self._serving, self._metrics, self._events = (served, 0), metrics, events  # and how many came before it
        self._waiting, self._n_waiting = deque[_Job](), 0
        self._is_ending, self._changed = False, threading.Condition()
        self._lists, self._number_of_lists = OrderedDict[Any, Recommendations](), 0
        self._thread = threading.Thread(target=self._run, name="scorer", daemon=True)
        self._thread.start()

    @property
    def served(self) -> Served:
        """Return the version that answers now."""
        return self._serving[0]

    @property
    def is_alive(self) -> bool:
        """Return whether requests are answered."""
        return self._thread.is_alive()

    def serve(self, served: Served) -> None:
        """Let a version answer all batches that begin from now on; it may be the same one with another dataset."""
        self._serving = served, self._serving[1] + 1

    async def recommend(self, queries: Sequence[Query]) -> list[Answer]:
        """Return the answers to the queries of one request, all by one version.

        Raises `TooBusyError`, and `Problem` for a query that cannot be answered.
        """
        answers: list[Answer] = await self._enter(queries, None)
        return answers

    async def do(self, work: Callable[[Served], Any]) -> Any:
        """Return what `work` returns for the version of the next batch. Raises as `recommend` does."""
        return await self._enter([], work)

    def end(self) -> None:
        """Answer what waits, and end the thread."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join()

    async def _enter(self, queries: Sequence[Query], work: Callable[[Served], Any] | None) -> Any:
        loop = asyncio.get_running_loop()
        job = _Job(queries, work, loop, loop.create_future())
        with self._changed:
            if self._waiting and self._n_waiting + job.size > MOST_QUERIES_WAITING:
                raise TooBusyError
            self._waiting.append(job)
            self._n_waiting += job.size
            self._changed.notify()
        self._metrics.waiting.set(self._n_waiting)
        return await job.future

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_ending:
                    self._changed.wait()
                if not self._waiting:
                    return
                jobs, n = list[_Job](), 0
                while self._waiting and (not jobs or n + self._waiting[0].size <= MOST_IN_BATCH):
                    jobs.append(self._waiting.popleft())
                    n += jobs[-1].size
                self._n_waiting -= n
            self._answer(jobs)

    def _answer(self, jobs: Sequence[_Job]) -> None:
        (served, number), began = self._serving, time.perf_counter()
        if number != self._number_of_lists:
            self._lists.clear()
            self._number_of_lists = number
        asking = [job for job in jobs if job.work is None and not job.future.cancelled()]
        queries = [query for job in asking for query in job.queries]
        answers = iter(_without_errors(lambda: self._recommend(served, queries), len(queries)))
        for job in asking:
            mine = [next(answers) for _ in job.queries]
            job.result = next((one for one in mine if isinstance(one, Exception)), mine)
        for job in jobs:
            if job.work is not None:
                work = job.work
                job.result = _without_errors(lambda: [work(served)], 1)[0]  # noqa: B023  # called at once
        if queries:
            self._metrics.batches.observe(len(queries))
            self._metrics.batch_seconds.observe(time.perf_counter() - began)
        by_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
        for job in jobs:
            by_loop.setdefault(job.loop, []).append(job)
        for loop, ended in by_loop.items():
            loop.call_soon_threadsafe(_end_all, ended)

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
                unknown = unknown_items(served.model, items_of(history)) if history else []
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
    allow, deny = (None if some is None else known_items(model, some) for some in (options.allow, options.deny))
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


def _rules(served: Served, options: Options) -> Any:
    try:
        return served.rules(options.where, options.at_most, options.per)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ArgumentError(f"where = {options.where}: cannot be computed") from None


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


def _end_all(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        job.end()
