"""Load a version of a model to answer requests with, and test that it answers as its report says."""

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bert4rec.checkpoint.models_folder import (
    ALIASES,
    CHAMPION,
    DATASET,
    PACKAGE,
    UPDATES,
    appended_by,
    is_models_folder,
    read_aliases,
    version_folder,
)
from bert4rec.checkpoint.package import is_package, read_settings
from bert4rec.checkpoint.run_folder import EXAMPLES
from bert4rec.dataset.format import METADATA
from bert4rec.dataset.ids import canonical_value
from bert4rec.dataset.reader import read_metadata
from bert4rec.runtime.errors import DataError
from bert4rec.server.search import TitleSearch
from bert4rec.serving.events import StoredEvent
from bert4rec.serving.histories import History, TimedHistory, items_of
from bert4rec.serving.load import load_run
from bert4rec.serving.nearest import BREADTHS, NearestItems
from bert4rec.serving.network import Network
from bert4rec.serving.package import load_package, read_network
from bert4rec.serving.recommender import Recommender
from bert4rec.serving.rules import Rules
from bert4rec.serving.users import UserHistories

RULES_KEPT = 64  # conditions whose items are kept in memory
N_RECALL, RECALL = 256, 0.95  # histories by which a search among near items is measured, and what it should find
TESTED = 8  # examples of a report
TOLERANCE_OF_SCORES = 1e-3  # of their scores; the report may be of a machine with other kernels

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Served:
    """The `version` of a `model`, the histories of its `users`, and the names of the updates that these have.

    `run` is the folder of its report, None for a package; `loaded` is when it was loaded.
    """

    version: str
    model: Recommender
    users: UserHistories | None
    appended: frozenset[str]
    run: Path | None
    loaded: str

    @classmethod
    def load(cls, place: Path, dataset: Path | None = None, *, searches_near: bool = False) -> "Served":
        """Return the champion of a models folder, or the model of a run or package, with its users if it has any.

        With `searches_near`, lists are found among near items, and the log says how many are missed. Raises `DataError`
        if it cannot be loaded, or if it recommends nothing.
        """
        if is_package(place):
            version, run, appended, model = place.name, None, frozenset[str](), load_package(place, dataset)
        elif is_models_folder(place):
            version = read_aliases(place)[CHAMPION]
            run = version_folder(place, version)
            appended = frozenset(appended_by(place))
            model = _mapped(load_run(run, dataset or place / DATASET), run / PACKAGE)
        else:
            version, run, appended, model = place.name, place, frozenset(), load_run(place, dataset)
        network = model.require_histories()
        if searches_near:
            model = _with_nearest(model)
        users = None
        if model.dataset is not None:
            users = model.users(with_times=model.reads_times, with_events=bool(network.kinds))
        served = cls(version, model, users, appended, run, datetime.now(UTC).isoformat(timespec="seconds"))
        if searches_near:
            served.find_breadth()
        _ = served.search, served.can_come_again, served.data_until  # what takes time is done before it serves
        return served

    @cached_property
    def search(self) -> TitleSearch:
        """Return the search of items by title."""
        return TitleSearch(self.model.ids)

    @cached_property
    def data_until(self) -> str | None:
        """Return the time of the last row of the dataset, None if it has no times or is not there."""
        metadata = read_metadata(self.model.dataset) if self.model.dataset else {}
        if not metadata.get("has_times"):
            return None
        return datetime.fromtimestamp(metadata["time_span"][1], UTC).isoformat(timespec="seconds")

    @cached_property
    def can_come_again(self) -> bool:
        """Return whether it is known which items people take again."""
        try:
            return len(self.model.ids.comes_again) > 0
        except DataError:
            return False

    @property
    def kinds(self) -> Sequence[str]:
        """Return the kinds of events that the model knows; the first is the unknown one."""
        return self.model.require_histories().kinds

    @cached_property
    def rules(self) -> Any:
        """Return a function of `where`, `at_most` and `per` that keeps the last rules."""

        @lru_cache(RULES_KEPT)
        def rules(where: str | None, at_most: int | None, per: str | None) -> Rules:
            return self.model.rules(where=where, at_most=at_most, per=per)

        return rules

    def user_key(self, user: Any) -> str:
        """Return the id of a user as events have it: 7, 7.0 and "7" are one user if ids are numbers."""
        return _key(user, is_number=self.users is not None and self.users.are_numbers) or str(user)

    def keys_of_event(self, user: Any, item: Any) -> tuple[str, str] | None:
        """Return the ids of a user and an item as events have them; None if an update could not read them.

        That is text where the ids of the dataset are numbers.
        """
        is_number = self.users is not None and self.users.are_numbers
        keys = _key(user, is_number=is_number), _key(item, is_number=self.model.ids.are_numbers)
        return None if None in keys else keys  # type: ignore[return-value]

    def histories_of(
        self, users: Sequence[Any], events: Mapping[str, Sequence[StoredEvent]], at: Sequence[float | None]
    ) -> list[History | None]:
        """Return the history of each of `users`, with `events` of `user_key` that the dataset does not have.

        None for a user without any. `at` are the query times; None: the time of the last item.
        """
        known = self.users.find(users)[1] if self.users and users else [None] * len(users)
        histories = []
        for user, history, now in zip(users, known, at, strict=True):
            new = [event for event in events.get(self.user_key(user), ()) if event.taken not in self.appended]
            histories.append(self._joined(history, new, now))
        return histories

    def _joined(self, history: History | None, events: Sequence[StoredEvent], at: float | None) -> History | None:
        if history is None and not events:
            return None
        items, has_kinds = [*items_of(history or [])], len(self.kinds) > 0
        if not (self.model.reads_times or has_kinds):
            return items + [event.item for event in events]
        if not isinstance(history, TimedHistory):
            history = TimedHistory(items, [])
        times = [*history.times, *(event.time for event in events)] if self.model.reads_times else []
        kinds = [*history.events, *(event.event for event in events)] if has_kinds else []
        items += [event.item for event in events]
        order: Any = np.argsort(times, kind="stable").tolist() if times else range(len(items))  # some come late
        rows = ([values[place] for place in order] if values else () for values in (items, times, kinds))
        joined, times_in_order, kinds_in_order = rows
        return TimedHistory(joined, times_in_order, at, kinds_in_order)

    def find_breadth(self) -> None:
        """Let the search among near items look at as many as it takes to find `RECALL` of the best, and log both."""
        assert self.model.nearest is not None, "a search among near items was asked for"
        draw = np.random.default_rng(1)
        if self.users is not None:
            histories = [history for _, history in next(self.users.all())[:N_RECALL]]
        else:
            items = draw.integers(len(self.model.ids), size=(N_RECALL, 3))
            histories = [self.model.ids.of(row) for row in items.tolist()]
        best, _ = _tens(replace(self.model, nearest=None), histories)
        for breadth in BREADTHS:
            self.model.nearest.look_at(breadth)
            found, seconds = _tens(self.model, histories)
            recall = sum(len(one & two) for one, two in zip(found, best, strict=True)) / max(1, sum(map(len, best)))
            if recall >= RECALL:
                break
        logger.info(
            f"near items have {100 * recall:.1f} % of the best ten for {len(histories)} histories, at "
            f"{1000 * seconds:.2f} ms each; {breadth:,} items are looked at"
        )

    def about(self) -> dict[str, Any]:
        """Return what the version is."""
        return {
            "version": self.version, "model": self.model.settings["model"]["kind"], "items": len(self.model.ids),
            "users": len(self.users) if self.users else 0, "events": [*self.kinds[1:]],
            "columns": [*self.model.ids.columns.column_names], "loaded": self.loaded,
            "data_until": self.data_until,
        }  # fmt: skip

    def test(self) -> int:
        """Recommend for examples of the report, and return how many of them gave the list that it has.

        Those are left out whose history is another one by now, or whose query time is not known. Raises `DataError` if
        a list differs, or if scores are no numbers.
        """
        model, some = self.model, self.model.ids.most_popular(3).tolist()
        first = model.recommend([[*model.ids.of(some)]], 10, leave_out_seen=False)[0]
        if not first or not all(np.isfinite(one.score) for one in first):
            raise DataError(f"version {self.version} gives no scores")
        path = self.run / EXAMPLES if self.run else None
        if path is None or not path.is_file() or self.users is None:
            return 0
        tested = 0
        for example in json.loads(path.read_text(encoding="utf-8"))["users"][:TESTED]:
            query, expected = self._query_of(example), example["recommendations"]
            if query is None or not expected:
                continue
            found = model.recommend([query], len(expected))[0]
            scores = [one.score for one in found], [one["score"] for one in expected]
            if len(found) != len(expected) or not np.allclose(*scores, TOLERANCE_OF_SCORES, TOLERANCE_OF_SCORES):
                raise DataError(f"version {self.version} gives another list for an example of its report")
            tested += 1
        return tested

    def _query_of(self, example: Mapping[str, Any]) -> History | None:
        """Return the history of an example before its target; None if it is another one by now."""
        assert self.users is not None, "asked before"
        n, history = example["n_history"], self.users.find([example["user"]])[1][0]
        if history is None:
            return None
        items, shown = items_of(history), [one["item"] for one in [*example["history"], example["target"]]]
        if [*items[max(0, n + 1 - len(shown)) : n + 1]] != shown:
            return None
        if not isinstance(history, TimedHistory):
            return items[:n]
        at = history.times[n] if len(history.times) else None
        return TimedHistory(items[:n], history.times[:n], at, history.events[:n])


