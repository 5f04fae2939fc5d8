"""Start and end what answers requests: the scorer, the inbox of events, and the watch for new versions."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from bert4rec.checkpoint.models_folder import MODELS_PAGE
from bert4rec.server.inbox import Inbox
from bert4rec.server.metrics import Metrics
from bert4rec.server.scorer import Scorer
from bert4rec.server.served import Served
from bert4rec.server.watch import Watch
from bert4rec.serving.events import Events

PATIENCE_OF_READS = 1.0  # seconds; all queries wait meanwhile


@dataclass(frozen=True)
class Settings:
    """Settings of a server: the `model`, its `dataset` if it was moved, and where `events` are kept ("": nowhere).

    With a `key`, requests need it; `root_path` is where a proxy shows the server; with `log`, requests are logged;
    `with_tools`, assistants find tools at /mcp; with `searches_near`, lists are found among near items.
    """

    model: Path
    dataset: Path | None = None
    events: str = ""
    key: str = ""
    threads: int = 1
    root_path: str = ""
    log: bool = False
    with_tools: bool = False
    searches_near: bool = False


@dataclass(frozen=True)
class Parts:
    """The parts of a server: `scorer`, `inbox` of events if they are kept, figures, and the page of the nights."""

    scorer: Scorer
    inbox: Inbox | None
    metrics: Metrics
    page: Path | None


@contextmanager
def started(settings: Settings, metrics: Metrics, served: Served | None = None) -> Iterator[Parts]:
    """Start the parts, with the model `served` if it is loaded already; at the end, what has begun is answered."""
    torch.set_num_threads(settings.threads)
    load = partial(Served.load, settings.model, settings.dataset, searches_near=settings.searches_near)
    first = served or load()
    first.test()  # also makes the first answers fast
    metrics.serves(first.version)
    inbox = Inbox(Events(settings.events)) if settings.events else None
    events = Events(settings.events, patience=PATIENCE_OF_READS) if settings.events else None
    scorer, page = Scorer(first, metrics, events), settings.model / MODELS_PAGE
    watch = Watch(settings.model, load, scorer, metrics)
    try:
        yield Parts(scorer, inbox, metrics, page if page.is_file() else None)
    finally:
        watch.end()
        scorer.end()
        if inbox:
            inbox.end()
