"""Write the dataset folder, the only interface between preparation and training.

The same rows and settings give the same bytes, however the rows are cut into frames: ranges of users are files, in
record batches of a fixed size. Only `created_at` and `created_from` in `metadata.json` depend on the time and the input
file.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from bert4rec.dataset.format import (
    EVALUATED,
    FOLDERS,
    HISTORIES,
    NEGATIVE_ITEMS,
    NEGATIVES,
    STATE,
    TEST,
    TEST_TIED,
    history_columns,
    negative_columns,
    part_starts,
)
from bert4rec.prepare.folder import checksums
from bert4rec.prepare.histories import (
    NumberedHistories,
    NumberedPart,
)
from bert4rec.prepare.negatives import (
    SAMPLED_BLOCK_USERS,
    HeldOutCounts,
    SeenItems,
    count_held_out,
    draw_negatives,
)
from bert4rec.prepare.ordering import Chunks, chunked
from bert4rec.prepare.shared_work import fetched
from bert4rec.prepare.split import SplitRule, mark, with_offsets
from bert4rec.prepare.stages import Stages
from bert4rec.prepare.ties import draw_targets, has_ties, is_tied, tie_key
from bert4rec.runtime.arrays import Bools, Int64s, Integers, load_array

ROWS_PER_BATCH = 1 << 14  # more batches would cost memory and time in every process that opens the split
Draw: TypeAlias = Callable[[pl.DataFrame, str], pl.DataFrame]


class PartWriter:
    """Write a file of rows as `datasets` saves them, users ascending, from frames of any size.

    It is called `part-FIRST.arrow` in `folder`, after the `first` user that it may have. `columns` maps names to types.
    """

    def __init__(self, folder: Path, first: int, columns: Mapping[str, pa.DataType]) -> None:
        folder.mkdir(exist_ok=True)
        self._schema, self._first, self._rows = pa.schema(list(columns.items())), first, Chunks(ROWS_PER_BATCH)
        self.path, self._batches = folder / f"part-{first:010d}.arrow", list[list[int]]()
        self._sink = pa.OSFile(str(self.path), "wb")
        self._writer = pa.ipc.new_stream(self._sink, self._schema)

    def add(self, frame: pl.DataFrame) -> None:
        """Append the rows of `frame`."""
        self._write(self._rows.add(frame.select(self._schema.names)))

    def close(self) -> dict[str, Any]:
        """Write the remaining rows; return the entry of the file in the state of the folder, with its checksums."""
        self._write(self._rows.rest())
        if not self._batches:
            self._writer.write_batch(pa.RecordBatch.from_pylist([], self._schema))
            self._batches.append([self._first, 0])
        self._writer.close()
        self._sink.close()
        return {"filename": self.path.name, "batches": self._batches, "checksums": checksums(self.path)}

    def _write(self, frames: Iterable[pl.DataFrame]) -> None:
        for frame in frames:
            self._writer.write_batch(_batch(frame, self._schema))
            self._batches.append([frame["user"][0], len(frame)])


@contextmanager
def hugging_face() -> Iterator[ModuleType]:
    """Yield the library `datasets`, without its progress bars. Its import takes a second: no worker needs it."""
    import datasets

    were_disabled = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield datasets
    finally:
        if not were_disabled:
            datasets.enable_progress_bars()


def write_state(folder: Path, columns: Mapping[str, pa.DataType], files: Sequence[Mapping[str, Any]]) -> None:
    """Write what `datasets` needs to open the `folder` with the `files` of a `PartWriter` each."""
    digest = hashlib.sha256("".join(file["checksums"]["sha256"] for file in files).encode()).hexdigest()
    with hugging_face() as datasets:
        empty = datasets.Dataset(
            datasets.table.InMemoryTable(pa.schema(list(columns.items())).empty_table()),
            fingerprint=digest[:16],  # of the content, instead of a random one
        )
        empty.save_to_disk(str(folder), num_shards=1)
    path = folder / STATE
    state = json.loads(path.read_text(encoding="utf-8"))
    (folder / state["_data_files"][0]["filename"]).unlink()
    state["_data_files"] = [{name: file[name] for name in ("filename", "batches")} for file in files]
    path.write_text(json.dumps(state, sort_keys=True), encoding="utf-8")


def _batch(frame: pl.DataFrame, schema: pa.Schema) -> pa.RecordBatch:
    """Return a copy of the rows as a record batch: Arrow would pad a slice with bytes of its frame's next rows."""
    table = frame.to_arrow().cast(schema)
    return table.take(pa.array(np.arange(len(frame)))).combine_chunks().to_batches()[0]


