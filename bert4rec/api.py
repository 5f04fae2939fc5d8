"""Use the package from Python: the commands as functions that return, raise `UserError`, and never end the process."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.checkpoint.models_folder import run_at
from bert4rec.checkpoint.package import is_package
from bert4rec.runtime.console import quiet_libraries
from bert4rec.runtime.errors import DataError, Interrupted, SettingsError
from bert4rec.runtime.signals import stop_with_launchers

if TYPE_CHECKING:  # these import Polars, Arrow, Pydantic and torch, which takes seconds or which a package does without
    from matplotlib.figure import Figure
    from polars import DataFrame

    from bert4rec.config.load import Overrides
    from bert4rec.config.tables import Config
    from bert4rec.dataset.reader import Dataset
    from bert4rec.serving.recommender import Recommender

StrPath = str | os.PathLike[str]

DOWNLOADED = "ml-1m"  # default set of --download
RAW = Path("data/raw")  # folder for downloads
NOT_GIVEN: Any = object()  # None may be a file or frame that was not found

logger = logging.getLogger(__name__)


def prepare(
    data: Any = NOT_GIVEN, settings: Mapping[str, Any] | None = None, *, config: StrPath | None = None,
    download: bool = False,
) -> "Dataset":  # fmt: skip
    """Make a dataset folder from raw interactions, like `bert4rec prepare`, and return the dataset.

    `data` is a path, a frame of Polars or pandas, an Arrow table, or the settings themselves. A frame needs the setting
    data.dataset_dir, and replaces a dataset there that was made from a frame, unless a run was trained on it.
    `settings` are those of the command line, such as {"data.path": "log.csv", "model.max_len": 20}. They override the
    settings file `config`, which overrides the defaults; without `config` no file is read. With `download`, the
    MovieLens set `data.source` (default: ml-1m) is first downloaded into data/raw/.

    Raises `UserError`, in one line, for invalid settings or input; then no dataset is written.
    """
    from bert4rec.config.help import PREPARE_OPTIONS
    from bert4rec.config.load import Overrides, parse_mapping

    file = None if config is None else os.fspath(config)
    if isinstance(data, Mapping):
        if settings is not None:
            raise SettingsError("settings are given twice; write prepare(settings), or prepare(data, settings)")
        data, settings = NOT_GIVEN, data
    overrides = parse_mapping(settings or {}, PREPARE_OPTIONS)
    if data is not NOT_GIVEN and (download or "data.path" in overrides):
        other = "download=True" if download else f"data.path = {overrides['data.path']}"
        raise SettingsError(f"{other}: the data are given already, as the first argument; remove one of the two")
    with quiet_libraries(), _as_path(data, overrides) as path:
        used = make_dataset(file, Overrides(overrides | path), download=download)
        from bert4rec.dataset.reader import open_dataset

        return open_dataset(used.data.folder, verify=False)


@contextmanager
def _as_path(data: Any, overrides: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yield the settings that name `data`: those of a path, or of a file with the rows of a frame; {} without one."""
    if data is NOT_GIVEN or isinstance(data, str | os.PathLike):
        yield {} if data is NOT_GIVEN else {"data.path": os.fspath(data)}
        return
    if not hasattr(data, "__arrow_c_stream__"):
        raise DataError(
            f"prepare: the first argument is a {type(data).__name__}; expected: a path, a frame of Polars or pandas "
            "(from 2.2 on), an Arrow table or a dictionary of settings"
        )
    if not overrides.get("data.dataset_dir"):
        raise SettingsError(
            'data.dataset_dir: a frame has no name for its dataset folder; type prepare(frame, {"data.dataset_dir": '
            '"data/log"})'
        )
    from bert4rec.config.stored import workshop
    from bert4rec.runtime.storage import is_stored
    from bert4rec.sources.frames import frame_file

    place = overrides["data.dataset_dir"]
    with frame_file(data, workshop(place) if is_stored(place) else Path(place)) as path:
        yield {"data.source": "table", "data.path": str(path)}


def make_dataset(file: str | None, overrides: "Overrides", *, download: bool) -> "Config":
    """Make a dataset, and return its settings with the recognized source, and the place if it is not the usual one."""
    from bert4rec.config.load import load_and_recognize, with_changes
    from bert4rec.config.sources import GENERATED
    from bert4rec.prepare.engine import prepare as run_pipeline
    from bert4rec.prepare.inherit import with_inherited

    config, recognized = load_and_recognize(file, with_inherited(file, overrides))
    if download:
        if config.data.source in GENERATED:
            config = with_changes(config, "data", {"source": DOWNLOADED})
        from bert4rec.sources.remote import fetch_movielens

        config = with_changes(config, "data", {"path": str(fetch_movielens(config.data.source, RAW))})
    elif recognized:
        logger.info(f"data.source = {recognized.source}: {recognized.reason}")
    place = run_pipeline(config)
    return config if place == config.data.place else with_changes(config, "data", {"dataset_dir": place})


