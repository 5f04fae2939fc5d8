"""The second week: a grown log, `extend` and a short training, against a new training on all of it."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from bert4rec import prepare, train
from bert4rec.__main__ import main
from bert4rec.checkpoint.stored_tensors import MODEL_PREFIX
from bert4rec.models.names import TABLE
from bert4rec.serving.load import find_source
from tests.fixture_types import Patch
from tests.folders import id_table
from tests.runs import report_of

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore"),  # of the libraries about themselves
]

N_GROUPS, IN_GROUP, N_NEW = 8, 8, 2  # items of a group; the last two are new in the second week
FIRST_WEEK = 0.75
SETTINGS = {
    "model.kind": "sasrec", "model.embed_dim": 32, "model.ffn_dim": 64, "model.max_len": 20, "model.dropout": 0.1,
    "training.per_device_train_batch_size": 32, "parallelism.sparse_learning_rate": 0.005,
    "training.eval_every_n_epochs": 3, "parallelism.device": "cpu", "evaluation.protocols": ["full"],
}  # fmt: skip


def log() -> pl.DataFrame:
    """Rows of 400 users, of whom some come later: the item after each one is mostly the next of its group."""
    draw = np.random.default_rng(4)
    rows = []
    for user in range(400):
        start, group, place = draw.uniform(0, 0.8), draw.integers(N_GROUPS), draw.integers(IN_GROUP)
        for time in np.sort(draw.uniform(start, 1, draw.integers(10, 20))):
            n_known = IN_GROUP if time > FIRST_WEEK else IN_GROUP - N_NEW
            if draw.random() < 0.15:
                group, place = draw.integers(N_GROUPS), draw.integers(n_known)
            place = (place + 1) % n_known
            rows.append((user, int(group * IN_GROUP + place), round(1e9 + 1e7 * time)))
    return pl.DataFrame(rows, schema=["kto", "co", "kedy"], orient="row").sort("kedy")


def likeness(run: str, dataset: str) -> float:
    """The share of the five nearest items of each new one, by the cosine, that are of its group."""
    items = id_table(Path(f"data/{dataset}"), "items")["original"].to_numpy()
    vectors = torch.nn.functional.normalize(find_source(Path("runs", run)).tensors().read(MODEL_PREFIX + TABLE)[:, :32])
    nearest = (vectors @ vectors.T).fill_diagonal_(-1).topk(5).indices.numpy()
    is_new = items % IN_GROUP >= IN_GROUP - N_NEW
    return float((items[nearest] // IN_GROUP == items[:, None] // IN_GROUP)[is_new].mean())


@pytest.mark.long
def test_extending_and_training_is_as_good_as_training_anew(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = log()
    rows.filter(pl.col("kedy") < 1e9 + 1e7 * FIRST_WEEK).write_csv("old.csv")
    rows.write_csv("new.csv")
    columns = {"user": "kto", "item": "co", "time": "kedy", "validation-users": 150}
    prepare("old.csv", columns)
    prepare("new.csv", {"data.extends": "data/old"})
    train(SETTINGS | {"training.n_epochs": 18, "run.name": "old"}, dataset="data/old")
    train(SETTINGS | {"training.n_epochs": 18, "run.name": "fresh"}, dataset="data/new")
    assert main(["extend", "runs/old", "data/new", "--run.name=new"]) == 0
    train({"run.resume": "runs/new", "training.n_epochs": 9})
    reports: dict[str, Any] = {name: report_of(Path("runs", name)) for name in ("old", "fresh", "new")}
    assert reports["new"]["training"]["best_epoch"] > 0
    low, high = reports["fresh"]["intervals"]["test"]["full"]["NDCG@10"]
    assert low <= reports["new"]["test"]["full"]["NDCG@10"] <= high
    assert likeness("new", "new") > 0.9 * likeness("fresh", "new") > 0.3