class SplitUsers(NamedTuple):
    """The sums of the training positions up to each item, and the held-out users: `split_block` reads some of them."""

    cumulated: Integers
    validated: Bools
    tested: Bools | None


@dataclass(frozen=True)
class Split:
    """The rule by which histories are split, the settings, and files of the arrays that tasks need (`SplitUsers`).

    `draws`: the kinds of events that are drawn from the last basket, [] = all; None if the rule finds the targets.
    """

    cumulated: Path
    validated: Path
    tested: Path | None
    rule: SplitRule
    n_negatives: int
    seed: int
    draws: Sequence[int] | None

    @property
    def users(self) -> SplitUsers:
        """Return the arrays, mapped."""
        names = self.cumulated, self.validated, self.tested
        return SplitUsers(*(None if path is None else load_array(fetched(path), is_mapped=True) for path in names))  # type: ignore


class SplitBlock(NamedTuple):
    """The rows of a block of users for both folders, and the counts of held-out users."""

    histories: pl.DataFrame
    negatives: pl.DataFrame
    held_out: HeldOutCounts


def split_block(
    numbered: tuple[int, pl.DataFrame], rule: SplitRule, users: SplitUsers, *, n_negatives: int,
    seed: int, draw: Draw | None = None, is_inside: pl.Expr | None = None,
) -> SplitBlock:  # fmt: skip
    """Return a block of histories, given with its number, split by `rule`, and the negatives of users with a target.

    A user with fewer than `n_negatives` unseen items gets none, so that users have either none or `n_negatives`. They
    are drawn for whole histories: the same for validation and test. `draw` puts the target of a split, which the rule
    finds by its basket, at its place. Only users who are inside are returned and counted.
    """
    block, histories = numbered
    n_items = len(users.cumulated)
    validated = pl.Series("validated", users.validated[histories["user"].to_numpy()])
    split = with_offsets(mark(histories.with_columns(validated), rule, users.tested))
    if draw:
        for name in EVALUATED:
            split = draw(split, name)
    if (key := tie_key(split.columns)) is not None:
        split = split.with_columns(is_tied(key, pl.col(TEST)).fill_null(value=False).cast(pl.Int8).alias(TEST_TIED))
    evaluated = split.filter(pl.max_horizontal(EVALUATED) >= 0)
    unseen = n_items - evaluated["items"].list.n_unique().to_numpy().astype(np.int64)  # items of each user
    whole = evaluated.filter(pl.Series(unseen >= n_negatives))
    seen = SeenItems.of(whole, n_items)
    drawn = [
        pl.Series(name, draw_negatives(seen, cumulated, n=n_negatives, seed=[seed, number, block])).arr.to_list()
        for name, cumulated, number in (("popular_negatives", users.cumulated, 3), ("uniform_negatives", None, 4))
    ]
    rows = evaluated.select("user").join(whole.select("user", *drawn), on="user", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col(NEGATIVES).fill_null([]))
    if is_inside is not None:
        is_counted = evaluated.select(is_inside).to_series()
        split, rows, evaluated = (frame.filter(is_inside) for frame in (split, rows, evaluated))
        unseen = unseen[is_counted.to_numpy()]
    return SplitBlock(split, rows, count_held_out(evaluated, unseen, n_negatives))


