"""The files of a finished run, and what is said of them."""

import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert4rec.checkpoint.run_folder import EXAMPLES, HTML_PAGE, PAGE, REPORT
from bert4rec.config.abilities import TRANSFORMERS
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation.examples import Example
from bert4rec.report.figures import write_json
from bert4rec.report.html_page import write_html
from bert4rec.report.log import MetricsLog, flat_numbers, read_records
from bert4rec.report.markdown import metrics_table, report_page
from bert4rec.report.summary import result_line
from bert4rec.report.warnings import checks, warnings
from bert4rec.runtime.errors import in_one_line
from bert4rec.training.finish.examples import described

logger = logging.getLogger(__name__)

RESULTS = ("test", "validation", "ratings")  # what trackers get of a report


def write_files(
    folder: Path, report: dict[str, Any], dataset: Dataset, examples: Sequence[Example], log: MetricsLog
) -> None:
    """Write the files of the run in `folder`, and log its results; `report.json` makes it a finished run."""
    found = warnings(checks(report, read_records(folder, "validation")))
    report |= {"warnings": found}
    if examples:
        with optional(folder / EXAMPLES):
            write_json(folder / EXAMPLES, described(dataset, examples))
    with optional(folder / PAGE):
        (folder / PAGE).write_text(report_page(report))
    write_json(folder / REPORT, report)
    has_page = write_page(folder)
    results = {name: report[name] for name in RESULTS if name in report}
    files = [folder / name for name in (REPORT, PAGE, HTML_PAGE) if (folder / name).exists()]
    log.finish(flat_numbers(results), files)
    for warning in found:
        logger.warning(warning["text"])
    logger.info(result_line(report))
    logger.info(f"report: {folder / (HTML_PAGE if has_page else PAGE)}")
    named = shlex.quote(str(folder))
    logger.info(f"all figures: bert4rec report {named}")
    if report["kind"] in TRANSFORMERS:
        logger.info(f"recommendations: bert4rec recommend {named} --all --output=recommendations.parquet")


@contextmanager
def optional(path: Path) -> Iterator[None]:
    """Warn in one line if `path` cannot be written: `report.json` is written all the same."""
    try:
        yield
    except Exception as error:
        logger.warning(f"{path}: cannot be written: {_reason(error)}")


def write_page(folder: Path) -> bool:
    """Write `report.html`; return whether that was possible. What it shows is safe in other files already."""
    try:
        write_html(folder, Config().model_dump(mode="json"))
    except Exception as error:
        logger.warning(f"{folder / HTML_PAGE}: {_reason(error)}; bert4rec report {shlex.quote(str(folder))} writes it")
        return False
    return True


def _reason(error: Exception) -> str:
    """Return what an error says, with its kind where the system does not say it."""
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {in_one_line(error)}"


def show(report: Mapping[str, Any]) -> None:
    """Log the figures of a run whose weights are lost: they are written nowhere."""
    logger.info(f"\n{metrics_table(report)}\n")
