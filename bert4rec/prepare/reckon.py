"""Reckon what a preparation of some size takes: tasks, files, bytes, memory and seconds, before there is an input.

The input is Parquet whose rows have a user, an item and a time. All users are equally frequent, and so are all items:
with a few popular ones, as in a real log, runs have fewer different items, and the preparation takes less. The numbers
in formulas are fitted to preparations by `python -m benchmarks.prepare_accuracy`, which compares them again.
"""

from collections.abc import Sequence
from math import ceil, expm1, factorial
from typing import NamedTuple

from bert4rec.dataset.format import MIN_EVALUATED, ROWS_PER_FILE, ROWS_PER_PART, USERS_PER_PART
from bert4rec.dataset.histories import STRIDE
from bert4rec.prepare.runs import ENTRY_GROUP, ITEMS_PER_RANGE, ROWS_PER_RANGE, ROWS_PER_RUN, SAMPLES_PER_RUN
from bert4rec.prepare.survey import MOST_ITEMS
from bert4rec.prepare.writer import ROWS_PER_BATCH
from bert4rec.sources.tables import ROWS_PER_PIECE

ROW_BYTES = 10  # of the number of an item and of a time, packed by lz4
FILE_OVERHEAD = 700  # bytes of an Arrow file beside its record batches
BATCH_OVERHEAD, FOOTER_BYTES = 280, 24  # of a record batch beside its values, and of its place at the end of the file
OPEN_SECONDS, SCAN_SECONDS, CUT_SECONDS = 2.4e-4, 1e-3, 1e-4  # read a record batch or a row group, write a batch
TEXT_SECONDS = 41e-9  # of each byte of text in a row that is read, shuffled or put in order
PROCESS_BYTES = 130e6  # without data


class Stage(NamedTuple):
    """The tasks and files of a stage, the bytes that it reads and writes, and its seconds on one core."""

    name: str
    tasks: int
    files: int
    read: float
    written: float
    seconds: float


class Memory(NamedTuple):
    """Peak bytes of a task, of the program that starts the tasks, to find histories in training, more to evaluate."""

    task: float
    program: float
    training: float
    evaluated: float


class Log(NamedTuple):
    """The numbers of `rows`, and of the users and items that they have. `text`: bytes of an id, 0 = whole numbers.

    `n_tested` users get two times `n_negatives` items.
    """

    rows: int
    users: int
    items: int
    text: int = 0
    n_tested: int = 0
    n_negatives: int = 100

    def ids(self, n_different: float, n_rows: float) -> float:
        """Return the bytes of a column of ids in order."""
        return n_different * self.text + 4 * n_rows if self.text else 4 * n_different

    def different(self, n_present: int, n_rows: float) -> float:
        """Return how many different ids some of the rows have, of those that are present."""
        population = self.rows / _mean(self.rows / n_present)
        return -population * expm1(-n_rows / population)


def _mean(rows_each: float) -> float:
    """Return the mean rows of ids, also of those without any, if those with rows have `rows_each` (Poisson)."""
    mean = rows_each
    for _ in range(50):
        mean = max(-rows_each * expm1(-mean), 1e-3)
    return mean


def testable(rows: int, users: int) -> int:
    """Return how many `users` have enough rows to be tested by leave-one-out, if each of the `rows` is of a random one.

    >>> testable(10_000, 1000), testable(2000, 1000)
    (997, 270)
    """
    mean = min(_mean(rows / users), 100.0)
    too_few = sum(mean**n / factorial(n) for n in range(1, MIN_EVALUATED)) / expm1(mean)
    return round(users * (1 - too_few))


