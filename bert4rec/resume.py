"""Where a run goes on: its folder, the newest checkpoint that is whole, and whether the settings still fit it."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert4rec.checkpoint import read_facts, verify
from bert4rec.errors import DataError, SettingsError
from bert4rec.keeper import BEST, found
from bert4rec.launch import by_first

CHECKPOINTS = "checkpoints"  # in a run folder
SET_ASIDE = "set-aside"  # in that: what is newer than the checkpoint from which a run was continued
REPORT = "report.json"
FACTS_VERSION = 1

Settings = Mapping[str, Mapping[str, Any]]

# What may be another in a continued run. Whether the data are the same is told by the fingerprint of the dataset.
FREE_TABLES = {"data", "preprocessing", "parallelism", "evaluation", "checkpoint", "run"}
FREE_KEYS = {"n_epochs", "max_minutes", "patience", "num_workers", "per_device_train_batch_size"}


@dataclass(frozen=True)
class Resumption:
    """The `run` folder that is continued, from the `checkpoint` that holds the `facts`."""

    run: Path
    checkpoint: Path
    facts: Mapping[str, Any]


def find(resume: str, parent: Path, name: str, say: Callable[[str], None]) -> Resumption | None:
    """What `run.resume` means for runs of that `name` in `parent`; None for a new run. Every process calls this.

    A damaged checkpoint is passed over for the one before, and `say` told. Raises `SettingsError` where there is no
    such run, `DataError` where none of its checkpoints is whole.
    """
    run, paths = by_first(lambda: _candidates(resume, parent, name))
    if run is None:
        say(f"nothing to resume: no unfinished run {parent / name} with a checkpoint; a new one begins")
        return None
    checkpoint = _newest_whole(paths, say)
    if checkpoint is None:
        raise DataError(f"{run / CHECKPOINTS}: no checkpoint is whole; start anew without --resume")
    return Resumption(run, checkpoint, read_facts(checkpoint))


def best_of(run: Path) -> tuple[Path, Mapping[str, Any]]:
    """The best checkpoint of a run, for `run.init_from`, and its facts. Raises `SettingsError`, `DataError`."""
    folder = run / CHECKPOINTS / BEST
    if not by_first(folder.is_dir):
        raise SettingsError(f"run.init_from: {folder} is not there; name the folder of a run with a checkpoint")
    verify(folder)
    return folder, read_facts(folder)


def check_settings(facts: Mapping[str, Any], settings: Settings, fingerprint: str, *, reset_optimizer: bool) -> None:
    """Raise `SettingsError` for the first setting with which the run cannot go on, naming both values."""
    if facts["fingerprint"] != fingerprint:
        raise SettingsError(
            f"another dataset: the run was trained on {facts['fingerprint'][:12]}…, this one is {fingerprint[:12]}…; "
            "set data.dataset_dir to the folder of then, or begin with its weights by run.init_from"
        )
    before: Settings = facts["config"]
    for name in ("training.optimizer", "parallelism.sparse_optimizer"):
        then, now = (_value(tables, name) for tables in (before, settings))
        if then != now and not reset_optimizer:
            raise SettingsError(
                f'{name} = "{then}" in the run, "{now}" now: the state of one is no use to the other; set it to '
                f'"{then}", or begin with fresh optimizers by --run.reset_optimizer=true'
            )
    for name in _fixed(settings):
        then, now = (_value(tables, name) for tables in (before, settings))
        if then != now and name != "training.optimizer":
            raise SettingsError(
                f"{name} = {then} in the run, {now} now: a run goes on with what it began with; set it to {then} "
                "(the run's config.toml has all of them), or begin anew with its weights by --run.init_from"
            )


def changes(facts: Mapping[str, Any], settings: Settings) -> dict[str, list[Any]]:
    """The settings that differ: their value then and now."""
    before: Settings = facts["config"]
    names = [f"{table}.{key}" for table in settings if table != "run" for key in settings[table]]
    pairs = {name: [_value(tables, name) for tables in (before, settings)] for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def set_aside_newer(resumption: Resumption) -> int:
    """Move newer checkpoints, and a report, out of the way of those to come; how many checkpoints there were."""
    newer = [path for path in found(resumption.run / CHECKPOINTS) if path.name > resumption.checkpoint.name]
    target = resumption.run / CHECKPOINTS / SET_ASIDE
    for path in newer:
        target.mkdir(exist_ok=True)
        path.rename(_free(target / path.name))
    report = resumption.run / REPORT
    if report.exists():
        report.rename(_free(report.with_name("report-before.json")))
    return len(newer)


def _candidates(resume: str, parent: Path, name: str) -> tuple[Path | None, list[Path]]:
    """The run, and its checkpoints, the newest first."""
    if resume == "auto":
        runs = [run for run in _numbered(parent / name) if not (run / REPORT).exists() and found(run / CHECKPOINTS)]
        return (runs[-1], found(runs[-1] / CHECKPOINTS)[::-1]) if runs else (None, [])
    path = Path(resume)
    if path.resolve().parent.name == CHECKPOINTS:
        path = path.resolve()
        if path in found(path.parent):
            return path.parent.parent, [path]
    elif paths := found(path / CHECKPOINTS):
        return path, paths[::-1]
    raise SettingsError(
        f'run.resume = "{resume}": has no checkpoint; name a run folder, one of its {CHECKPOINTS}/step-…, or auto'
    )


def _numbered(first: Path) -> Iterator[Path]:
    """`first`, `first`-2, `first`-3, … as long as they are there."""
    for number in itertools.count(1):
        folder = first if number == 1 else first.with_name(f"{first.name}-{number}")
        if not folder.is_dir():
            return
        yield folder


def _newest_whole(paths: list[Path], say: Callable[[str], None]) -> Path | None:
    for number, path in enumerate(paths, 1):
        try:
            verify(path)
            return path
        except DataError as error:
            say(f"{error}; {'the one before is taken' if number < len(paths) else 'there is none before it'}")
    return None


def _fixed(settings: Settings) -> Iterator[str]:
    for table in settings:
        if table not in FREE_TABLES:
            yield from (f"{table}.{key}" for key in settings[table] if key not in FREE_KEYS)


def _value(settings: Settings, name: str) -> Any:
    table, _, key = name.partition(".")
    return settings.get(table, {}).get(key)


def _free(path: Path) -> Path:
    """`path`, with a number where it is taken."""
    return next(
        candidate
        for number in itertools.count(1)
        if not (candidate := path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")).exists()
    )
