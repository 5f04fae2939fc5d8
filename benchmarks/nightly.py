"""Measure what a shop's model gains by an update every night, beside one that never learns and one trained anew.

    python -m benchmarks.nightly DAYS [--nights=60] [--minutes=4] [--anew-every=0] [--folder=FOLDER] [--picture=FILE]
                                 [--table.key=value …]

DAYS is a folder of files of one day each, in the order of their names, as tables with a header. All but the last
`--nights` of them are the first log: it is prepared, a SASRec is trained on it for `--minutes`, and it becomes a model.
Then comes one night after another: `bert4rec update` with the day's file. With `--anew-every=N`, the first night and
each Nth one after it also train a copy of the model anew on everything, by `--full`. Each day is ranked before any
model learns from it: the first new item of each known user, by the updated model, by the one that was never updated,
and, after such a night, by the one that was trained anew. Other options go to each update.

The tables have NDCG@10 by week, of all users of the week together, and slopes by night, with 95 % intervals. What is
there already in FOLDER is not done again.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert4rec.checkpoint.models_folder import CHAMPION, DATASET, read_aliases, read_updates, version_folder
from bert4rec.checkpoint.run_folder import CONFIG, find_trained
from bert4rec.config.load import Overrides, load_config
from bert4rec.dataset.format import TEST
from bert4rec.dataset.reader import read_metadata
from bert4rec.evaluation.evaluator import POPULARITY_BASELINE
from bert4rec.evaluation.metrics import gains
from bert4rec.prepare.append import append, settings_to_append
from bert4rec.report.charts import ABOVE, MODEL_COLOR, MUTED_COLOR, OTHER_COLORS, POPULARITY_COLOR, new_figure, to_png
from bert4rec.runtime.arrays import Float64s
from bert4rec.training.evaluate import rank_test

WEEK = 7
UPDATED, NEVER, ANEW, POPULARITY = "updated every night", "never updated", "trained anew", "popularity"
COLORS = {UPDATED: MODEL_COLOR, NEVER: OTHER_COLORS[0], POPULARITY: POPULARITY_COLOR, ANEW: MUTED_COLOR}
DRAWS = 2000  # of users, for the interval of a ratio


class Night(NamedTuple):
    """A day and the update after it: its line of `updates.jsonl`, the `users`, and model → NDCG@10 of each of them."""

    update: Mapping[str, Any]
    users: np.ndarray
    gains: Mapping[str, Float64s]


def main() -> None:
    """Make the model, live through the nights, and print the tables."""
    options, others = _options()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="nightly-"))
    files = sorted(path for path in options.days.iterdir() if path.name[0].isdigit())
    first, nights = files[: -options.nights], files[-options.nights :]
    model = folder / "models" / "shop"
    if not model.exists():
        make_model(folder, first, model, minutes=options.minutes)
    (folder / "ranked").mkdir(exist_ok=True)
    for number, night in enumerate(nights):
        if night.name in {update["input"]["name"] for update in read_updates(model) if "input" in update}:
            continue
        models = {UPDATED: version_folder(model, read_aliases(model)[CHAMPION]), NEVER: folder / "runs" / "first"}
        if options.anew_every and number % options.anew_every == 1 % options.anew_every:
            (models[ANEW],) = (folder / "anew" / nights[number - 1].name / "versions").iterdir()
        rank_day(model, night, models, folder)
        anew = folder / "anew" / night.name
        if options.anew_every and number % options.anew_every == 0 and night != nights[-1] and not anew.is_dir():
            train_anew(model, night, anew)
        status = bert4rec("update", str(model), f"--data={night}", *others, accepts=(0, 3))
        print(f"{night.name}: {read_updates(model)[-1]['reasons'][0]} (status {status})", flush=True)
    lived = read_nights(model, folder)
    print(by_week(lived), *comparisons(lived, folder), sep="\n")
    if options.picture:
        options.picture.write_bytes(picture(lived))


def _options() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("days", type=Path)
    parser.add_argument("--nights", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--anew-every", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the model is made; default: a temporary folder")
    parser.add_argument("--picture", type=Path, help="a PNG file of NDCG@10 by night")
    return parser.parse_known_args()


def bert4rec(*words: str, accepts: tuple[int, ...] = (0,)) -> int:
    """Run a command, and return its exit status."""
    process = subprocess.run(
        [sys.executable, "-m", "bert4rec", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if process.returncode not in accepts:
        raise SystemExit(f"bert4rec {' '.join(words)}: status {process.returncode}\n{process.stdout.decode()}")
    return process.returncode


def make_model(folder: Path, files: Sequence[Path], model: Path, *, minutes: float) -> None:
    """Prepare the `files`, train on them, and make the models folder."""
    log, data, run = folder / "log", folder / "data", folder / "runs" / "first"
    log.mkdir(parents=True, exist_ok=True)
    for path in files:
        (log / path.name).unlink(missing_ok=True)
        (log / path.name).symlink_to(path.resolve())
    bert4rec("prepare", f"{log}/*", f"--data.dataset_dir={data}", "--preprocessing.max_guests=1", "--config=/dev/null")
    if not run.exists():
        bert4rec(
            "train", str(data), "--model=sasrec", f"--minutes={minutes}", f"--run.dir={run.parent}", "--name=first"
        )
    bert4rec("update", str(model), f"--from={run}")


def train_anew(model: Path, night: Path, copy: Path) -> None:
    """Train a copy of the model, made of links, anew with the rows of the night; keep the new version alone."""
    unfinished = copy.with_name("unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(model, unfinished, symlinks=True, copy_function=os.link)
    bert4rec("update", str(unfinished), f"--data={night}", "--full", accepts=(0, 3))
    version = read_updates(unfinished)[-1]["version"]
    for path in (unfinished / DATASET, *(run for run in (unfinished / "versions").iterdir() if run.name != version)):
        shutil.rmtree(path)
    unfinished.rename(copy)


def rank_day(model: Path, night: Path, runs: Mapping[str, Path], folder: Path) -> None:
    """Rank the first new item of each known user of the day; write the users and NDCG@10 of each model to a file."""
    new, scored, n_users = folder / "grown", folder / "scored", read_metadata(model / DATASET)["users"]
    config = settings_to_append(model / DATASET, Overrides({"data.path": str(night)}))
    append(model / DATASET, config, new, tail=0.25, scored=scored)
    changed = Overrides({"data.dataset_dir": str(scored), "evaluation.protocols": ["full"]})
    values: dict[str, Any] = {}
    for name, run in runs.items():
        ranked = rank_test(load_config(run / CONFIG, changed), find_trained(run))
        is_known = ranked.users < n_users
        for title, kind in ((name, TEST), (POPULARITY, POPULARITY_BASELINE)):
            values[title] = dict(gains(ranked.ranks[kind][is_known], [10]))["NDCG@10"]
        values["users"] = ranked.users[is_known]
    np.savez(folder / "ranked" / f"{night.name}.npz", **values)
    for place in (new, scored):
        shutil.rmtree(place)


def read_nights(model: Path, folder: Path) -> list[Night]:
    """Return the nights whose rows were appended."""
    found = []
    for update in read_updates(model):
        ranked = folder / "ranked" / f"{update['input']['name']}.npz"
        if update["decision"] != "stopped" and ranked.is_file():
            values = dict(np.load(ranked))
            found.append(Night(update, values.pop("users"), values))
    return found


def by_week(nights: Sequence[Night]) -> str:
    """Return the table of NDCG@10 by week."""
    weeks = [nights[start : start + WEEK] for start in range(0, len(nights), WEEK)]
    names = (UPDATED, NEVER, POPULARITY)
    lines = [f"| week | users | {' | '.join(names)} | Markov | taken |", f"|{'---:|' * (len(names) + 4)}"]
    for title, week in [*((str(number), week) for number, week in enumerate(weeks, 1)), ("all", list(nights))]:
        n_users = sum(len(night.users) for night in week)
        figures = [np.concatenate([night.gains[name] for night in week]).mean() for name in names]
        scores = [night.update["score"] for night in week]
        figures.append(sum(score["baseline"].get("NDCG@10", 0.0) * score["users"] for score in scores) / n_users)
        n_taken = sum(night.update["taken"] for night in week)
        cells = " | ".join(f"{figure:.4f}" for figure in figures)
        lines.append(f"| {title} | {n_users:,} | {cells} | {n_taken} of {len(week)} |")
    return "\n".join(lines)


def comparisons(nights: Sequence[Night], folder: Path) -> list[str]:
    """Return a line for each model that the updated one is compared with, and the minutes."""
    lines = []
    for other in (NEVER, ANEW):
        both = [night for night in nights if other in night.gains]
        if len(both) > 2:
            lines.append(compared(both, other))
    minutes = [sum(night.update["seconds"].values()) / 60 for night in nights]
    lines.append(f"minutes of an update: {np.mean(minutes):.2f} of {len(minutes)}")
    anew = [update for path in sorted(folder.glob("anew/[0-9]*")) for update in read_updates(path)[-1:]]
    if anew:
        minutes = [sum(update["seconds"].values()) / 60 for update in anew]
        lines.append(f"minutes of one with --full: {np.mean(minutes):.2f} of {len(minutes)}")
    return lines


def compared(nights: Sequence[Night], other: str) -> str:
    """Return NDCG@10 of the updated model beside another one, the ratio and the slope of the difference by night."""
    users = np.unique(np.concatenate([night.users for night in nights]), return_inverse=True)[1]
    pairs = np.array([np.concatenate([night.gains[name] for night in nights]) for name in (UPDATED, other)])
    sums = np.array([np.bincount(users, values) for values in pairs])
    drawn = np.random.default_rng(1).multinomial(sums.shape[1], np.full(sums.shape[1], 1 / sums.shape[1]), DRAWS)
    low, high = np.percentile(np.divide(*(sums @ drawn.T)), [2.5, 97.5])
    each = np.array([(night.gains[UPDATED] - night.gains[other]).mean() for night in nights])
    slope, error = weighted_slope(each, np.array([len(night.users) for night in nights]))
    updated, compared_with = pairs.mean(1)
    return (
        f"{len(nights)} nights, {pairs.shape[1]:,} targets: updated {updated:.4f}, {other} {compared_with:.4f}, "
        f"ratio {updated / compared_with:.3f} ({low:.3f} to {high:.3f}); slope of the difference, from one of these "
        f"nights to the next: {slope:+.5f} ({slope - 1.96 * error:+.5f} to {slope + 1.96 * error:+.5f})"
    )


def weighted_slope(values: Float64s, weights: np.ndarray) -> tuple[float, float]:
    """Return the slope of `values` by place, and its standard error, by weighted least squares."""
    places = np.arange(len(values)) - np.average(np.arange(len(values)), weights=weights)
    scale = (weights * places**2).sum()
    slope = (weights * places * values).sum() / scale
    residuals = values - np.average(values, weights=weights) - slope * places
    return float(slope), float(np.sqrt((weights * residuals**2).sum() / (len(values) - 2) / scale))


def picture(nights: Sequence[Night]) -> bytes:
    """Return NDCG@10 by night and model, as PNG; models trained anew are points."""
    with new_figure() as (figure, (axes,)):
        for name, color in COLORS.items():
            both = [(number, night.gains[name].mean()) for number, night in enumerate(nights, 1) if name in night.gains]
            if both:
                style: dict[str, Any] = {"linestyle": "none", "marker": "o"} if name == ANEW else {}
                axes.plot(*zip(*both, strict=True), color=color, label=name, **style)
        axes.set_xlabel("night")
        axes.set_ylabel("NDCG@10")
        axes.set_ylim(bottom=0)
        axes.legend(ncols=2, **ABOVE)
    return to_png(figure)


if __name__ == "__main__":
    main()