def stages_of(log: Log, *, has_limits: bool = False, n_candidates: int = 0) -> list[Stage]:
    """Return the stages; with limits for items also one round of them, and the pass that draws from `n_candidates`."""
    rows, users, items, text = log[:4]
    n_reads, n_ranges = ceil(rows / ROWS_PER_PIECE), ceil(rows / ROWS_PER_RANGE)
    n_runs = max(n_reads, ceil(rows / ROWS_PER_RUN))
    run_items, run_users = (log.different(n, rows / n_runs) for n in (items, users))
    entries, range_items = n_runs * run_items, n_ranges * log.different(items, rows / n_ranges)
    n_codes, n_parts = ceil(entries / ITEMS_PER_RANGE), parts_of(rows, users)[0]
    texts, cuts = rows * text * TEXT_SECONDS, n_runs * n_ranges

    source = rows * (6 if text else 11) + n_runs * (run_items + run_users) * text * 0.6
    runs = rows * (ROW_BYTES + (11 + text if text else 4.5))
    entry_bytes, samples = 4 + text if text else 7, n_runs * SAMPLES_PER_RUN * 3 * (text + 4 if text else 8)
    looked_up = n_codes * n_runs * (min(run_items, run_items / n_codes + ENTRY_GROUP) if n_codes > 1 else run_items)
    codes = 8 * entries + n_codes * n_runs * BATCH_OVERHEAD
    ids_of_runs = log.ids(n_runs * run_users, rows)
    shuffled = rows * ROW_BYTES + ids_of_runs + cuts * (BATCH_OVERHEAD + FOOTER_BYTES)
    ordered = rows * ROW_BYTES + (ids_of_runs if text else 4 * users)  # text stays in the order of the runs
    by_month = -24 * items * expm1(-rows / n_ranges / items / 24) * n_ranges if items <= MOST_ITEMS else 0
    survey = 20 * range_items + 5 * by_month + 5 * users + 15 * log.n_tested
    dataset = 12 * rows + 24 * users + log.n_tested * (12 + 8 * log.n_negatives)

    one_round = Stage("limits, a round", n_ranges, 3, ordered, ordered + 5 * range_items, rows * 2e-7)
    candidates = Stage("tested", n_ranges, 2, ordered, 6 * n_candidates, rows * 2e-7 + users * 4e-7)
    found = [
        Stage("read", n_reads, 1 + 3 * n_runs // n_reads, source, runs + entries * entry_bytes + samples,
              rows * 2.7e-7 + texts + entries * 3.4e-7),
        Stage("items", n_codes, 3, looked_up * entry_bytes, codes + items * (text + 8 if text else 4.2),
              looked_up * (5.5e-7 + text * 2.7e-8) + n_codes * n_runs * SCAN_SECONDS),
        Stage("shuffle", n_runs, 2, runs + codes + n_codes * n_runs**2 * FOOTER_BYTES, shuffled,
              rows * 1.9e-7 + texts + n_codes * n_runs * OPEN_SECONDS + cuts * CUT_SECONDS),
        Stage("order", n_ranges, 3, shuffled + n_ranges * cuts * FOOTER_BYTES, ordered + 5 * range_items,
              rows * 1.4e-7 + texts + range_items * 7.3e-7 + users * 5.6e-7 + cuts * OPEN_SECONDS),
        *([one_round] if has_limits else []),
        Stage("users", n_ranges, 2, log.ids(users, rows), 6 * users + log.ids(users, users),
              users * (4e-7 + text * 2e-8)),
        *([candidates] if n_candidates else []),
        Stage("split", n_ranges, 6, ordered, survey, rows * 1e-7 + range_items * 1.3e-6 + users * 2e-6),
        Stage("write", n_parts, 3, ordered, dataset, rows * 1e-7 + log.n_tested * log.n_negatives * 3.2e-7),
    ]  # fmt: skip
    n_files = [stage.files * stage.tasks for stage in found]
    return [stage._replace(files=n, written=stage.written + n * FILE_OVERHEAD)
            for stage, n in zip(found, n_files, strict=True)]  # fmt: skip


def parts_of(rows: int, users: int) -> tuple[int, int]:
    """Return the number of parts of the dataset, as `part_starts` cuts them, and of their record batches."""
    size = USERS_PER_PART
    while size > 1 and rows * min(size, users) > ROWS_PER_PART * users:
        size //= 2
    return ceil(users / size), ceil(users / size) * ceil(min(size, users) / ROWS_PER_BATCH)


def seconds_of(stage: Stage, n_workers: int) -> float:
    """Return the seconds of a stage whose tasks all take as long."""
    return ceil(stage.tasks / n_workers) * stage.seconds / stage.tasks


def seconds_of_program(log: Log) -> float:
    """Return the seconds of the program between the stages: it adds what each task has found by user and by item."""
    n_ranges = ceil(log.rows / ROWS_PER_RANGE)
    range_items = n_ranges * log.different(log.items, log.rows / n_ranges)
    return 2 + 1.1e-6 * log.users + 5e-7 * log.items + 3e-7 * range_items


def memory_of(log: Log) -> Memory:
    """Return the memory: the rows of a task or the items of a range, and of the program arrays by user and by item.

    A task maps two arrays of all items, which the tasks of a host share. The program writes files of users and items,
    and permutes the numbers of items.
    """
    rows, users, items, text = log[:4]
    _, n_batches = parts_of(rows, users)
    n_runs = ceil(rows / ROWS_PER_RUN)
    samples = n_runs * SAMPLES_PER_RUN * 3 * (57 + text if text else 40)
    entries = min(n_runs * log.different(items, rows / n_runs), ITEMS_PER_RANGE)
    id_file = min(max(users, items), ROWS_PER_FILE) * (250 + text)
    row_bytes = min(rows, ROWS_PER_RANGE) * (150 + 2.8 * text) + 12 * items
    return Memory(
        task=PROCESS_BYTES + max(row_bytes, entries * (95 + 8.5 * text)),
        program=PROCESS_BYTES + samples + max(id_file, 56 * items) + 25 * items + 40 * users,
        training=7400 * n_batches + 8 * users / STRIDE,
        evaluated=2000 * n_batches + 12 * log.n_tested,  # of it 4 bytes for a rank by each of three protocols
    )


def dataset_of(log: Log, stages: Sequence[Stage]) -> tuple[float, float, int]:
    """Return the bytes and the number of files of the dataset; the bytes of histories and negatives among them."""
    mapped = stages[-1].written
    tables = log.users * (4 + log.text / 2 + 0.3) + log.items * (9 + log.text / 2)
    n_files = 7 + 2 * stages[-1].tasks + ceil(log.users / ROWS_PER_FILE) + ceil(log.items / ROWS_PER_FILE)
    return mapped + tables, mapped, n_files


def work_bytes(stages: Sequence[Stage]) -> float:
    """Return the most bytes in the folder of the tasks' files: those that later stages do not need are deleted."""
    written = {stage.name: stage.written for stage in stages}
    rows = [written[name] for name in ("read", "shuffle", "order")]
    late = written.get("limits, a round", 0.0), sum(written[name] for name in ("users", "split", "write"))
    return written["items"] + max(rows[0] + rows[1], rows[1] + rows[2], rows[2] + max(late))
