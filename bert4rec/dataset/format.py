"""The format of a dataset folder: ids, files, columns and their types.

Item ids count from 0; padding and the mask token have no item id. The writer, the reader and the check share these
definitions; the docs and the dataset card describe them.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bert4rec.config.stored import METADATA as METADATA
from bert4rec.dataset.findings import findings
from bert4rec.runtime.arrays import Int64s
from bert4rec.runtime.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa  # a model package is used without it
    from jinja2 import Template

DATASET_FORMAT = 3  # version of the dataset folder

NO_ITEM = -1  # instead of an item: the mask token, padding, an unknown item, a missing target or negative
MOST_IDS = 2**31 - 1  # users or items: ids are 32-bit

VALIDATION, TEST = EVALUATED = ("validation", "test")  # splits with a target for each of their users
HISTORIES, NEGATIVE_ITEMS = FOLDERS = ("histories", "negatives")  # in the format of the library `datasets`
STATE = "state.json"  # in each folder: its files, and `batches`, first user and rows of each of their record batches
USERS, ITEMS = "users", "items"  # folders of Parquet files `part-<first row>.parquet`, see `dataset.id_tables`
ORACLE = "oracle.parquet"
TRAIN_COUNTS = "train_counts.npy"  # `train_count` of `items/` by number, to be memory-mapped
DATASET_CARD = "README.md"
FIRST_PART = "part-0000000000.parquet"
NEEDED = {f"{USERS}/{FIRST_PART}", f"{ITEMS}/{FIRST_PART}", TRAIN_COUNTS, *(f"{name}/{STATE}" for name in FOLDERS)}
"""Files of every dataset."""

ROWS_PER_FILE, ROWS_PER_GROUP = 1 << 20, 1 << 16  # at most: rows of a file of users or items, and of a row group of it
USERS_PER_PART, ROWS_PER_PART = 1 << 20, 1 << 22  # at most: the ids and the interactions of the users of a part

MIN_EVALUATED = 3  # interactions of a user for leave-one-out: one each for training, validation and test

PROTOCOLS = ("popular", "uniform")  # of negatives
NEGATIVES = tuple(f"{name}_negatives" for name in PROTOCOLS)
RATINGS = "ratings"
TIMES = "times"
EVENTS = "events"
READING = "reading"  # key of `metadata.json`: settings other than the defaults that say how the input was read
PREVIOUS = "previous"  # key of `metadata.json`: the datasets that this one extends, and the validation users kept
FORGOTTEN = "forgotten"  # key of `metadata.json`: the numbers of users and items whose ids are null, if there are any
LISTS = {"items": "int32", TIMES: "int64", RATINGS: "float32", EVENTS: "int16"}
"""Parallel lists of a row, oldest first → the type of an element; all but items only if the source has them."""
NO_EVENT = ""  # kind 0: the kind of an interaction is missing, or unknown as that of a masked position


OFFSETS = ("n_train", *EVALUATED)
"""Columns of a history: its number of training interactions, and the positions of its targets, or `NO_TARGET`."""
NO_TARGET = -1

METADATA_DEFAULTS = {"target_events": [], "hide_before_target": "nothing", "test_users": "all", "ties": "file"}
"""Settings of [preprocessing] that a dataset names only if they differ from these, their defaults."""

TEST_TIED = "test_tied"
"""Column of a history: 1 if the test target has the full time of the item before it, and the same value of the order
column, else 0. A dataset has it only if `times`, in whole seconds, do not tell."""

LEFT_OUT = -1  # instead of a rank: the user has no negatives and is excluded from this protocol
LONGEST_BAR = 40  # characters of the longest bar

T = TypeVar("T")


def history_columns(
    *, has_times: bool, has_ratings: bool, has_events: bool = False, has_ties: bool = False
) -> "dict[str, pa.DataType]":
    """Return the columns of `histories/` with their types, in order; `histories/` has one row per user.

    >>> list(history_columns(has_times=True, has_ratings=False))
    ['user', 'items', 'times', 'n_train', 'validation', 'test']
    """
    import pyarrow as pa

    is_present = {"items": True, TIMES: has_times, RATINGS: has_ratings, EVENTS: has_events}
    lists = {name: pa.list_(pa.type_for_alias(kind)) for name, kind in LISTS.items() if is_present[name]}
    ties = {TEST_TIED: pa.int8()} if has_ties else {}
    return {"user": pa.int32(), **lists, **dict.fromkeys(OFFSETS, pa.int32()), **ties}


def negative_columns() -> "dict[str, pa.DataType]":
    """Return the columns of `negatives/`, which has a row for each user with a target, with their types."""
    import pyarrow as pa

    return {"user": pa.int32(), **dict.fromkeys(NEGATIVES, pa.list_(pa.int32()))}


def part_starts(lengths: Int64s, *, most_rows: int = ROWS_PER_PART) -> list[int]:
    """Return the first user of each part of the dataset folders; `lengths` [users] are the numbers of interactions.

    A part is a range of `USERS_PER_PART` user ids, halved until it has at most `most_rows` interactions, or one user.
    So it depends on the histories of these users alone: what other users do, or new ones, leaves it as it is.

    >>> part_starts(np.array([3, 1, 1, 0, 9, 2]), most_rows=4)
    [0, 2, 4, 5]
    """
    ends = np.append(0, np.cumsum(lengths))

    def halves(first: int, size: int) -> Iterator[int]:
        if size > 1 and ends[min(first + size, len(lengths))] - ends[min(first, len(lengths))] > most_rows:
            yield from halves(first, size // 2)
            yield from halves(first + size // 2, size // 2)
        elif first < len(lengths):
            yield first

    return [start for first in range(0, len(lengths), USERS_PER_PART) for start in halves(first, USERS_PER_PART)]


def one_array(column: "pa.ChunkedArray") -> "pa.Array":
    """Return a column as one array; text gets 64-bit offsets, since 32-bit offsets end at 2 GiB.

    >>> import pyarrow as pa
    >>> one_array(pa.chunked_array([["a"], ["b"]])).type
    DataType(large_string)
    """
    import pyarrow as pa

    if pa.types.is_string(column.type):
        column = column.cast(pa.large_string())
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def outranks(scores: Any, ids: Any, target_scores: Any, targets: Any) -> Any:
    """Return which candidates, with `scores` [B, n] and `ids` [n] or [B, n], outrank targets with `target_scores` [B].

    The arguments are NumPy arrays or torch tensors. Ties go to the lower id. Ids are a seeded shuffle of the items, so
    ties are broken at random but reproducibly, and a model that scores all items equally is no better than chance.
    """
    target_scores, targets = target_scores[:, None], targets[:, None]
    return (scores > target_scores) | ((scores == target_scores) & (ids < targets))


def kinds_of(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds of events of a dataset by number, the first for a missing one; () without kinds.

    >>> kinds_of({"events": {"": 0, "view": 7, "buy": 2}}), kinds_of({})
    (('', 'view', 'buy'), ())
    """
    return tuple(metadata.get(EVENTS, ()))


