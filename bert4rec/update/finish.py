"""Act on the decision on an update: keep its version and its rows, move the aliases, and write its line.

Each act is done once, however often it is called: an update that was killed here goes on here.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec.checkpoint.models_folder import (
    ABOUT,
    DATASET,
    UPDATES,
    VERSIONS,
    find_versions,
    read_aliases,
    read_updates,
    set_challenger,
    set_champion,
)
from bert4rec.report.models_page import write_models_page
from bert4rec.runtime.files import atomic_write, replace_directory, withdraw_directory
from bert4rec.update.gate import POOLED_DAYS, Tail
from bert4rec.update.versions import about_version, add_version

UNFINISHED_UPDATE, UPDATE_PLAN, RUN, TAIL, DECISION = "next", "update.json", "run", "tail.npz", "decision.json"
"""The folder of an update that has not ended; in it what was begun, the challenger, gains on its tail, the decision."""
TAILS = "tails"  # folder of the tails of earlier updates, by version
NOT_TAKEN = 3  # exit status


def finish(models: Path) -> dict[str, Any]:
    """Do what the decision on the update in `next` says, and return the sentence for people and the exit status."""
    unfinished = models / UNFINISHED_UPDATE
    line: dict[str, Any] = json.loads((unfinished / DECISION).read_text(encoding="utf-8"))
    line.pop("key")
    if line["version"]:
        _keep_version(models, line)
    if line["decision"] != "stopped" and (unfinished / DATASET).is_dir():
        replace_directory(unfinished / DATASET, models / DATASET, replaced=unfinished / "replaced")
    if line["version"]:
        move = set_champion if line["taken"] else set_challenger
        move(models, line["version"])
    updates = read_updates(models)
    if not any(update["time"] == line["time"] for update in updates):
        updates.append(line)
        atomic_write(models / UPDATES, "".join(f"{json.dumps(update)}\n" for update in updates))
    write_page(models)
    withdraw_directory(unfinished)
    return {"sentence": line["reasons"][0], "status": 0 if line["taken"] else NOT_TAKEN}


def write_page(models: Path) -> None:
    """Write the page of the models folder anew, from what the folder holds."""
    versions = [{"time": version.name, **version.about} for version in find_versions(models)]
    write_models_page(models, read_updates(models), read_aliases(models), versions)


def _keep_version(models: Path, line: dict[str, Any]) -> None:
    """Move the challenger to the versions, and its tail to the tails."""
    name, unfinished = line["version"], models / UNFINISHED_UPDATE
    if (unfinished / TAIL).is_file():
        (models / TAILS).mkdir(exist_ok=True)
        (unfinished / TAIL).replace(models / TAILS / f"{name}.npz")
    if not (models / VERSIONS / name / ABOUT).is_file():
        about = about_version(unfinished / DATASET, parent=line["champion"], decision=line["decision"])
        add_version(models, unfinished / RUN, name, about)


def earlier_tails(models: Path) -> list[Tail]:
    """Return the tails of the last updates whose challenger was taken, the newest last."""
    taken = [update["version"] for update in read_updates(models) if update["taken"] and update["version"]]
    paths = [models / TAILS / f"{name}.npz" for name in taken[-POOLED_DAYS:]]
    loaded = [np.load(path) for path in paths if path.is_file()]
    return [Tail(one["users"], one["champion"], one["challenger"]) for one in loaded]
