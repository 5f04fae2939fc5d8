"""What `bert4rec extend` saves: a tenth of the items are new, the extended run against one from zero on all of them.

    python -m benchmarks.extend FILE FOLDER [--new=0.1] [--epochs=40] [--further=4] [--seed=1] [--table.key=value …]

FILE has a user and an item a line, in order of time, or user, item, rating and timestamp as MovieLens has them. Some
of its items are drawn; the old dataset has no interaction with them, the new one has all. Three trainings: on the old
dataset, on the new one after `extend`, on the new one from zero. What is in FOLDER is not made again, and a training
that was stopped is resumed: the same command goes on. The table is of test users; minutes are of training and
validation, for the extended run with `extend` itself. Settings go to preprocessing.py and train.py.
"""

import argparse
import json
import math
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bert4rec import load
from bert4rec.serving.users import UserHistories

K = 10
FILES = ("old.txt", "new.txt", "new_items.txt")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--new", type=float, default=0.1, help="share of the items that the old dataset has not")
    parser.add_argument("--epochs", type=int, default=40, help="of the trainings from zero")
    parser.add_argument("--further", type=int, default=0, help="of the extended run (default: a tenth of those)")
    parser.add_argument("--seed", type=int, default=1, help="of the items that are drawn")
    options, settings = parser.parse_known_args()
    folder, epochs = options.folder, options.epochs
    further = options.further or math.ceil(epochs / 10)
    folder.mkdir(parents=True, exist_ok=True)
    if not all((folder / name).exists() for name in FILES):
        write_files(options.file, folder, options.new, options.seed)
    for name in ("old", "new"):
        prepare(folder, name, settings)
    train(folder, "old", "old", epochs, settings)
    extend(folder, further)
    train(folder, "extended", "new", further, [])
    train(folder, "zero", "new", epochs, settings)
    print(table(folder))


def write_files(file: Path, folder: Path, share: float, seed: int) -> None:
    """The interactions with and without those of some items, as `user item` a line, and which items these are."""
    rows = [re.split(r"::|[\s,]+", line.strip()) for line in file.read_text().splitlines() if line.strip()]
    if len(rows[0]) > 3:
        rows.sort(key=lambda row: int(row[3]))  # stable: ties stay in file order
    items = sorted({row[1] for row in rows})
    new = set(random.Random(seed).sample(items, round(share * len(items))))
    texts = ["".join(f"{user} {item}\n" for user, item, *_ in rows if is_new or item not in new) for is_new in (0, 1)]
    for name, text in zip(FILES, [*texts, "".join(f"{item}\n" for item in sorted(new))], strict=True):
        (folder / name).write_text(text)


def prepare(folder: Path, name: str, settings: Sequence[str]) -> None:
    """A dataset folder; that of all items keeps the ids of the other."""
    if (folder / "data" / name).exists():
        return
    extends = [f"--data.extends={folder / 'data' / 'old'}"] if name == "new" else []
    _run("preprocessing.py", *_folders(folder, name), *extends, *settings)


def train(folder: Path, run: str, dataset: str, epochs: int, settings: Sequence[str]) -> None:
    """A training to its end; one that was begun is resumed."""
    path = folder / "runs" / run
    if (path / "report.json").exists():
        return
    place = [f"--run.dir={folder / 'runs'}", f"--run.name={run}", *_folders(folder, dataset), *settings]
    if any(path.glob("checkpoints/step-*")):
        place = [f"--resume={path}"]
    _run("train.py", *place, f"--training.n_epochs={epochs}")


def extend(folder: Path, further: int) -> None:
    """The run `extended`, before its training; the seconds that it took."""
    if (folder / "extend.json").exists():
        return
    began = time.monotonic()
    options = [str(folder / "data" / "new"), "--run.name=extended", f"--training.n_epochs={further}"]
    _run("-m", "bert4rec", "extend", str(folder / "runs" / "old"), *options)
    (folder / "extend.json").write_text(json.dumps(time.monotonic() - began))
    (folder / "untrained.json").write_text(json.dumps(measure(folder, "extended")))


def table(folder: Path) -> str:
    """Every training in a line."""
    rows = [
        "| run | epochs | minutes | NDCG@10 | of from zero | target new | target old | new items in lists |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    found = {"untrained": json.loads((folder / "untrained.json").read_text())}
    for name in ("extended", "zero"):
        found[name] = _once(folder / f"{name}.json", partial(measure, folder, name))
    seconds_to_extend = json.loads((folder / "extend.json").read_text())
    for name, figures in found.items():
        training = {"epochs": 0, "seconds": 0}
        if name != "untrained":
            training = json.loads((folder / "runs" / name / "report.json").read_text())["training"]
        seconds = training["seconds"] + (seconds_to_extend if name != "zero" else 0)
        rows.append(
            f"| {name} | {training['epochs']:g} | {seconds / 60:.2f} | {figures['all']:.4f} | "
            f"{figures['all'] / found['zero']['all']:.1%} | {figures['new']:.4f} | {figures['old']:.4f} | "
            f"{figures['share']:.1%} |"
        )
    figures = found["zero"]
    share = f"of {figures['users']:,} users, {figures['targets']:,} have a new item as target"
    return "\n".join([*rows, "", share])


def measure(folder: Path, run: str) -> dict[str, float]:
    """NDCG@10 over the full catalogue of the test users whom the old dataset knows, and by whether the target is new.

    `share`: how many of the items that are recommended are new.
    """
    known = {line.split()[0] for line in (folder / "old.txt").read_text().splitlines()}
    new = set((folder / "new_items.txt").read_text().split())
    recommender = load(folder / "runs" / run)
    gains: dict[bool, list[float]] = {True: [], False: []}
    n_new = n_items = 0
    for part in UserHistories(recommender.dataset, recommender.ids).all():
        users = [list(map(str, items)) for user, items in part if len(items) >= 3 and str(user) in known]
        lists = recommender.recommend([items[:-1] for items in users], K)
        for items, found in zip(users, lists, strict=True):
            recommended = [str(one.item) for one in found]
            gain = 1 / math.log2(recommended.index(items[-1]) + 2) if items[-1] in recommended else 0.0
            gains[items[-1] in new].append(gain)
            n_new += sum(item in new for item in recommended)
            n_items += len(recommended)
    both = gains[True] + gains[False]
    return {
        "all": _mean(both), "new": _mean(gains[True]), "old": _mean(gains[False]), "share": n_new / n_items,
        "users": len(both), "targets": len(gains[True]),
    }  # fmt: skip


def _folders(folder: Path, dataset: str) -> list[str]:
    path, place = folder / f"{dataset}.txt", folder / "data" / dataset
    return ["--config=/dev/null", "--data.source=sequences", f"--data.path={path}", f"--data.dataset_dir={place}"]


def _once(path: Path, make: Callable[[], Any]) -> Any:
    if not path.exists():
        path.write_text(json.dumps(make()))
    return json.loads(path.read_text())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def _run(*command: str) -> None:
    subprocess.run([sys.executable, *command], check=True)


if __name__ == "__main__":
    main()
