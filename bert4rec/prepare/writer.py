"""Write the dataset folder, the only interface between preparation and training.

The same rows and settings give the same bytes, however the rows are cut into frames: ranges of users are files, in
record batches of a fixed size. Only `created_at` and `created_from` in `metadata.json` depend on the time and the input
file.
"""

import glob
import hashlib
import itertools
import json
import logging
import os
import shlex
import shutil
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, TypeAlias, TypeVar

import datasets
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.config.addresses import is_url, without_secrets
from bert4rec.dataset.format import (
    DATASET_FORMAT,
    EVALUATED,
    FOLDERS,
    HISTORIES,
    ITEMS,
    METADATA,
    NEGATIVE_ITEMS,
    NEGATIVES,
    ROWS_PER_FILE,
    ROWS_PER_GROUP,
    STATE,
    TEST,
    TEST_TIED,
    TRAIN_COUNTS,
    USERS,
    fingerprint_of,
    history_columns,
    negative_columns,
    part_starts,
)
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.dataset.runs import named
from bert4rec.prepare.histories import (
    HistoryStats,
    NumberedHistories,
    NumberedPart,
    SplitRule,
    mark,
    with_offsets,
)
from bert4rec.prepare.negatives import (
    SAMPLED_BLOCK_USERS,
    HeldOutCounts,
    SeenItems,
    count_held_out,
    draw_negatives,
)
from bert4rec.prepare.ordering import Chunks, ExistingIds, chunked
from bert4rec.prepare.stages import RESULT, Stages
from bert4rec.prepare.ties import draw_targets, has_ties, is_tied, tie_key
from bert4rec.runtime.arrays import Bools, Int64s, Integers
from bert4rec.runtime.errors import DataError, pluralize
from bert4rec.runtime.files import (
    link_or_copy,
    put_back,
    replace_directory,
    sample_sha256,
    sha256,
    try_lock,
    withdraw_directory,
)
from bert4rec.sources.progress import Progress

ROWS_PER_BATCH = 1 << 14  # more batches would cost memory and time in every process that opens the split
FILE_GROUP_ROWS = 1 << 16
DATASET_LOCK = ".lock"
KEPT_AFTER = 60  # seconds; what takes less is not kept if it is stopped
T = TypeVar("T")
R = TypeVar("R")
Draw: TypeAlias = Callable[[pl.DataFrame, str], pl.DataFrame]
N_THREADS = 2  # blocks of users that are split at the same time
logger = logging.getLogger(__name__)


