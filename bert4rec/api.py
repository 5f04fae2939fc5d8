"""The package from Python: what the commands do, as functions that return, raise `UserError`, and end no process."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.checkpoint.run_folder import is_package
from bert4rec.config.help import PREPARE_OPTIONS
from bert4rec.config.load import Overrides, load_and_recognize, parse_mapping, with_changes
from bert4rec.config.tables import GENERATED, Config
from bert4rec.runtime.console import quiet_libraries
from bert4rec.runtime.errors import Interrupted, SettingsError

if TYPE_CHECKING:  # they import Polars, Arrow and torch, which take seconds
    from bert4rec.dataset.reader import Dataset
    from bert4rec.inference.load import Run
    from bert4rec.inference.recommender import Recommender

StrPath = str | os.PathLike[str]

DOWNLOADED = "ml-1m"  # where no other set is named
RAW = Path("data/raw")  # where downloads go

logger = logging.getLogger(__name__)


def prepare(
    settings: Mapping[str, Any] | None = None, *, config: StrPath | None = None, download: bool = False
) -> "Dataset":
    """Raw interactions → dataset folder, as `bert4rec prepare` makes it.

    `settings` are those of the command line, {"data.path": "log.csv", "model.max_len": 20}; they count more than the
    settings file `config`, which counts more than the defaults. Without `config` no file is read. With `download` the
    MovieLens set `data.source` (default: ml-1m) is fetched into data/raw/ first.

    Raises `UserError` for settings or input that cannot be used, in one line; then no dataset is written.
    """
    file = None if config is None else os.fspath(config)
    with quiet_libraries():
        used = make_dataset(file, parse_mapping(settings or {}, PREPARE_OPTIONS), download=download)
        from bert4rec.dataset.reader import open_dataset

        return open_dataset(used.data.folder, verify=False)


def make_dataset(file: str | None, overrides: Overrides, *, download: bool) -> Config:
    """Make a dataset and return its settings, with the source that was recognized."""
    from bert4rec.prepare.engine import prepare as run_pipeline

    config, recognized = load_and_recognize(file, overrides)
    if download:
        if config.data.source in GENERATED:
            config = with_changes(config, "data", {"source": DOWNLOADED})
        from bert4rec.prepare.remote import fetch_movielens

        config = with_changes(config, "data", {"path": str(fetch_movielens(config.data.source, RAW))})
    elif recognized:
        logger.info(f"data.source = {recognized.source}: {recognized.reason}")
    run_pipeline(config)
    return config


def train(
    settings: Mapping[str, Any] | None = None, *, dataset: StrPath = "", config: StrPath | None = None,
    processes: int | None = None,
) -> "Run":  # fmt: skip
    """Dataset folder → run folder, as `bert4rec train` makes it, on this process alone or on those of a launcher.

    `dataset`: a folder that `prepare` has made; "": the one that the settings name. `settings` and `config` as for
    `prepare`; {"resume": …} goes on with a run. What is global in Python, NumPy and
    torch is afterwards as it was before, random states too. With `processes` it runs on as many new ones of this host,
    a GPU for each where there are some, and nothing of it in this one; a notebook shows how far it is.

    Raises `UserError` for settings or data that cannot be used, and for a training that diverges, in one line. Ctrl-C,
    or the notebook's interrupt, is `KeyboardInterrupt`, when all is saved.
    """
    from bert4rec.checkpoint.run_settings import load_run_settings

    if processes is not None and processes < 1:
        raise SettingsError(f"processes={processes}: must be at least 1")
    file, overrides = None if config is None else os.fspath(config), parse_mapping(settings or {})
    asked = load_run_settings(file, overrides, dataset=os.fspath(dataset), looks_around=False)
    for note in asked.notes:
        logger.info(note)
    with quiet_libraries("torchrec"):
        from bert4rec.inference.load import Run

        if asked.finished is not None:
            return Run(asked.finished)
        if processes is not None:
            from bert4rec.launch import make_view, train_on

            words = [*filter(None, [os.fspath(dataset)]), f"--config={file or ''}", *overrides.options]
            return Run(train_on(words, n_processes=processes, view=make_view()))
        from bert4rec.runtime.processes import preserve_global_state
        from bert4rec.training.run import run

        with preserve_global_state():
            try:
                return Run(run(asked.config, may_exit=False))
            except Interrupted as interrupted:
                if interrupted.is_by_keyboard:
                    raise KeyboardInterrupt(f"{interrupted}; {interrupted.advice}") from None
                raise


def load(path: StrPath, *, dataset: StrPath | None = None) -> "Recommender":
    """The model of a run folder (its best weights), of one of its checkpoints, or of a model package.

    `dataset` is the folder that it was trained on, where that is not where the run's settings say; a package needs one
    for the histories of its users alone. Raises `UserError`, in one line, for what is missing, damaged or does not
    belong together.
    """
    with quiet_libraries(*(() if is_package(Path(path)) else ("torchrec",))):  # without which a package is loaded
        from bert4rec.inference.load import load as load_run

        return load_run(Path(path), dataset=None if dataset is None else Path(dataset))
