"""Count what a server does, for Prometheus."""

import os
import threading
import time
from collections import Counter, deque
from pathlib import Path

import prometheus_client as prometheus
from prometheus_client import multiprocess

from bert4rec.serving.recommender import Recommendations

prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
STEPS_OF_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0)
STEPS_OF_SIZE = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LISTS_COMPARED = 1000
SHARED = "PROMETHEUS_MULTIPROC_DIR"  # environment variable: the folder of several processes' figures


class Metrics:
    """The figures of a server, those of all its processes if there are several."""

    def __init__(self) -> None:
        self._registry = prometheus.CollectorRegistry()
        n, registry = "bert4rec_", self._registry
        labels = ["route", "status"]
        self.requests = prometheus.Counter(f"{n}requests", "Answered requests", labels, registry=registry)
        self.seconds = prometheus.Histogram(
            f"{n}request_seconds", "Time of a request", ["route"], buckets=STEPS_OF_SECONDS, registry=registry
        )
        self.batches = prometheus.Histogram(
            f"{n}batch_queries", "Queries that were answered together", buckets=STEPS_OF_SIZE, registry=registry
        )
        self.batch_seconds = prometheus.Histogram(
            f"{n}batch_seconds", "Time of a batch", buckets=STEPS_OF_SECONDS, registry=registry
        )
        self.waiting = prometheus.Gauge(
            f"{n}waiting_queries", "Queries that wait", registry=registry, multiprocess_mode="livesum"
        )
        self.items = prometheus.Counter(f"{n}history_items", "Items of histories", registry=registry)
        self.unknown = prometheus.Counter(
            f"{n}unknown_items", "Items of histories that the model does not know", registry=registry
        )
        self.fallbacks = prometheus.Counter(
            f"{n}popular_lists", "Lists of popular items, since the model knows no item of the history",
            registry=registry,
        )  # fmt: skip
        self.events = prometheus.Counter(f"{n}events", "Events by what became of them", ["result"], registry=registry)
        self.switches = prometheus.Counter(f"{n}switches", "New versions by result", ["result"], registry=registry)
        self.version = prometheus.Gauge(
            f"{n}version", "1 for the version that answers", ["version"], registry=registry,
            multiprocess_mode="livemax",
        )  # fmt: skip
        self.loaded = prometheus.Gauge(
            f"{n}version_loaded_timestamp_seconds", "When that version was loaded", registry=registry,
            multiprocess_mode="livemax",
        )  # fmt: skip
        self.alike = prometheus.Gauge(
            f"{n}lists_alike_ratio", f"Share of the last {LISTS_COMPARED:,} lists that are the most frequent one",
            registry=registry, multiprocess_mode="livemax",
        )  # fmt: skip
        self._version = ""
        self._lists, self._counts, self._lock = deque[int](), Counter[int](), threading.Lock()

    def count_list(self, found: Recommendations, *, n_items: int, n_unknown: int) -> None:
        """Count a list for a history of `n_items`."""
        self.items.inc(n_items)
        self.unknown.inc(n_unknown)
        self.fallbacks.inc(found.is_fallback)
        with self._lock:
            self._lists.append(key := hash(tuple(one.item for one in found)))
            self._counts[key] += 1
            if len(self._lists) > LISTS_COMPARED:
                self._counts[oldest := self._lists.popleft()] -= 1
                if not self._counts[oldest]:
                    del self._counts[oldest]

    def serves(self, version: str) -> None:
        """Note which version answers from now on."""
        if self._version:
            self.version.labels(self._version).set(0)
        self._version = version
        self.version.labels(version).set(1)
        self.loaded.set(time.time())

    def text(self) -> bytes:
        """Return the figures in the text format of Prometheus."""
        with self._lock:
            largest = max(self._counts.values(), default=0)
            self.alike.set(largest / max(1, len(self._lists)))
        if SHARED not in os.environ:
            return prometheus.generate_latest(self._registry)
        for path in Path(os.environ[SHARED]).glob("gauge_live*.db"):  # of processes that may have ended
            if not Path("/proc", process := path.stem.rpartition("_")[2]).exists():
                multiprocess.mark_process_dead(process)  # type: ignore[no-untyped-call]
        registry = prometheus.CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return prometheus.generate_latest(registry)
