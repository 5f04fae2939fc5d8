"""`bert4rec compare RUN RUN …`: show runs side by side, with their differences, intervals and tests."""

import argparse
from pathlib import Path

from bert4rec.runtime.console import quiet_libraries
from bert4rec.runtime.errors import SettingsError

MORE = "Settings that differ, all metrics and their differences, and the cost: add --all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs and the files to write."""
    parser.description = (
        "Puts finished runs side by side: whether each is better than the first one over the same users, and the first "
        "metrics with their intervals; with --all, and in the files, also the settings that differ, all metrics, their "
        "differences with intervals and paired permutation tests, and the cost. Runs that differ only in training.seed "
        "become one column with mean and spread. A folder of `bert4rec evaluate` counts as a run."
    )
    add = parser.add_argument
    add("folders", metavar="RUN", nargs="+", type=Path, help="run folders; each is compared with the first one")
    split = "split of the figures; choose settings on validation, and read the test once (default: test)"
    add("--split", choices=("test", "validation"), default="test", help=split)
    add("--all", action="store_true", help="print all tables")
    add("--html", metavar="FILE", type=Path, help="write one HTML file, with the learning curves")
    add("--markdown", metavar="FILE", type=Path, help="write the same as text, with the curves in a .png file")


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison and write the files; return 0. Raises `UserError`."""
    if len(arguments.folders) < 2:
        raise SettingsError(f"{arguments.folders[0]}: compare needs at least two runs; name another one")
    with quiet_libraries():
        from bert4rec.report.charts import to_png
        from bert4rec.report.compared_runs import read_run
        from bert4rec.report.comparison import compare, draw_curves, has_curves, html_page, short_text, text_page

        comparison = compare([read_run(folder) for folder in arguments.folders], split=arguments.split)
        print(text_page(comparison) if arguments.all else f"{short_text(comparison)}\n{MORE}")
        if arguments.html:
            _write("--html", arguments.html, html_page(comparison))
        if arguments.markdown:
            picture = arguments.markdown.with_name(f"{arguments.markdown.stem}-curves.png")
            name = picture.name if has_curves(comparison.columns) else ""
            if name:
                _write("--markdown", picture, to_png(draw_curves(comparison.columns)))
            _write("--markdown", arguments.markdown, text_page(comparison, picture=name))
    return 0


def _write(option: str, path: Path, content: str | bytes) -> None:
    from bert4rec.runtime.files import atomic_write

    try:
        atomic_write(path, content)
    except OSError as error:
        raise SettingsError(f"{option}={path}: cannot be written: {error.strerror}; name another file") from None
    print(path)
