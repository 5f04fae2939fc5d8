"""NDCG@10 by minutes of training: a training in parts, tested after each, as points of a picture.

    python -m benchmarks.minutes NAME [--until=1,2,5,10,20] [--seeds=1,2,3] [--processes=2] [--config=FILE]
                                 [--table.key=value …]
    python -m benchmarks.minutes

The points of NAME become lines of docs/minutes.csv, in the place of those that it had; docs/minutes.png shows all of
them, the mean of the seeds as a line, beside the best that is published for this file. A run with a prior has points
as "NAME + prior", and those of the model alone as NAME. The same command again continues what was stopped. Without NAME
only the picture is drawn. No part chooses anything: what is tested is the best by validation of the minutes so far.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import polars as pl

import bert4rec
from bert4rec.checkpoint.run_folder import REPORT
from bert4rec.config.load import load_config, parse_command_line
from bert4rec.dataset.format import TEST
from bert4rec.report.charts import COLOURS, MUTED_COLOR, new_figure, to_png

DOCS = Path(__file__).parents[1] / "docs"
POINTS, PICTURE = DOCS / "minutes.csv", DOCS / "minutes.png"
PUBLISHED = ("WEARec, mean of 80 runs", 0.1874)  # of bert4rec/report/published.toml: the best not chosen by the test
WITH_PRIOR = " + prior"  # after the name


class Point(NamedTuple):
    """What a run reaches on the test after some minutes."""

    name: str
    processes: int
    seed: int
    minutes: float
    hit_rate: float
    ndcg: float


def main() -> None:
    """Train, write the points, and draw all of them."""
    parser = argparse.ArgumentParser("python -m benchmarks.minutes", description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--until", default="1,2,5,10,20", help="minutes after which the run is tested")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--config")
    options, words = parser.parse_known_args()
    bert4rec.log_to_terminal()
    if options.name:
        for seed in map(int, options.seeds.split(",")):
            points, names = list(trained(options, words, seed)), (options.name, options.name + WITH_PRIOR)
            write([point for point in read() if point.seed != seed or point.name not in names] + points)
    PICTURE.write_bytes(picture(read()))


def trained(options: argparse.Namespace, words: Sequence[str], seed: int) -> Iterator[Point]:
    """Yield the points of one seed, after training up to each of them."""
    name = f"minutes-{options.name.replace(' ', '-')}-{seed}"
    settings = {**parse_command_line(words)[1], "training.seed": seed, "run.name": name, "run.resume": "auto"}
    config = load_config(options.config, settings)
    if not (config.data.folder / "metadata.json").is_file():
        bert4rec.prepare(parse_command_line(words)[1], config=options.config)
    folder = Path(config.run.dir) / name
    for minutes in map(float, options.until.split(",")):
        kept = folder / f"report-{minutes:g}.json"
        if not kept.exists():
            begun, file = ({"run.resume": folder}, None) if folder.exists() else (settings, options.config)
            bert4rec.train({**begun, "training.max_minutes": minutes}, config=file, processes=options.processes)
            kept.write_bytes((folder / REPORT).read_bytes())
        report = json.loads(kept.read_text())
        facts = options.processes, seed, minutes
        figures = {options.name: report[TEST]["full"]}
        if alone := report.get("prior", {}).get("model"):
            figures = {options.name: alone, options.name + WITH_PRIOR: report[TEST]["full"]}
        for each, values in figures.items():
            yield Point(each, *facts, values["HR@10"], values["NDCG@10"])


def read() -> list[Point]:
    """Return all points."""
    return [Point(*row) for row in pl.read_csv(POINTS).rows()] if POINTS.exists() else []


def write(points: Sequence[Point]) -> None:
    """Replace the file of points."""
    rounded = [point._replace(hit_rate=round(point.hit_rate, 4), ndcg=round(point.ndcg, 4)) for point in sorted(points)]
    pl.DataFrame(rounded, schema=Point._fields, orient="row").write_csv(POINTS)


def picture(points: Sequence[Point]) -> bytes:
    """Return NDCG@10 by minutes and name, as PNG."""
    found: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        found[point.name][point.minutes].append(point.ndcg)
    with new_figure(7.0, 3.8) as (figure, (axes,)):
        axes.axhline(PUBLISHED[1], color=MUTED_COLOR, linestyle="--", linewidth=1)
        for (name, by_minutes), color in zip(found.items(), COLOURS.values(), strict=False):
            means = [mean(values) for values in by_minutes.values()]
            axes.plot([*by_minutes], means, color=color, label=name, marker="o", markersize=3)
        axes.set_xscale("log")
        axes.set_xticks(ticks := sorted({point.minutes for point in points}), [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("minutes on two cores")
        axes.set_ylabel("NDCG@10, test")
        axes.set_xlim(right=(end := 2 * ticks[-1]))  # room for the legend
        axes.text(end, PUBLISHED[1], f"published: {PUBLISHED[0]}", ha="right", va="bottom", color=MUTED_COLOR)
        axes.legend(loc="lower right")
    return to_png(figure)


if __name__ == "__main__":
    main()