def signature(place: Path) -> tuple[Any, ...]:
    """Return what changes when a models folder has another champion, dataset or line of updates."""
    names = (ALIASES, UPDATES, f"{DATASET}/{METADATA}")
    return tuple(_stamp(place / name) for name in names) if is_models_folder(place) else ()


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        about = os.stat(path)
    except FileNotFoundError:
        return ()
    return about.st_ino, about.st_mtime_ns, about.st_size


def _tens(model: Recommender, histories: Sequence[History]) -> tuple[list[set[Any]], float]:
    """Return the ten best items for each history, and the seconds for one."""
    began = time.perf_counter()
    lists = next(model.recommend_in_parts([histories]))
    return [{one.item for one in found} for found in lists], (time.perf_counter() - began) / max(1, len(histories))


def _with_nearest(model: Recommender) -> Recommender:
    """Return the `model` with a graph of its items. Raises `DataError` if it has no vectors that score them."""
    if not isinstance(model.network, Network):
        raise DataError("--ann: the model only counts, and has no vectors among which near ones can be found")
    vectors = model.network.item_vectors
    return replace(model, nearest=NearestItems(vectors, model.prior, threads=torch.get_num_threads()))


def _mapped(model: Recommender, package: Path) -> Recommender:
    """Return the `model` with the weights of its package, which processes share as one file in memory."""
    if not isinstance(model.network, Network) or not is_package(package):
        return model
    return replace(model, network=read_network(package, read_settings(package)))


def _key(value: Any, *, is_number: bool) -> str | None:
    canonical = canonical_value(value, is_number=is_number)
    return None if canonical is None else str(canonical)
