"""Write the dataset folder, the only interface between preparation and training.

The same rows and settings give the same bytes, however the rows are cut into frames: ranges of users are files, in
record batches of a fixed size. Only `created_at` and `created_from` in `metadata.json` depend on the time and the input
file.
"""

import hashlib
import itertools
import json
import os
import shlex
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar

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
from bert4rec.dataset.runs import named
from bert4rec.dataset.segments import Segments
from bert4rec.prepare.histories import HistoryStats, NumberedHistories, SplitRule, mark, with_offsets
from bert4rec.prepare.negatives import (
    SAMPLED_BLOCK_USERS,
    HeldOutCounts,
    SeenItems,
    count_held_out,
    draw_negatives,
)
from bert4rec.prepare.ordering import Chunks, ExistingIds, chunked
from bert4rec.prepare.ties import has_ties, is_tied, tie_key
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.files import put_back, replace_directory, sample_sha256, sha256, try_lock
from bert4rec.sources.progress import Progress

ROWS_PER_BATCH = 1 << 14  # more batches would cost memory and time in every process that opens the split
FILE_GROUP_ROWS = 1 << 16
DATASET_LOCK = ".lock"
T = TypeVar("T")
R = TypeVar("R")
Draw: TypeAlias = Callable[[pl.DataFrame, str], pl.DataFrame]
N_THREADS = 2  # blocks of users that are split at the same time


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


class FolderWriter:
    """Write rows as `datasets` saves them, users ascending, from frames of any size.

    The rows of the users from each of `starts` on are a file, which depends on these rows alone. `columns` maps names
    to types.
    """

    def __init__(self, folder: Path, columns: Mapping[str, pa.DataType], starts: Sequence[int]) -> None:
        folder.mkdir()
        self._folder, self._schema = folder, pa.schema(list(columns.items()))
        self._rows, self._starts = Chunks(ROWS_PER_BATCH), deque(starts)
        self._files: list[dict[str, Any]] = []
        self._writer: Any = None
        self.n_rows, self.columns = 0, [*columns]
        self._open()

    def add(self, frame: pl.DataFrame) -> None:
        """Append the rows of `frame`."""
        frame = frame.select(self.columns)
        while self._starts and len(frame) and frame["user"][-1] >= self._starts[0]:
            n = frame["user"].search_sorted(self._starts[0])
            self._write(self._rows.add(frame[:n]))
            frame = frame[n:]
            self._end()
            self._open()
        self._write(self._rows.add(frame))

    def close(self) -> None:
        """Write the remaining rows, and the files with which `datasets` opens the folder."""
        self._end()
        while self._starts:
            self._open()
            self._end()
        digests = (sha256(self._folder / file["filename"]) for file in self._files)
        digest = hashlib.sha256("".join(digests).encode()).hexdigest()
        empty = datasets.Dataset(
            datasets.table.InMemoryTable(self._schema.empty_table()),
            fingerprint=digest[:16],  # of the content, instead of a random one
        )
        empty.save_to_disk(str(self._folder), num_shards=1)
        path = self._folder / STATE
        state = json.loads(path.read_text(encoding="utf-8"))
        (self._folder / state["_data_files"][0]["filename"]).unlink()
        path.write_text(json.dumps(state | {"_data_files": self._files}, sort_keys=True), encoding="utf-8")

    def _write(self, frames: Iterable[pl.DataFrame]) -> None:
        for frame in frames:
            self._writer.write_batch(_batch(frame, self._schema))
            self._files[-1]["batches"].append([frame["user"][0], len(frame)])
            self.n_rows += len(frame)

    def _open(self) -> None:
        self._first = self._starts.popleft()
        self._files.append({"filename": f"part-{self._first:010d}.arrow", "batches": []})
        self._sink = pa.OSFile(str(self._folder / self._files[-1]["filename"]), "wb")
        self._writer = pa.ipc.new_stream(self._sink, self._schema)

    def _end(self) -> None:
        self._write(self._rows.rest())
        if not self._files[-1]["batches"]:
            self._writer.write_batch(pa.RecordBatch.from_pylist([], self._schema))
            self._files[-1]["batches"].append([self._first, 0])
        self._writer.close()
        self._sink.close()


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


