"""A shop's nights: what its model gains by an update every night, beside one that never learns.

    python -m benchmarks.nightly DAYS [--nights=60] [--minutes=5] [--folder=FOLDER] [--table.key=value …]

DAYS is a folder of files of one day each, in the order of their names, as tables with a header. All but the last
`--nights` of them are the first log: it is prepared, a SASRec is trained on it for `--minutes`, and it becomes a model.
Then comes one night after another: `bert4rec update` with the next day's file. Each night's champion has ranked the
first new item of each user of the day before it learns from the day; so has the model that never learns. Other options
go to each update.

The table has NDCG@10 by week, of all users of the week together, and the slope by night of the difference of both, with
its 95 % interval. What is there already in FOLDER is not done again.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec.checkpoint.models_folder import read_updates
from bert4rec.checkpoint.run_folder import CONFIG, find_trained
from bert4rec.config.load import Overrides, load_config
from bert4rec.dataset.format import TEST
from bert4rec.evaluation.metrics import gains
from bert4rec.prepare.append import append, settings_to_append
from bert4rec.training.evaluate import rank_test

WEEK = 7
AT = "NDCG@10"


def main() -> None:
    """Make the model, live through the nights, and print the table."""
    options, others = _options()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="nightly-"))
    files = sorted(path for path in options.days.iterdir() if path.name[0].isdigit())
    first, nights = files[: -options.nights], files[-options.nights :]
    model = folder / "models" / "shop"
    if not model.exists():
        make_model(folder, first, model, minutes=options.minutes)
    never = never_updated(folder, nights)
    done = {update["input"]["name"] for update in read_updates(model)}
    for night in nights:
        if night.name not in done:
            status = bert4rec("update", str(model), f"--data={night}", *others, accepts=(0, 3))
            print(f"{night.name}: {read_updates(model)[-1]['reasons'][0]} (status {status})", flush=True)
    print(table(read_updates(model), never))


def _options() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("days", type=Path)
    parser.add_argument("--nights", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--folder", type=Path, help="where the model is made; default: a temporary folder")
    return parser.parse_known_args()


def bert4rec(*words: str, accepts: tuple[int, ...] = (0,)) -> int:
    """Run a command, and return its exit status."""
    process = subprocess.run(
        [sys.executable, "-m", "bert4rec", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if process.returncode not in accepts:
        raise SystemExit(f"bert4rec {' '.join(words)}: status {process.returncode}\n{process.stdout.decode()}")
    return process.returncode


def make_model(folder: Path, files: list[Path], model: Path, *, minutes: float) -> None:
    """Prepare the `files`, train on them, and make the models folder."""
    log, data = folder / "log", folder / "data" / "log"
    log.mkdir(parents=True, exist_ok=True)
    for path in files:
        (log / path.name).unlink(missing_ok=True)
        (log / path.name).symlink_to(path.resolve())
    bert4rec("prepare", f"{log}/*", f"--data.dataset_dir={data}", "--preprocessing.max_guests=1", "--config=/dev/null")
    run = folder / "runs" / "first"
    if not run.exists():
        bert4rec(
            "train", str(data), "--model=sasrec", f"--minutes={minutes}", f"--run.dir={run.parent}", "--name=first"
        )
    bert4rec("update", str(model), f"--from={run}")


def never_updated(folder: Path, nights: list[Path]) -> dict[str, Any]:
    """Return file → users and NDCG@10 of the first version on the first new items of each night."""
    kept = folder / "never.json"
    figures: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() else {}
    trained, data = find_trained(folder / "runs" / "first"), folder / "data"
    assert trained.run is not None, "a run was made"
    for number, night in enumerate(nights):
        new, before = data / f"night-{number:03d}", data / (f"night-{number - 1:03d}" if number else "log")
        if night.name in figures:
            continue
        config = settings_to_append(before, Overrides({"data.path": str(night), "preprocessing.max_guests": 1.0}))
        append(before, config, new, tail=0.25, scored=data / "scored")
        changed = {"data.dataset_dir": str(data / "scored"), "evaluation.protocols": ["full"]}
        ranked = rank_test(load_config(trained.run / CONFIG, Overrides(changed)), trained)
        values = dict(gains(ranked.ranks[TEST], [10]))[AT]
        figures[night.name] = {"users": len(values), AT: float(values.mean())}
        kept.write_text(json.dumps(figures))
        if number:
            shutil.rmtree(before)
    return figures


def table(updates: list[dict[str, Any]], never: dict[str, Any]) -> str:
    """Return the NDCG@10 by week, and the slope of the difference by night."""
    nights = [update for update in updates if "score" in update and update["input"]["name"] in never]
    users = np.array([update["score"]["users"] for update in nights])
    columns = {
        "updated every night": [update["score"].get(AT, 0.0) for update in nights],
        "never updated": [never[update["input"]["name"]][AT] for update in nights],
        "Markov": [update["score"]["baseline"].get(AT, 0.0) for update in nights],
        "popularity": [update["score"]["popularity"].get(AT, 0.0) for update in nights],
    }
    lines = [f"| week | users | {' | '.join(columns)} | taken |", f"|{'---:|' * (len(columns) + 3)}"]
    weeks = [range(start, min(start + WEEK, len(nights))) for start in range(0, len(nights), WEEK)]
    for name, week in [*((str(number), week) for number, week in enumerate(weeks, 1)), ("all", range(len(nights)))]:
        part = [np.average(np.array(values)[week], weights=users[week]) for values in columns.values()]
        n_taken = sum(nights[night]["taken"] for night in week)
        cells = " | ".join(f"{value:.4f}" for value in part)
        lines.append(f"| {name} | {users[week].sum():,} | {cells} | {n_taken} of {len(week)} |")
    difference = np.array(columns["updated every night"]) - np.array(columns["never updated"])
    slope, error = weighted_slope(difference, users)
    minutes = sum(sum(update.get("seconds", {}).values()) for update in nights) / 60
    interval = f"{slope - 1.96 * error:+.5f} to {slope + 1.96 * error:+.5f}"
    lines.append(f"\nslope of the difference by night: {slope:+.5f} ({interval}); {minutes:.0f} minutes of updates")
    return "\n".join(lines)


def weighted_slope(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return the slope of `values` by place, and its standard error, by weighted least squares."""
    places = np.arange(len(values)) - np.average(np.arange(len(values)), weights=weights)
    scale = (weights * places**2).sum()
    slope = (weights * places * values).sum() / scale
    residuals = values - np.average(values, weights=weights) - slope * places
    return float(slope), float(np.sqrt((weights * residuals**2).sum() / (len(values) - 2) / scale))


if __name__ == "__main__":
    main()