@contextmanager
def new_dataset(folder: Path, *, target: Callable[[Path], Path] | None = None) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` if the block succeeds, and is removed if it fails.

    A dataset at `folder` is replaced, in one step where the system can (`replace_directory`), unless `target`, called
    with the finished temporary folder, returns another place for it; a dataset at that place is left as it is. Raises
    `DataError` if `folder` holds anything else, or if writing fails.
    """
    clear_target(folder)
    place = folder.resolve()  # a symbolic link is kept, and its target replaced
    new, old = (place.with_name(f"{prefix}{os.getpid()}") for prefix in _prefixes(place))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        new.mkdir()
        with (new / DATASET_LOCK).open("w") as lock:
            try_lock(lock)  # `_clean` leaves a locked folder alone, and the dataset that it replaces
            yield new
            final = folder if target is None else target(new)
            final = place if final == folder else final
            if final == place or not final.exists():
                replace_directory(new, final, replaced=old)
                (final / DATASET_LOCK).unlink(missing_ok=True)
    except BrokenPipeError:  # comes from the standard output, not from the disk
        raise
    except (OSError, pa.ArrowException, pl.exceptions.ComputeError) as error:
        raise DataError(f"{folder}: cannot write the dataset: {getattr(error, 'strerror', None) or error}") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
        _clean(place)


@contextmanager
def work_folder(folder: Path, about: Mapping[str, Any], progress: Progress) -> Iterator[Path]:
    """Yield a folder beside `folder` for the files of tasks, and remove it at the end.

    It stays if the process is killed, or stopped after `KEPT_AFTER` seconds: a later one with the same input and
    settings, `about`, goes on with the tasks that are done. Those of others are removed.
    """
    began, place = time.monotonic(), folder.resolve()
    key = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:16]
    work = usual = place.with_name(f".{place.name}.work-{key}")
    for other in place.parent.glob(f".{glob.escape(place.name)}.work-*"):
        if other != usual and (lock := _locked(other)):
            with lock:
                withdraw_directory(other)
    while not (lock := _locked(work)):  # another process makes the same dataset
        work = usual.with_name(f"{usual.name}-{uuid.uuid4().hex}")
    with lock:
        is_kept = False
        try:
            for unfinished in work.glob(f"*-{'[0-9]' * 6}.*"):
                withdraw_directory(unfinished)
            if n_done := sum(1 for _ in work.glob(f"*/{RESULT}")):
                progress.log(f"{pluralize(n_done, 'task')} done by an earlier run, which was stopped")
            yield work
        except BaseException as error:
            is_kept = not isinstance(error, DataError | OSError) and time.monotonic() - began > KEPT_AFTER
            raise
        finally:
            if is_kept:
                logger.info("the same command goes on with what is done")
            else:
                withdraw_directory(work)


def _locked(work: Path) -> IO[str] | None:
    """Return the open lock of the folder `work`, which is made if it is missing; None if another process has it."""
    path = work / DATASET_LOCK
    with suppress(FileNotFoundError):  # another process has removed the folder just now
        work.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
        with suppress(FileNotFoundError):
            if try_lock(lock) and os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock
        lock.close()
    return None


def clear_target(folder: Path) -> None:
    """Remove what killed runs left next to `folder`; raise `DataError` if `folder` is anything but a dataset."""
    try:
        _clean(folder.resolve())
        if folder.is_file():
            raise DataError(f"{folder}: is a file; choose another data.dataset_dir")
        if folder.is_dir() and any(folder.iterdir()) and not (folder / METADATA).is_file():
            raise DataError(f"{folder}: is not empty and not a dataset folder; choose another data.dataset_dir")
    except OSError as error:
        raise DataError(f"{folder}: cannot be used as data.dataset_dir: {error.strerror}") from None


def created_from(source: str, path: str, rows: Mapping[str, str]) -> dict[str, str]:
    """Return the entry of `metadata.json` that identifies the input, without revealing its path on this machine.

    `rows`: the table or query that names them, in a database.
    """
    if not path:
        return {"source": source}
    place, name = os.path.realpath(path), os.path.basename(os.path.abspath(path))
    if is_url(path):
        place, name = path, without_secrets(path)
    named = {key: text for key, text in rows.items() if text}
    digest = hashlib.sha256("\n".join([place, *named.values()]).encode()).hexdigest()
    return {"source": source, "name": name, "path_sha256": digest[:16], **named}


def refuse_another_input(folder: Path, origin: Mapping[str, str], *, is_own_data: bool) -> None:
    """Raise `DataError` if the dataset at `folder` was made from another input than `origin` (see `created_from`).

    With `is_own_data`, the source is a file format and the path identifies the input; else the source identifies it.
    """
    path = folder / METADATA
    if not path.is_file():
        return
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
        before = metadata["created_from"]
        is_same_path = not is_own_data or before.get("path_sha256") == origin.get("path_sha256")
        if before["source"] == origin["source"] and is_same_path:
            return
        name = _input_name(before)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        name = "an input that it does not name"
    new = f"a {origin['name']} that lies elsewhere" if name == _input_name(origin) else _input_name(origin)
    raise DataError(f"{folder}: holds a dataset made from {name}, this one is from {new}; {_how_to_keep(folder)}")


def free_folder(folder: Path, fingerprint: str = "") -> Path:
    """Return the first of `folder`-2, -3, … that is free, or holds the dataset with this `fingerprint`."""
    place = folder.resolve() if folder.is_symlink() else folder
    others = (place.with_name(f"{place.name}-{number}") for number in itertools.count(2))
    return next(
        other for other in others if not other.exists() or (fingerprint and fingerprint_of(other) == fingerprint)
    )


def refuse_to_replace(folder: Path, runs: list[Path]) -> NoReturn:
    """Raise `DataError`: the dataset at `folder`, on which `runs` were trained, would be replaced by another one."""
    raise DataError(f"{folder}: {named(runs)} trained on this dataset, and the new one differs; {_how_to_keep(folder)}")


def _how_to_keep(folder: Path) -> str:
    """Return the advice for a dataset that would be replaced: another folder, or the option that replaces it."""
    option = shlex.quote(f"--data.dataset_dir={free_folder(folder)}")
    return f'to keep both add {option}, to replace it --replace (in Python {{"data.replace": True}})'


def _input_name(origin: Mapping[str, str]) -> str:
    rows = origin.get("table") or origin.get("query") or origin["source"]
    return f"{origin['name']} ({rows})" if "name" in origin else origin["source"]


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


def write_state(folder: Path, columns: Mapping[str, pa.DataType], files: Sequence[Mapping[str, Any]]) -> None:
    """Write what `datasets` needs to open the `folder` with the `files` of a `PartWriter` each."""
    digest = hashlib.sha256("".join(file["checksums"]["sha256"] for file in files).encode()).hexdigest()
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


def checksums(path: Path) -> dict[str, Any]:
    """Return the entry of a file in `metadata.json`."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path), "sample_sha256": sample_sha256(path)}


def write_table(path: Path, frames: Iterable[pl.DataFrame]) -> int:
    """Write a Parquet file in row groups of a fixed size, from frames of any size, and return its number of rows."""
    writer, n_rows = None, 0
    for frame in chunked(frames, FILE_GROUP_ROWS):
        table = frame.to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=FILE_GROUP_ROWS)
        n_rows += len(frame)
    if writer:
        writer.close()
    return n_rows


def write_ids(folder: Path, segments: Iterable[Iterable[pl.DataFrame]], *, first: int = 0) -> list[int]:
    """Write the rows of a table of users or items, in files of a fixed size, and return the sizes of the segments.

    `segments` are the rows of each segment from row `first` on, in frames of any size, sorted by `original`; segments
    without rows are left out.
    """
    folder.mkdir(exist_ok=True)
    sizes: list[int] = []
    for frames in segments:
        n_rows = 0
        for rows in chunked(frames, ROWS_PER_FILE):
            table = rows.to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
            path = folder / f"part-{first + sum(sizes) + n_rows:010d}.parquet"
            # Ids are all different: a dictionary makes files larger and slower to read, zstd halves them.
            pq.write_table(table, path, row_group_size=ROWS_PER_GROUP, compression="zstd", use_dictionary=False)
            n_rows += len(rows)
        sizes += [n_rows] if n_rows else []
    return sizes


def by_segment(
    frames: Iterable[pl.DataFrame], sizes: Sequence[int], types: Sequence[pl.DataType]
) -> Iterator[Iterable[pl.DataFrame]]:
    """Yield the rows of each segment of these `sizes`, with ids of its type, and then all others; to be read in turn.

    >>> frames = [pl.DataFrame({"original": ["1", "2", "3"]}), pl.DataFrame({"original": ["a"]})]
    >>> [[frame["original"].to_list() for frame in rows] for rows in by_segment(frames, [2], [pl.Int64()])]
    [[[1, 2]], [['3'], ['a']]]
    """
    waiting = iter(frames)

    def first_rows(n: int, dtype: pl.DataType) -> Iterator[pl.DataFrame]:
        nonlocal waiting
        while n:
            frame = next(waiting)
            yield frame[:n].cast({"original": dtype})
            waiting, n = (waiting, n - len(frame)) if len(frame) <= n else (itertools.chain([frame[n:]], waiting), 0)

    for n, dtype in zip(sizes, types, strict=True):
        yield first_rows(n, dtype)
    yield waiting


def write_users(folder: Path, users: Iterable[pl.DataFrame], known: ExistingIds | None) -> list[int]:
    """Write the table of the `users`, given by number, the `known` ones first; return the sizes of its segments."""
    by_segments = by_segment(users, known.segments[USERS], known.id_types[USERS]) if known else [users]
    return write_ids(folder / USERS, by_segments)


def write_items(
    folder: Path, segments: Iterable[Iterable[pl.DataFrame]], train_counts: Int64s, known: ExistingIds | None, *,
    seed: int,
) -> list[list[int]]:  # fmt: skip
    """Write the table of the items, given by `item_rows`, and their training positions as an array that can be mapped.

    Returns the segments with their seeds: those of the `known` items, and one of all new items, in the order by `seed`.
    """
    sizes, old = write_ids(folder / ITEMS, segments), [*known.segments[ITEMS]] if known else []
    np.save(folder / TRAIN_COUNTS, train_counts.astype(np.int32))
    return [*old, *([n, seed] for n in sizes[len(old) :])]


def _batch(frame: pl.DataFrame, schema: pa.Schema) -> pa.RecordBatch:
    """Return a copy of the rows as a record batch: Arrow would pad a slice with bytes of its frame's next rows."""
    table = frame.to_arrow().cast(schema)
    return table.take(pa.array(np.arange(len(frame)))).combine_chunks().to_batches()[0]


def write_metadata(folder: Path, metadata: Mapping[str, Any], *, known: Mapping[str, Any] | None = None) -> int:
    """Write `metadata.json` with the checksums of every other file; return the size of the folder in bytes.

    `known` are checksums of files that need not be read again.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != DATASET_LOCK)
    sizes = {path: path.stat().st_size for path in paths}
    files = {
        name: (known or {}).get(name) or checksums(path)
        for name, path in ((path.relative_to(folder).as_posix(), path) for path in paths)
    }
    content = {
        "format_version": DATASET_FORMAT,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **metadata,
        "files": files,
        "fingerprint": hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest(),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    (folder / METADATA).write_text(text, encoding="utf-8")
    return sum(sizes.values()) + len(text.encode())


def _prefixes(folder: Path) -> tuple[str, str]:
    """Return the name prefixes of a folder that is being written, and of one that is being replaced."""
    return f".{folder.name}.new-", f".{folder.name}.old-"


def _clean(folder: Path) -> None:
    """Remove what killed runs left next to `folder`, and put back a dataset that was being replaced."""
    siblings = sorted(folder.parent.iterdir()) if folder.parent.is_dir() else []
    new_prefix, old_prefix = _prefixes(folder)
    new, old = ([path for path in siblings if path.name.startswith(prefix)] for prefix in (new_prefix, old_prefix))
    for path in old:
        if not _in_use(path.with_name(new_prefix + path.name.removeprefix(old_prefix))):
            put_back(path, folder)
    for path in new:
        if not _in_use(path):
            shutil.rmtree(path, ignore_errors=True)
    if not _in_use(folder):
        (folder / DATASET_LOCK).unlink(missing_ok=True)


def _in_use(new: Path) -> bool:
    """Return whether a living process writes or renames the folder `new`."""
    try:
        with (new / DATASET_LOCK).open("r+") as lock:
            return not try_lock(lock)
    except OSError:
        return False


class SplitUsers(NamedTuple):
    """The training positions of each item and the held-out users, of which `split_block` reads some."""

    train_counts: Integers
    validated: Bools
    tested: Bools | None


@dataclass(frozen=True)
class Split:
    """How histories are split and written: the files of arrays for tasks, and the settings.

    `item_ids`: the dense id of each code. `draws`: the kinds of events that are drawn from the last basket, [] = all;
    None if the rule finds the targets.
    """

    item_ids: Path
    train_counts: Path
    validated: Path
    tested: Path | None
    rule: SplitRule
    hidden: HiddenEvents | None
    n_negatives: int
    seed: int
    draws: Sequence[int] | None

    @property
    def users(self) -> SplitUsers:
        """Return the arrays, mapped."""
        names = self.train_counts, self.validated, self.tested
        return SplitUsers(*(None if path is None else np.load(path, mmap_mode="r") for path in names))  # type: ignore


class SplitBlock(NamedTuple):
    """The rows of a block of users for both folders, and the counts of held-out users."""

    histories: pl.DataFrame
    negatives: pl.DataFrame
    held_out: HeldOutCounts


def split_block(
    numbered: tuple[int, pl.DataFrame], rule: SplitRule, survey: HistoryStats | SplitUsers, *, n_negatives: int,
    seed: int, draw: Draw | None = None, is_inside: pl.Expr | None = None,
) -> SplitBlock:  # fmt: skip
    """Return a block of histories, given with its number, split by `rule`, and the negatives of users with a target.

    A user with fewer than `n_negatives` unseen items gets none, so that users have either none or `n_negatives`. They
    are drawn for whole histories: the same for validation and test. `draw` puts the target of a split, which the rule
    finds by its basket, at its place. Only users who are inside are returned and counted.
    """
    block, histories = numbered
    popularity = survey.train_counts
    validated = pl.Series("validated", survey.validated[histories["user"].to_numpy()])
    split = with_offsets(mark(histories.with_columns(validated), rule, survey.tested))
    if draw:
        for name in EVALUATED:
            split = draw(split, name)
    if (key := tie_key(split.columns)) is not None:
        split = split.with_columns(is_tied(key, pl.col(TEST)).fill_null(value=False).cast(pl.Int8).alias(TEST_TIED))
    evaluated = split.filter(pl.max_horizontal(EVALUATED) >= 0)
    unseen = len(popularity) - evaluated["items"].list.n_unique().to_numpy().astype(np.int64)  # items of each user
    whole = evaluated.filter(pl.Series(unseen >= n_negatives))
    seen = SeenItems.of(whole, len(popularity))
    drawn = [
        pl.Series(name, draw_negatives(seen, weights, n=n_negatives, seed=[seed, number, block])).arr.to_list()
        for name, weights, number in (
            ("popular_negatives", popularity, 3),
            ("uniform_negatives", np.ones_like(popularity), 4),
        )
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
        split_block, rule=split.rule, survey=split.users, n_negatives=split.n_negatives, seed=split.seed, draw=draw,
        is_inside=is_inside,
    )  # fmt: skip
    numbered = enumerate(_blocks(parts, blocks, split), blocks[0])
    for block in in_order(cut, numbered, n_threads=min(N_THREADS, pl.thread_pool_size())):
        for writer, rows in zip(writers, (block.histories, block.negatives), strict=True):
            writer.add(rows)
        held_out.update(block.held_out)
        n_rows += int(block.histories["items"].list.len().sum())
    files = {name: writer.close() for name, writer in zip(columns, writers, strict=True)}
    return {"rows": n_rows, "files": files, "held_out": [[*key, n] for key, n in held_out.items()]}


def _blocks(parts: Sequence[NumberedPart], blocks: tuple[int, int], split: Split) -> Iterator[pl.DataFrame]:
    """Yield the histories of the first to before the last of the `blocks`."""
    first, last = (block * SAMPLED_BLOCK_USERS for block in blocks)
    frames = (part.histories(split.item_ids, split.hidden, (first - part.before, last - part.before)) for part in parts)
    return chunked(frames, SAMPLED_BLOCK_USERS)


def write_histories(
    folder: Path, histories: NumberedHistories, split: Split, lengths: Int64s, stages: Stages
) -> tuple[dict[str, dict[str, Any]], HeldOutCounts]:
    """Write the histories and the negatives; return the checksums of the files and the counts of held-out users.

    `lengths`: the number of interactions of each user.
    """
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
    done = stages.run("write", write_part, arguments, sizes=sizes, title="write")
    held_out, found = HeldOutCounts(), {}
    for name in FOLDERS:
        (folder / name).mkdir()
        files = [result["files"][name] for _, result in done]
        for (place, _), file in zip(done, files, strict=True):
            link_or_copy(place / name / file["filename"], folder / name / file["filename"])
            found[f"{name}/{file['filename']}"] = file["checksums"]
        write_state(folder / name, columns[name], files)
    for _, result in done:
        held_out.update({(kind, key): n for kind, key, n in result["held_out"]})
    return found, held_out


def in_order(function: Callable[[T], R], arguments: Iterable[T], *, n_threads: int) -> Iterator[R]:
    """Yield `function` of each argument, in order; up to `n_threads` calls run at the same time."""
    with ThreadPoolExecutor(n_threads) as pool:
        running: deque[Future[R]] = deque()
        for argument in arguments:
            if len(running) == n_threads:
                yield running.popleft().result()
            running.append(pool.submit(function, argument))
        while running:
            yield running.popleft().result()