def train(
    settings: Mapping[str, Any] | None = None, *, dataset: StrPath = "", config: StrPath | None = None,
    processes: int | None = None,
) -> "Run":  # fmt: skip
    """Train on a dataset folder, like `bert4rec train`, in this process or in those of a launcher; return the run.

    `dataset` is what `prepare` has made, its folder or address; "" means that of the settings. `settings` and `config`
    are as for `prepare`; {"resume": …} resumes a run. Global states of Python, NumPy and torch, including random
    states, are restored afterwards. With `processes`, the training runs in that many new processes of this host, each
    with a GPU if there are any, and not in this process; a notebook shows the progress.

    Raises `UserError`, in one line, for invalid settings or data, and for a training that diverges. After Ctrl-C, or
    the notebook's interrupt, it saves the training and raises `KeyboardInterrupt`.
    """
    from bert4rec.checkpoint.run_settings import load_run_settings
    from bert4rec.config.load import parse_mapping

    if processes is not None and processes < 1:
        raise SettingsError(f"processes={processes}: must be at least 1")
    if not isinstance(dataset, str | os.PathLike):
        raise SettingsError(f"dataset: expected a dataset or its folder, not a {type(dataset).__name__}")
    file, overrides = None if config is None else os.fspath(config), parse_mapping(settings or {})
    run_settings = load_run_settings(file, overrides, dataset=os.fspath(dataset), looks_around=False)
    for note in run_settings.notes:
        logger.info(note)
    if processes is None:
        stop_with_launchers()
    with quiet_libraries("torchrec"):
        if run_settings.finished is not None:
            return Run(run_settings.finished)
        if processes is not None:
            from bert4rec.launch import make_view, train_on

            words = [*filter(None, [os.fspath(dataset)]), f"--config={file or ''}", *overrides.options]
            return Run(train_on(words, n_processes=processes, view=make_view()))
        from bert4rec.runtime.processes import preserve_global_state
        from bert4rec.training.run import run

        with preserve_global_state():
            try:
                return Run(run(run_settings.config, may_exit=False))
            except Interrupted as interrupted:
                if interrupted.is_by_keyboard:
                    raise KeyboardInterrupt(f"{interrupted}; {interrupted.advice}") from None
                raise


def load(path: StrPath, *, dataset: StrPath | None = None) -> "Recommender":
    """Return the model of a run folder (its best weights), of one of its checkpoints, or of a model package.

    A models folder means its champion. `dataset` is the folder or the address of the training data, if it was moved; it
    is needed for the histories of its users, where a dataset that extends it will do, and for a model that only counts,
    which is counted again.
    Raises `UserError`, in one line, if something is missing or damaged, or if the dataset is another one.
    """
    if not isinstance(path, str | os.PathLike):
        raise SettingsError(f"load: expected the folder of a run or of a model package, not a {type(path).__name__}")
    from bert4rec.config.stored import dataset_folder

    folder, data = Path(path), None if dataset is None else dataset_folder(os.fspath(dataset))
    with quiet_libraries():
        if is_package(folder):
            from bert4rec.serving.package import load_package

            return load_package(folder, data)
        from bert4rec.serving.load import load_run

        return load_run(folder, data)


class Run:
    """The folder of a finished run, for a models folder that of its champion. Raises `DataError` for any other one."""

    def __init__(self, folder: StrPath) -> None:
        from bert4rec.report.figures import read_report

        self.folder = run_at(Path(folder))
        self.report = read_report(self.folder)

    def __repr__(self) -> str:
        from bert4rec.report.summary import result_line

        return f"Run('{self.folder}': {result_line(self.report)})"

    def _repr_markdown_(self) -> str:
        """Return the Markdown text that a notebook shows."""
        from bert4rec.report.pages import metrics_table
        from bert4rec.report.summary import summary

        return f"**{self.folder}**\n\n{summary(self.report)}\n\n{metrics_table(self.report)}"

    @property
    def metrics(self) -> Mapping[str, Mapping[str, float]]:
        """Return protocol ("full", "popular", "uniform") → metric → value on the test; {} without a test split."""
        return dict(self.report.get("test", {}))

    def frame(self) -> "DataFrame":
        """Return the test metrics as a Polars frame, a row for each "model", "protocol" and "metric".

        Other columns are "value" and its interval "low", "high", null for a figure without one. The model comes first,
        then its baselines.
        """
        from polars import DataFrame, Float64, String

        from bert4rec.report.figures import contestants

        rows = [
            (one.title, protocol, metric, value, *(one.interval(protocol, metric) or (None, None)))
            for one in contestants(self.report)
            for protocol, metrics in one.metrics.items()
            for metric, value in metrics.items()
        ]
        names = dict.fromkeys(("model", "protocol", "metric"), String)
        return DataFrame(rows, names | dict.fromkeys(("value", "low", "high"), Float64), orient="row")

    def curves(self) -> "Figure":
        """Return a Matplotlib figure of training loss and validation by epoch, as in the report."""
        from bert4rec.report.charts import learning_curve

        train, validations = ([r for r in self.history if r["kind"] == kind] for kind in ("train", "validation"))
        return learning_curve(train, validations, self.report)

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """Return the records of the training and of its validations, in order: "kind", "step", "epoch" and figures."""
        from bert4rec.report.log import read_records

        return read_records(self.folder, "train", "validation")

    def load(self, *, dataset: StrPath | None = None) -> "Recommender":
        """Return the model with its best weights; `dataset` is the moved dataset folder. Raises `DataError`."""
        return load(self.folder, dataset=dataset)
