"""NDCG@10 by minutes of training: a training in parts, tested after each, as points of a picture.

    python -m benchmarks.minutes NAME [--until=1,2,5,10,20] [--seeds=1,2,3] [--processes=2] [--config=FILE]
                                 [--table.key=value …]
    python -m benchmarks.minutes

docs/minutes.csv gets a line for each point of NAME, which replaces an older one; docs/minutes.png shows all points, the
mean of the seeds as a line, and the best published figure for this file. A run with a prior has points as "NAME +
prior", and those of the model alone as NAME. The same command again continues a stopped run. Without NAME, only the
picture is drawn. The test chooses nothing: each part is tested with its best weights by validation.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import polars as pl
import tomli

import bert4rec
from benchmarks.published import prepare_if_missing
from bert4rec.checkpoint.run_folder import CONFIG, REPORT
from bert4rec.config.load import flat, load_config, parse_command_line
from bert4rec.dataset.format import TEST
from bert4rec.report.charts import COLOURS, MUTED_COLOR, new_figure, to_png
from bert4rec.report.tables import PUBLISHED, published
from bert4rec.runtime.errors import DataError, SettingsError, UserError

DOCS = Path(__file__).parents[1] / "docs"
POINTS, PICTURE = DOCS / "minutes.csv", DOCS / "minutes.png"
BEST_PUBLISHED = "TV-Rec"  # the best that neither the test chose, by its note, nor knows the time of the target
WITH_PRIOR = " + prior"  # after the name


class Point(NamedTuple):
    """The test figures of a run after some minutes of training."""

    name: str
    processes: int
    seed: int
    minutes: float
    hit_rate: float
    ndcg: float


def main() -> int:
    """Train, write the points, and draw all of them; return the exit status: 0, or 2 for bad settings."""
    parser = argparse.ArgumentParser("python -m benchmarks.minutes", description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--until", type=numbers, default="1,2,5,10,20", help="minutes after which the run is tested")
    parser.add_argument("--seeds", type=numbers, default="1,2,3")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--config")
    options, words = parser.parse_known_args()
    bert4rec.log_to_terminal()
    try:
        for seed in options.seeds if options.name else ():
            points, names = list(trained(options, words, int(seed))), (options.name, options.name + WITH_PRIOR)
            write([point for point in read() if point.seed != seed or point.name not in names] + points)
        if not (points := read()):
            raise DataError(f"{POINTS}: has no points; type: python -m benchmarks.minutes NAME …")
        PICTURE.write_bytes(picture(points))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def numbers(text: str) -> list[float]:
    """Return numbers between commas."""
    return [float(number) for number in text.split(",")]


def trained(options: argparse.Namespace, words: Sequence[str], seed: int) -> Iterator[Point]:
    """Yield the points of one seed, after training up to each of them."""
    name = f"minutes-{options.name.replace(' ', '-')}-{seed}"
    settings = {**parse_command_line(words)[1], "training.seed": seed, "run.name": name}
    folder = Path(load_config(options.config, settings).run.dir) / name
    if not folder.exists():
        prepare_if_missing(parse_command_line(words)[1], options.config)
    else:
        saved, wanted = (flat(load_config(folder / CONFIG, each).model_dump()) for each in ({}, settings))
        if changed := [key for key in saved if saved[key] != wanted[key]]:
            values = f"{changed[0]} = {saved[changed[0]]}, not {wanted[changed[0]]}"
            raise SettingsError(f"{folder}: was trained with {values}; type another NAME, or remove the folder")
    for minutes in options.until:
        part = folder / f"report-{minutes:g}.json"
        if not part.exists():
            start, file = ({"run.resume": folder}, None) if folder.exists() else (settings, options.config)
            bert4rec.train({**start, "training.max_minutes": minutes}, config=file, processes=options.processes)
            part.write_bytes((folder / REPORT).read_bytes())
        report = json.loads(part.read_text())
        figures = {options.name: report[TEST]["full"]}
        if alone := report.get("prior", {}).get("model"):
            figures = {options.name: alone, options.name + WITH_PRIOR: report[TEST]["full"]}
        for each, values in figures.items():
            yield Point(each, options.processes, seed, minutes, values["HR@10"], values["NDCG@10"])


def read() -> list[Point]:
    """Return all points."""
    return [Point(*row) for row in pl.read_csv(POINTS).rows()] if POINTS.exists() else []


def write(points: Sequence[Point]) -> None:
    """Replace the file of points."""
    rounded = [point._replace(hit_rate=round(point.hit_rate, 4), ndcg=round(point.ndcg, 4)) for point in sorted(points)]
    pl.DataFrame(rounded, schema=Point._fields, orient="row").write_csv(POINTS)


def picture(points: Sequence[Point]) -> bytes:
    """Return NDCG@10 by minutes and name, as PNG."""
    by_name: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        by_name[point.name][point.minutes].append(point.ndcg)
    rows = published(tomli.loads(PUBLISHED.read_text())["file"][0], "full", n_negatives=0)
    (best,) = [row for row in rows if row.model == BEST_PUBLISHED]
    with new_figure(7.0, 3.8) as (figure, (axes,)):
        axes.axhline(best.ndcg, color=MUTED_COLOR, linestyle="--", linewidth=1)
        for (name, by_minutes), color in zip(by_name.items(), cycle(COLOURS.values()), strict=False):
            means = [mean(values) for values in by_minutes.values()]
            axes.plot([*by_minutes], means, color=color, label=name, marker="o", markersize=3)
        axes.set_xscale("log")
        axes.set_xticks(ticks := sorted({point.minutes for point in points}), [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("minutes on two cores")
        axes.set_ylabel("NDCG@10, test")
        axes.set_xlim(right=(end := 2 * ticks[-1]))  # room for the legend
        axes.text(end, best.ndcg, f"published: {best.model}", ha="right", va="bottom", color=MUTED_COLOR)
        axes.legend(loc="lower right")
    return to_png(figure)


if __name__ == "__main__":
    sys.exit(main())