def write_items(folder: Path, items: pl.DataFrame, known: ExistingIds | None, *, seed: int) -> list[list[int]]:
    """Write the table of the `items`, given by number, and their training positions as an array that can be mapped.

    Returns the segments with their seeds: those of the `known` items, and one of all new items, in the order by `seed`.
    """
    segments = [*known.segments[ITEMS]] if known else []
    types = [*known.id_types[ITEMS]] if known else []
    if n_new := len(items) - sum(n for n, _ in segments):
        segments, types = [*segments, [n_new, seed]], [*types, items["original"].dtype]
    order = Segments([n for n, _ in segments], [seed for _, seed in segments])
    bounds = zip(pairwise(order.starts), types, strict=True)
    write_ids(
        folder / ITEMS,
        ([items[order.numbers(np.arange(*rows))].cast({"original": dtype})] for rows, dtype in bounds),
    )
    np.save(folder / TRAIN_COUNTS, items["train_count"].to_numpy().astype(np.int32))
    return segments


def _batch(frame: pl.DataFrame, schema: pa.Schema) -> pa.RecordBatch:
    """Return a copy of the rows as a record batch: Arrow would pad a slice with bytes of its frame's next rows."""
    table = frame.to_arrow().cast(schema)
    return table.take(pa.array(np.arange(len(frame)))).combine_chunks().to_batches()[0]


def write_metadata(folder: Path, metadata: Mapping[str, Any], *, known: Mapping[str, Any] | None = None) -> int:
    """Write `metadata.json` with the checksums of every other file; return the size of the folder in bytes.

    `known` are the checksums of files that came from another dataset.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != DATASET_LOCK)
    sizes = {path: path.stat().st_size for path in paths}
    files = {
        name: (known or {}).get(name) or {"bytes": size, "sha256": sha256(path), "sample_sha256": sample_sha256(path)}
        for name, path, size in ((path.relative_to(folder).as_posix(), path, size) for path, size in sizes.items())
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


class SplitBlock(NamedTuple):
    """The rows of a block of users for both folders, and the counts of held-out users."""

    histories: pl.DataFrame
    negatives: pl.DataFrame
    held_out: HeldOutCounts


def split_block(
    numbered: tuple[int, pl.DataFrame], rule: SplitRule, survey: HistoryStats, *, n_negatives: int, seed: int,
    draw: Draw | None = None,
) -> SplitBlock:  # fmt: skip
    """Return a block of histories, given with its number, split by `rule`, and the negatives of users with a target.

    A user with fewer than `n_negatives` unseen items gets none, so that users have either none or `n_negatives`. They
    are drawn for whole histories: the same for validation and test. `draw` puts the target of a split, which the rule
    finds by its basket, at its place.
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
    return SplitBlock(split, rows, count_held_out(evaluated, unseen, n_negatives))


def write_histories(
    folder: Path, histories: NumberedHistories, rule: SplitRule, survey: HistoryStats, *, n_negatives: int, seed: int,
    progress: Progress, draw: Draw | None = None,
) -> tuple[list[FolderWriter], HeldOutCounts]:  # fmt: skip
    """Write the histories and the negatives; return their writers and the counts of held-out users."""
    names = histories.columns
    has = {f"has_{name}s": name in names for name in ("time", "rating", "event")}
    columns = history_columns(**has, has_ties=has_ties(names))
    starts, types = part_starts(survey.lengths), {HISTORIES: columns, NEGATIVE_ITEMS: negative_columns()}
    writers = [FolderWriter(folder / name, types[name], starts) for name in FOLDERS]
    held_out: HeldOutCounts = Counter()
    split = partial(split_block, rule=rule, survey=survey, n_negatives=n_negatives, seed=seed, draw=draw)
    with progress.stage("write", histories.n_rows) as stage:
        for block in in_order(split, enumerate(chunked(histories, SAMPLED_BLOCK_USERS)), n_threads=N_THREADS):
            for writer, rows in zip(writers, (block.histories, block.negatives), strict=True):
                writer.add(rows)
            held_out.update(block.held_out)
            stage.advance(int(block.histories["items"].list.len().sum()))
        for writer in writers:
            writer.close()
    return writers, held_out


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