def write_part(
    folder: Path, users: tuple[int, int], blocks: tuple[int, int], parts: Sequence[NumberedPart], split: Split,
    columns: Mapping[str, Mapping[str, pa.DataType]],
) -> dict[str, Any]:  # fmt: skip
    """Write the histories and negatives from the first to before the last of `users`: a part of the dataset folders.

    Their histories are in the `blocks`, and their rows in the `parts`.
    """
    writers = [PartWriter(folder / name, users[0], types) for name, types in columns.items()]
    held_out, n_rows, is_inside = HeldOutCounts(), 0, pl.col("user").is_between(users[0], users[1] - 1)
    draw = None if split.draws is None else partial(draw_targets, seed=split.seed, kinds=[*split.draws])
    cut = partial(
        split_block, rule=split.rule, users=split.users, n_negatives=split.n_negatives, seed=split.seed, draw=draw,
        is_inside=is_inside,
    )  # fmt: skip
    numbered = enumerate(_blocks(parts, blocks), blocks[0])
    for block in map(cut, numbered):
        for writer, rows in zip(writers, (block.histories, block.negatives), strict=True):
            writer.add(rows)
        held_out.update(block.held_out)
        n_rows += int(block.histories["items"].list.len().sum())
    files = {name: writer.close() for name, writer in zip(columns, writers, strict=True)}
    return {"rows": n_rows, "files": files, "held_out": [[*key, n] for key, n in held_out.items()]}


def _blocks(parts: Sequence[NumberedPart], blocks: tuple[int, int]) -> Iterator[pl.DataFrame]:
    """Yield the histories of the first to before the last of the `blocks`."""
    first, last = (block * SAMPLED_BLOCK_USERS for block in blocks)
    frames = (part.histories((first - part.before, last - part.before)) for part in parts)
    return chunked(frames, SAMPLED_BLOCK_USERS)


class Written(NamedTuple):
    """The checksums of the files that were written, rows and columns by folder, and the counts of held-out users."""

    files: Mapping[str, Mapping[str, Any]]
    folders: Mapping[str, tuple[int, Sequence[str]]]
    held_out: HeldOutCounts


def write_histories(
    folder: Path, histories: NumberedHistories, split: Split, lengths: Int64s, stages: Stages
) -> Written:
    """Write the histories and the negatives; `lengths`: the number of interactions of each user."""
    names = histories.columns
    has = {f"has_{name}s": name in names for name in ("time", "rating", "event")}
    columns = {HISTORIES: history_columns(**has, has_ties=has_ties(names)), NEGATIVE_ITEMS: negative_columns()}
    starts = [*part_starts(lengths), len(lengths)]
    numbers = np.append(0, np.cumsum(lengths > 0))  # of histories before each user
    arguments, sizes = [], []
    for first, last in pairwise(starts):
        blocks = int(numbers[first] // SAMPLED_BLOCK_USERS), -int(-numbers[last] // SAMPLED_BLOCK_USERS)
        low, high = (block * SAMPLED_BLOCK_USERS for block in blocks)
        parts = [part for part in histories.parts if part.before < high and low < part.before + part.n_users]
        arguments.append(((first, last), blocks, parts, split, columns))
        sizes.append(int(lengths[first:last].sum()))
    done = stages.run("write", write_part, arguments, sizes=sizes, title="write", are_small=True)
    held_out, found, folders = HeldOutCounts(), {}, {}
    for name in FOLDERS:
        (folder / name).mkdir()
        files = [result["files"][name] for _, result in done]
        for (place, _), file in zip(done, files, strict=True):
            stages.deliver(place, f"{name}/{file['filename']}", folder)
            found[f"{name}/{file['filename']}"] = file["checksums"]
        write_state(folder / name, columns[name], files)
        folders[name] = sum(n for file in files for _, n in file["batches"]), [*columns[name]]
    for _, result in done:
        held_out.update({(kind, key): n for kind, key, n in result["held_out"]})
    return Written(found, folders, held_out)