def fingerprint_of(folder: Path) -> str:
    """Return the fingerprint of a dataset folder, or of a run's links to one; "" if there is none."""
    try:
        return str(json.loads((folder / METADATA).read_text(encoding="utf-8"))["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def extends(folder: Path, fingerprint: str) -> bool:
    """Return whether `folder` is the dataset with this fingerprint, or one that extends it: it begins with its numbers.

    A folder without a dataset does not.
    """
    try:
        return fingerprint in fingerprints_of(json.loads((folder / METADATA).read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


class ReplacedError(DataError):
    """A dataset folder that holds another dataset than when it was opened."""


def read_version(folder: Path, fingerprint: str, read: Callable[[], T]) -> T:
    """Return what `read` returns of the files of the dataset `folder` with the `fingerprint`, "" being any.

    The files of two datasets are never mixed: if the folder is replaced meanwhile by the same dataset, it reads again,
    and if it is replaced by another one, it raises `ReplacedError`.
    """
    while fingerprint:
        before = _stamp(folder)
        if fingerprint_of(folder) != fingerprint:
            raise ReplacedError(f"{folder}: no longer holds the dataset that was opened; start again")
        try:
            found = read()
        except (OSError, ValueError, DataError):
            if _stamp(folder) == before:
                raise
        else:
            if _stamp(folder) == before:
                return found
    return read()


def _stamp(folder: Path) -> tuple[int, ...]:
    """Return what only this copy of a dataset has: the number and the time of making of its `metadata.json`."""
    try:
        stat = (folder / METADATA).stat()
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_ctime_ns


def n_forgotten(metadata: Mapping[str, Any], name: str) -> int:
    """Return how many of the `USERS` or `ITEMS` of a dataset are forgotten: their ids are null.

    >>> n_forgotten({"forgotten": {"users": 2}}, "users"), n_forgotten({}, "items")
    (2, 0)
    """
    return int(metadata.get(FORGOTTEN, {}).get(name, 0))


def fingerprints_of(metadata: Mapping[str, Any]) -> list[str]:
    """Return the fingerprint of a dataset, and those of the datasets that it extends, newest first."""
    return [metadata["fingerprint"], *metadata.get(PREVIOUS, {}).get("fingerprints", ())]


def numbers_of_kinds(setting: str, names: Collection[str], kinds: Sequence[str]) -> list[int]:
    """Return the numbers of the `names` among the `kinds`. Raises `DataError` for a name that is none of them."""
    known = [kind for kind in kinds if kind != NO_EVENT]
    for name in names:
        if name not in known:
            advice = f"the kinds are: {', '.join(known)}" if kinds else "name their column: --data.event_column=COLUMN"
            has = "unknown event" if kinds else "this dataset has no kinds of events"
            raise DataError(f"{setting}: {name}: {has}; {advice}")
    return [kinds.index(name) for name in names]


def target_kinds(folder: Path, metadata: Mapping[str, Any]) -> list[int]:
    """Return the numbers of the kinds of events that the dataset in `folder` holds out, [] for all of them.

    Raises `DataError` for a kind that is none of the dataset.
    """
    names = metadata["preprocessing"].get("target_events", [])
    return numbers_of_kinds(f"{folder / METADATA}: target_events", names, kinds_of(metadata))


def lengths_of(lengths: Int64s) -> dict[str, Any]:
    """Return minimum, median, third quartile, mean, maximum, and a histogram by powers of two: `[from, to, users]`.

    Classes below the shortest history are left out, empty ones between two others are not.

    >>> lengths_of(np.array([2, 3, 3, 9]))["histogram"]
    [[2, 3, 3], [4, 7, 0], [8, 15, 1]]
    """
    powers = np.floor(np.log2(lengths)).astype(np.int64)
    shortest = int(powers.min())
    users = enumerate(np.bincount(powers).tolist())
    return {
        "min": int(lengths.min()),
        "median": float(np.median(lengths)),
        "third_quartile": int(np.quantile(lengths, 0.75, method="inverted_cdf")),
        "mean": round(float(lengths.mean()), 2),
        "max": int(lengths.max()),
        "histogram": [[2**power, 2 ** (power + 1) - 1, n] for power, n in users if power >= shortest],
    }


def order_line(source: str, order: Mapping[str, Any]) -> str:
    """Return one line that says what orders the items of a user.

    >>> order_line("table", {"by": "time", "column": "at", "newest_first": False})
    'order: by time (column at)'
    """
    then = f", then by {order['then']}" if "then" in order else ""
    if order["by"] == "time":
        last = ", rows of one time the last first" if order["newest_first"] else ""
        return "order: by time" + (f" (column {order['column']})" if order["column"] else "") + then + last
    if order["by"] == "column":
        return f"order: by {order['column']}"
    unnamed = " (no times)" if source == "table" else ""
    return f"order: as in the file{', the last row first' if order['newest_first'] else ''}{unnamed}"


def share_of(count: Mapping[str, int]) -> str:
    """Return `{"users": n, "of": N}` as text.

    >>> share_of({"users": 305, "of": 1500})
    '305 of 1,500 (20.3 %)'
    """
    return f"{count['users']:,} of {count['of']:,} ({_percent(count)})"


def _percent(count: Mapping[str, int]) -> str:
    return f"{100 * count['users'] / max(1, count['of']):.1f} %"


def describe(metadata: Mapping[str, Any]) -> str:
    """Return the report printed at the end of a preparation and shown in the dataset card, from `metadata.json`."""
    return "\n".join(_lines(metadata))


def _lines(metadata: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'rows read':36}{metadata['rows_read']:>15,}"
    for kind, n in metadata["bad_rows"].items():
        yield f"{f'  unusable: {kind}':36}{-n:>15,}"
    if n := metadata.get("guests", 0):
        yield f"{'  without a user':36}{-n:>15,}"
    for name, n in metadata["dropped"].items():
        yield f"{f'  dropped by {name}':36}{-n:>15,}"
    yield f"{'rows kept':36}{metadata['rows']:>15,}"
    for name in ("users", "items"):
        yield f"{name:36}{metadata[name]:>15,}  of {metadata[f'{name}_read']:,} read"
        if n := n_forgotten(metadata, name):
            yield f"{'  forgotten':36}{n:>15,}"
    yield f"{'density':36}{metadata['density']:>15.4%}"
    if metadata["time_span"]:
        first, last = (datetime.fromtimestamp(time, UTC).date().isoformat() for time in metadata["time_span"])
        yield f"{'from, to':36}{first:>15}  {last}"
    yield f"{'train positions':36}{metadata['train_positions']:>15,}"
    for split in ("validation", "test"):
        yield f"{f'{split} users':36}{metadata[f'{split}_users']:>15,}"
        if split == VALIDATION and (kept := metadata.get(PREVIOUS, {}).get("validation_users")):
            yield f"{'  of the dataset that this extends':36}{kept:>15,}"
        yield from _held_out(metadata, split)
    targets = metadata["preprocessing"].get("target_events", [])
    for name, n in metadata.get(EVENTS, {}).items():
        about = f"{100 * n / metadata['rows']:.1f} %{', predicted' if name in targets else ''}"
        if n:
            yield f"{f'event {name}' if name else 'without a kind of event':36}{n:>15,}  {about}"
    for name, feature in metadata.get("item_features", {}).items():
        size = f"{feature['width']} numbers" if feature["kind"] == "vector" else f"{feature['n_values'] - 1:,} values"
        yield f"{f'item feature {name}':36}{feature['kind']:>15}  {feature['coverage']:.0%} of the items, {size}"
    lengths = metadata["lengths"]
    yield ""
    yield order_line(metadata["source"], metadata["order"])
    yield (
        f"interactions of a user: {lengths['min']:,} to {lengths['max']:,}, median {lengths['median']:,.0f}, "
        f"mean {lengths['mean']:,.1f}"
    )
    largest = max(n for *_, n in lengths["histogram"])
    for low, high, n in lengths["histogram"]:
        yield f"{f'{low:,}–{high:,}':>17} {n:>11,} {'█' * round(LONGEST_BAR * n / largest)}".rstrip()


def _held_out(metadata: Mapping[str, Any], split: str) -> Iterator[str]:
    """Yield the counts of repeated targets and of users without negatives, if there are any."""
    kinds = {
        "repeated_targets": "target seen before",
        "left_out": f"fewer than {metadata['preprocessing']['n_eval_negatives']:,} unseen items",
    }
    for key, kind in kinds.items():
        if (count := metadata[key][split])["users"]:
            yield f"{f'  {kind}':36}{count['users']:>15,}  {_percent(count)}"


def dataset_card(
    metadata: Mapping[str, Any], folders: Mapping[str, tuple[int, Sequence[str]]], tables: Collection[str]
) -> str:
    """Return the dataset card: counts and settings of `metadata`, rows and columns of the `folders`, the `tables`.

    The card contains neither a date nor a local path: the same dataset has the same card.
    """
    present = {name for _, columns in folders.values() for name in columns}
    shown = {
        "folders": folders, "tables": tables, "present": present, "report": describe(metadata),
        "findings": findings(metadata),
    }  # fmt: skip
    return _card_template().render({**metadata, **shown})


@cache
def _card_template() -> "Template":
    """Return the template of the card, whose compilation takes a third of a small preparation."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"share": share_of, "thousands": "{:,}".format}
    return environment.get_template("card.md.j2")
