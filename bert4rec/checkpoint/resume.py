"""Resume a run: find its folder and its newest intact checkpoint, and check that the settings still fit."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert4rec.checkpoint.run_folder import (
    CHECKPOINTS,
    CONFIG,
    PICTURE,
    REPORTS,
    found,
    named_run,
    newest_run,
    numbers,
    read_metadata,
    starting_weights,
)
from bert4rec.checkpoint.run_settings import how_to_train_longer
from bert4rec.checkpoint.store import tidy, verify
from bert4rec.config.load import load_config
from bert4rec.runtime.collectives import on_rank_zero
from bert4rec.runtime.errors import DataError, SettingsError

QUARANTINE = "set-aside"  # folder, inside that of the checkpoints, for those newer than the resumed one

Settings = Mapping[str, Mapping[str, Any]]

# Settings that may change in a resumed run; the fingerprint of the dataset guards the data.
FREE_TABLES = {"data", "preprocessing", "parallelism", "evaluation", "checkpoint", "run", "update"}
FREE_KEYS = {
    "n_epochs", "max_minutes", "patience", "num_workers", "per_device_train_batch_size", "negatives_shared_by",
}  # fmt: skip
OPTIMIZERS = ("training.optimizer", "parallelism.sparse_optimizer")
FIXED = ("evaluation.seen_items",)  # the best epoch so far depends on it

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resumption:
    """The `run` folder to resume, the `checkpoint` to start from, and its `metadata`."""

    run: Path
    checkpoint: Path
    metadata: Mapping[str, Any]


def find(resume: str, parent: Path, name: str, *, claim: Callable[[Path], Any]) -> Resumption | None:
    """Return what `run.resume` refers to, for runs of that `name` in `parent`; None for a new run. Every rank calls it.

    Rank zero calls `claim` with the run folder before it changes anything there. A damaged checkpoint is skipped for
    the previous one, with a warning. Raises `SettingsError` if there is no such run, `DataError` if no checkpoint is
    intact.
    """

    def candidates() -> tuple[Path | None, list[Path]]:
        run, checkpoint = named_run(resume) if resume != "auto" else (newest_run(parent, name, is_finished=False), None)
        if run is None:
            return None, []
        claim(run)
        tidy(run / CHECKPOINTS)
        return run, [checkpoint] if checkpoint else found(run / CHECKPOINTS)[::-1]

    run, paths = on_rank_zero(candidates)
    if run is None:
        hint = on_rank_zero(lambda: _hint(parent, name))
        logger.info(f"nothing to resume: no unfinished run {parent / name} with a checkpoint; a new run begins{hint}")
        return None
    checkpoint = _newest_whole(paths)
    if checkpoint is None:
        others = on_rank_zero(lambda: [path.name for path in found(run / CHECKPOINTS) if path not in paths])
        advice = f"resume from another one: {', '.join(others)}" if others else "start a new run without --resume"
        raise DataError(f"{run / CHECKPOINTS}: there is no whole checkpoint to resume from; {advice}")
    return Resumption(run, checkpoint, read_metadata(checkpoint))


def best_of(path: Path) -> tuple[Path, Mapping[str, Any]]:
    """Return the best checkpoint of the run `path`, or `path` itself if it is a checkpoint, and its metadata.

    Raises `SettingsError` if there is none, `DataError` if it is damaged.
    """
    folder = on_rank_zero(lambda: starting_weights(path))
    if folder is None:
        raise SettingsError(f"run.init_from: {path} has no best checkpoint; name the folder of a run that has one")
    verify(folder)
    return folder, read_metadata(folder)


def check_settings(saved: Mapping[str, Any], settings: Settings, fingerprint: str) -> None:
    """Raise `SettingsError` with both values of the first setting that may not change in a resumed run."""
    if saved["fingerprint"] != fingerprint:
        raise SettingsError(
            f"another dataset: the run was trained on {saved['fingerprint'][:12]}…, this one is {fingerprint[:12]}…; "
            "set data.dataset_dir to the folder that the run was trained on, or start a new run from its weights "
            "with --run.init_from"
        )
    for name, (before, now) in changes(saved, settings).items():
        table, _, key = name.partition(".")
        if name in OPTIMIZERS:
            raise SettingsError(
                f'{name} = "{before}" in the run, "{now}" now: the saved optimizer state fits only "{before}"; '
                f'set it to "{before}", or start a new run from the weights of this one with --run.init_from'
            )
        if name in FIXED or not (table in FREE_TABLES or key in FREE_KEYS):
            raise SettingsError(
                f"{name} = {before} in the run, {now} now: a resumed run cannot change this setting; set it to "
                f"{before} (the run's config.toml has all settings), or start a new run without --resume"
            )


def check_parts(saved: Mapping[str, Any], parts: str) -> None:
    """Raise `SettingsError` if the run was saved within an epoch, and the parts of the dataset are on other hosts now.

    `parts` is the checksum of their placement, "" if each host has the whole dataset.
    """
    if saved["state"]["sequences"] and saved.get("parts", "") != parts:
        raise SettingsError(
            "data.parts_by_host: the order of this epoch depends on which host has which part of the dataset, and on "
            "the processes of each; place them as before, or resume from a checkpoint at the end of an epoch: "
            "--resume=CHECKPOINT"
        )


def changes(saved: Mapping[str, Any], settings: Settings) -> dict[str, list[Any]]:
    """Return the saved and the current value of each setting that differs, except for keys that were not saved."""
    pairs = {
        f"{table}.{key}": [saved["config"].get(table, {}).get(key, value), value]
        for table, values in settings.items()
        for key, value in values.items()
        if table != "run"
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def quarantine_newer(resumption: Resumption) -> int:
    """Move newer checkpoints to `QUARANTINE`, rename the report files, and return the number of those checkpoints."""
    newer = [path for path in found(resumption.run / CHECKPOINTS) if path.name > resumption.checkpoint.name]
    target = resumption.run / CHECKPOINTS / QUARANTINE
    for path in newer:
        target.mkdir(exist_ok=True)
        path.rename(next(free for number in numbers() if not (free := target / f"{path.name}{number}").exists()))
    _keep_report(resumption.run)
    return len(newer)


def _keep_report(run: Path) -> None:
    """Rename the report files of a run that was finished before, all with the same number."""
    present = [run / name for name in REPORTS if (run / name).exists()]
    for number in numbers():
        kept = {path: path.with_name(f"{path.stem}-before{number}{path.suffix}") for path in present}
        if not any(path.exists() for path in kept.values()):
            break
    for path, new in kept.items():
        path.rename(new)
        if path.suffix == ".md":
            new.write_text(new.read_text().replace(f"({PICTURE})", f"({kept.get(run / PICTURE, run / PICTURE).name})"))


def _hint(parent: Path, name: str) -> str:
    """Return how to train the newest finished run longer, or ""."""
    if (run := newest_run(parent, name, is_finished=True)) is None:
        return ""
    try:
        saved = load_config(run / CONFIG)
        advice = how_to_train_longer(run, saved, saved)
    except SettingsError:
        return ""
    return f"; {advice}" if advice else ""


def _newest_whole(paths: list[Path]) -> Path | None:
    for number, path in enumerate(paths, 1):
        try:
            verify(path)
            return path
        except DataError as error:
            logger.warning(str(error) + ("; trying the previous one" if number < len(paths) else ""))
    return None
