"""The three splits on the disk: windows to train on, and evaluation rows with negatives."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

from bert4rec.dataset.schema import SPLITS, columns
from bert4rec.prepare.order.chunks import chunked
from bert4rec.prepare.progress import Progress
from bert4rec.prepare.split.held_out import HeldOutCounts
from bert4rec.prepare.split.negatives import USERS_PER_BLOCK, SeenItems, count_unseen, draw_negatives
from bert4rec.prepare.split.splits import cut, is_tested, windows
from bert4rec.prepare.stages.numbered_histories import NumberedHistories
from bert4rec.prepare.stages.split_rule import SplitRule
from bert4rec.prepare.stages.survey import Survey
from bert4rec.prepare.writer import SplitWriter

T = TypeVar("T")
R = TypeVar("R")

N_THREADS = 2  # blocks of users cut at once


@dataclass(frozen=True)
class Block:
    """Hold the result of a block of users: the number of interactions, the rows of the splits and the counts."""

    n_rows: int
    rows: dict[str, pl.DataFrame]
    held_out: HeldOutCounts


@dataclass(frozen=True)
class Cutter:
    """A cutter of blocks of histories into windows and evaluation rows with negatives.

    A user with fewer than `n_negatives` unseen items gets none at all, so that every other one has exactly as many.
    """

    rule: SplitRule
    survey: Survey
    max_len: int
    step: int
    n_negatives: int
    seed: int

    def __call__(self, numbered: tuple[int, pl.DataFrame]) -> Block:
        """Return the splits of `(number, histories)` of a block of users."""
        block, histories = numbered
        validated = pl.Series("validated", self.survey.validated[histories["user"].to_numpy()])
        marked = self.rule(histories).with_columns(validated)
        train, validation, test = cut(marked)
        evaluated = marked.filter(is_tested() | pl.col("validated"))
        unseen = count_unseen(evaluated, n_items=len(self.survey.train_counts))
        negatives = self._negatives(evaluated.filter(pl.Series(unseen >= self.n_negatives)), block)
        rows = {
            "train": windows(train, max_len=self.max_len, step=self.step),
            "validation": _with_negatives(validation, negatives),
            "test": _with_negatives(test, negatives),
        }
        n_rows = int(histories["items"].list.len().sum())
        return Block(n_rows, rows, HeldOutCounts.of(rows, unseen, self.n_negatives))

    def _negatives(self, whole: pl.DataFrame, block: int) -> pl.DataFrame:
        """Return `user` and the negatives of whole histories: of a user they are the same in validation and test."""
        popularity = self.survey.train_counts
        seen = SeenItems.of(whole, len(popularity))
        kinds = {"popular_negatives": (popularity, 3), "uniform_negatives": (np.ones_like(popularity), 4)}
        drawn = {
            name: draw_negatives(seen, weights, n=self.n_negatives, seed=[self.seed, number, block])
            for name, (weights, number) in kinds.items()
        }
        return whole.select("user", *[pl.Series(name, rows).arr.to_list() for name, rows in drawn.items()])


def write_splits(
    folder: Path, histories: NumberedHistories, cutter: Cutter, *, progress: Progress
) -> tuple[dict[str, SplitWriter], HeldOutCounts]:
    """Write the splits of `histories`; their writers, which know how many rows they have, and what is counted."""
    has = {"has_times": "time" in histories.columns, "has_ratings": "rating" in histories.columns}
    writers = {name: SplitWriter(folder / name, columns(name, **has)) for name in SPLITS}
    held_out = HeldOutCounts(cutter.n_negatives)
    with progress.stage("write", histories.n_rows) as stage:
        for block in in_order(cutter, enumerate(chunked(histories, USERS_PER_BLOCK)), n_threads=N_THREADS):
            for name, writer in writers.items():
                writer.add(block.rows[name])
            held_out.add(block.held_out)
            stage.advance(stage.n_rows + block.n_rows, block.n_rows)
        for writer in writers.values():
            writer.close()
    return writers, held_out


def in_order(function: Callable[[T], R], arguments: Iterable[T], *, n_threads: int) -> Iterator[R]:
    """Yield `function` of each argument, in order, a few at a time in threads; no more than `n_threads` are begun."""
    with ThreadPoolExecutor(n_threads) as pool:
        running: deque[Future[R]] = deque()
        for argument in arguments:
            if len(running) == n_threads:
                yield running.popleft().result()
            running.append(pool.submit(function, argument))
        while running:
            yield running.popleft().result()


def _with_negatives(rows: pl.DataFrame, negatives: pl.DataFrame) -> pl.DataFrame:
    """Return `rows` with the `negatives` of their users; empty lists for a user who has none."""
    joined = rows.join(negatives, on="user", how="left", maintain_order="left")
    return joined.with_columns(pl.col(name).fill_null([]) for name in negatives.columns if name != "user")
