"""`extend`: a run for a dataset with new items, what a person types and reads."""

import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
import torch
from datasets import load_from_disk

from bert4rec import load, train
from bert4rec.__main__ import main
from bert4rec.checkpoint.prior import read_prior
from bert4rec.checkpoint.run_folder import METADATA_VERSION, find_trained
from bert4rec.checkpoint.run_settings import load_run_settings
from bert4rec.checkpoint.stored_tensors import MODEL_PREFIX
from bert4rec.config.load import load_config, parse_command_line
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import open_dataset
from bert4rec.models.names import TABLE
from bert4rec.models.transitions import TrainingHistories, count_pairs
from bert4rec.runtime.errors import SettingsError
from bert4rec.serving.load import find_source
from bert4rec.training.run import run
from tests.conftest import BY_HAND, SMALL, leave_group, prepare_log, spare, train_alone
from tests.fixture_types import Capture, Patch, Settings
from tests.folders import files_of, id_table
from tests.runs import edit_facts, flip, report_of, steps, tensors_of

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the libraries about themselves
]


@pytest.fixture(scope="module")
def trained(log_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 2 epochs on eight items."""
    return train_alone(log_folder, tmp_path_factory.mktemp("runs"), **BY_HAND, **{"run.name": "run"})


@pytest.fixture
def old(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "runs" / "run", symlinks=True))


def extended(old: Path, dataset: Path, *options: str) -> Path:
    assert main(["extend", str(old), str(dataset), *options]) == 0
    return old.with_name("run-2")


def test_a_new_run_has_all_that_was_learnt(old: Path, grown_folder: Path, capsys: Capture) -> None:
    before = files_of(old)
    capsys.readouterr()
    new = extended(old, grown_folder)
    said = capsys.readouterr().out
    assert f"  bert4rec train --resume={new} --training.n_epochs=1\n" in said
    assert files_of(old) == before
    checkpoint = new / "checkpoints" / "step-000000000"
    first, second = tensors_of(old / "checkpoints" / "best"), tensors_of(checkpoint)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(second[name][: len(tensor)], tensor), name
        assert len(second[name]) == len(tensor) + (2 if "item_table" in name else 0), name
    state, old_state = (
        json.loads((f / "facts.json").read_text())["state"] for f in (checkpoint, old / "checkpoints" / "best")
    )
    assert state["updates"] == old_state["updates"] > 0
    assert (state["step"], state["best_ndcg"], state["n_worse"]) == (0, -1.0, 0)
    (found,) = load(new).recommend([[1, 2, 3]], 10)
    assert {9, 10} <= {one.item for one in found}


def test_the_prior_of_a_new_run_counts_the_new_dataset(old: Path, grown_folder: Path) -> None:
    """Its weights are those of the run, also for items that had no transition before."""
    weights = {"transitions": [0.5], "neighbours": [2.0]}
    edit_facts(old / "checkpoints" / "best", lambda facts: facts["state"].update(prior=weights))
    new = extended(old, grown_folder)
    known, grown = (read_prior(run / "prior.safetensors", n) for run, n in ((old, 8), (new, 10)))
    assert (len(known.items), len(grown.items)) == (8, 10)
    assert find_trained(new).prior_weights == weights
    dataset = open_dataset(grown_folder)
    pairs = count_pairs(TrainingHistories(dataset), reach=10, decay=0.7)
    assert grown.sources["transitions"].reached.nonzero().flatten().tolist() == np.unique(pairs.keys % 10).tolist()
    (scored,) = load(new).recommend([[1, 2, 3]], 10, leave_out_seen=False)
    (without,) = replace(load(new), prior=None).recommend([[1, 2, 3]], 10, leave_out_seen=False)
    assert {one.item: one.score for one in scored} != {one.item: one.score for one in without}


def settings_of(*argv: str) -> Config:
    return load_run_settings(*parse_command_line(argv), looks_around=False).config


def test_training_goes_on_from_it(old: Path, grown_folder: Path, capsys: Capture) -> None:
    """The first validation is of the weights as they were; what changed is one optimizer's count of updates."""
    new = extended(old, grown_folder, "--training.learning_rate=0.0005", "--training.n_epochs=7")
    assert run(settings_of(f"--resume={new}", "--training.n_epochs=2")) == new
    assert "epoch 0  validation" in capsys.readouterr().err
    report = report_of(new)
    assert (report["training"]["epochs"], report["dataset"]["items"]) == (2, 10)
    assert load_config(new / "config.toml").training.learning_rate == 0.0005
    (newest,) = new.glob(f"checkpoints/step-{report['training']['steps']:09d}")
    updates = json.loads((newest / "facts.json").read_text())["state"]["updates"]
    assert updates == report_of(old)["training"]["steps"] + report["training"]["steps"]


def test_weights_that_training_makes_worse_are_not_lost(
    old: Path, grown_folder: Path, log_config: Settings, monkeypatch: Patch, capsys: Capture
) -> None:
    """Validated first are those of the extended model; as `run.init_from` the old ones are refused."""
    way = f"bert4rec extend {old} {grown_folder}"
    with pytest.raises(SettingsError, match=rf"^run\.init_from: [^\n]*{way}$"):
        run(log_config(**{"run.init_from": str(old), "data.dataset_dir": str(grown_folder)}))
    leave_group()
    new, ndcgs = extended(old, grown_folder), (0.9, 0.8, 0.7)
    measured = Mock(side_effect=[{"full": {"users": 9, "HR@10": 1.0, "NDCG@10": ndcg}} for ndcg in ndcgs])
    monkeypatch.setattr("bert4rec.evaluation.evaluator.Evaluator.validation_metrics", measured)
    capsys.readouterr()
    run(settings_of(f"--resume={new}", "--training.n_epochs=3"))
    training = report_of(new)["training"]
    assert (training["best_epoch"], "warning: " in capsys.readouterr().err) == (0, True)
    assert steps(new) == [0, training["steps"] * 2 // 3, training["steps"]]
    assert (new / "checkpoints" / "best").resolve().name == "step-000000000"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "DATASET"), (["no/where"], "no/where: "), (["{same}"], "{same}: .*{run}"),
        (["{other}"], "{other}: .*{run}.* 8 .*--data.extends"),
        (["{new}", "--model.embed_dim=32"], "--model.embed_dim=32: "),
        (["{new}", "--training.optimizer=sgd"], "--training.optimizer=sgd: "),
        (["{new}", "--preprocessing.split=none"], "--preprocessing.split=none: "),
        (["{new}", "--config=x.toml"], "--config: "), (["{new}", "--training.n_epoch=3"], "training.n_epoch"),
    ],
)  # fmt: skip
def test_one_line_for_what_cannot_be(
    trained: Path, log_folder: Path, grown_folder: Path, tmp_path: Path, capsys: Capture,
    options: list[str], problem: str,
) -> None:  # fmt: skip
    other = ""
    if "{other}" in " ".join(options):
        other = str(prepare_log(tmp_path, {user: [item + 3 for item in range(8)] for user in range(9)}))
    names = {"same": log_folder, "new": grown_folder, "other": other, "run": trained}
    capsys.readouterr()
    assert main(["extend", str(trained), *(option.format(**names) for option in options)]) == 2
    error = capsys.readouterr().err
    assert re.search(problem.format(**names), error)
    assert error.count("\n") == 1
    assert [path.name for path in trained.parent.iterdir()] == ["run"]


def test_what_cannot_be_read_leaves_nothing(old: Path, grown_folder: Path, tmp_path: Path, capsys: Capture) -> None:
    def refusal(path: Path) -> str:
        capsys.readouterr()
        assert main(["extend", str(path), str(grown_folder)]) == 2
        return capsys.readouterr().err

    assert refusal(tmp_path).startswith(f"error: {tmp_path}: ")
    best = old / "checkpoints" / "best"
    edit_facts(best, lambda facts: facts.update(facts_version=1))
    assert re.search(f"{best.resolve()}: .*version .* 1", refusal(old))
    edit_facts(best, lambda facts: facts.update(facts_version=METADATA_VERSION))
    flip(next(best.glob("*.distcp")), 1000)
    assert re.search(f"error: {best.resolve()}: .*checksum", refusal(old))
    assert [path.name for path in old.parent.iterdir()] == ["run"]


@pytest.mark.long
def test_targets_that_a_run_has_trained_on_are_counted(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    """Only in a dataset that was split anew; one that extends that of the run has none, wherever that one is."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(2)
    rows = [f"{user},{draw.randrange(9)},{1_600_000_000 + at}" for at in range(9) for user in range(30)]
    for name, n_rows in (("old", 240), ("new", 250)):  # ten of the users have a new row
        Path(f"{name}.csv").write_text("\n".join(["user,item,time", *rows[:n_rows]]) + "\n")
    sample = ["--validation-users=12", "--preprocessing.n_eval_negatives=1"]
    assert main(["prepare", "old.csv", *sample]) == 0
    assert main(["prepare", "new.csv", *sample, "--seed=5", "--out=data/anew"]) == 0
    assert main(["prepare", "new.csv", "--data.extends=data/old"]) == 0
    small = {key: value for key, value in SMALL.items() if not key.startswith(("data.", "preprocessing."))}
    train(small | {"training.n_epochs": 1, "run.name": "run"}, dataset="data/old")

    def evaluated(dataset: str, output: str = "first") -> tuple[Any, str]:
        capsys.readouterr()
        assert main(["evaluate", "runs/run", dataset, f"--output={dataset}-{output}"]) == 0
        report = json.loads(Path(f"{dataset}-{output}", "report.json").read_text())
        return report["evaluation"].get("trained_targets", "absent"), capsys.readouterr().out

    old, anew = (pl.DataFrame(load_from_disk(f"data/{name}/histories").to_list()) for name in ("old", "anew"))
    users = {n: id_table(Path(f"data/{n}"), "users").select("user", "original") for n in ("old", "anew")}
    old, anew = old.join(users["old"], on="user"), anew.join(users["anew"], on="user").filter(pl.col("validation") >= 0)
    both = anew.join(old, on="original", suffix="_old")
    n_trained = len(both.filter(pl.col("validation") < pl.col("n_train_old")))
    assert 0 < n_trained < 12
    counts, said_of_anew = evaluated("data/anew")
    assert counts == {"validation": {"users": n_trained, "of": 12}, "test": {"users": 0, "of": 30}}
    counts, said = evaluated("data/new")
    assert counts == {"validation": {"users": 0, "of": 12}, "test": {"users": 0, "of": 30}}
    assert ("trained on)" in said_of_anew, "trained on)" in said) == (True, False)
    assert evaluated("data/old")[0] == "absent"
    Path("data/old").rename("data/moved")
    assert evaluated("data/new", "again")[0] == "absent"


@pytest.fixture(scope="module")
def featured(featured_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of 2 epochs in runs/, its dataset with item features in data/, and files of items.

    Backward updates the item table and those of two features, each with an optimizer state of its own.
    """
    place = tmp_path_factory.mktemp("featured")
    shutil.copytree(featured_folder, place / "data" / "log")
    small = {key: value for key, value in SMALL.items() if not key.startswith(("data.", "preprocessing."))}
    settings = small | {
        "model.kind": "sasrec", "run.name": "run", "parallelism.device": "cpu", "model.feature_tables_from": 4,
        "parallelism.mode": "dmp", "parallelism.sharding_type": "column_wise",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        spare(patch)
        train(settings, dataset="data/log")
    old = pl.read_parquet(featured_folder.parent / "items.parquet")
    new = old[:4].with_columns(item=pl.Series([3, 40, 31, 35]), brand=pl.Series(["b", "unseen", "a", None]))
    new.write_parquet(place / "new.parquet")
    pl.concat([old, new[1:]]).write_parquet(place / "all.parquet")
    return place


@pytest.fixture
def place(featured: Path, tmp_path: Path, monkeypatch: Patch) -> Path:
    """A copy of it, which is the current folder."""
    monkeypatch.chdir(shutil.copytree(featured, tmp_path / "place", symlinks=True))
    return Path()


@pytest.mark.long
def test_a_file_of_new_items_is_enough(place: Path, featured_folder: Path, capsys: Capture) -> None:
    """All is that of a run which is extended by a preparation with these items."""
    before = files_of(place)
    capsys.readouterr()
    assert main(["extend", "runs/run", "--items=new.parquet"]) == 0
    assert "  bert4rec recommend runs/run-2 --all '--where=train_count = 0'\n" in capsys.readouterr().out
    assert before.items() <= files_of(place).items()
    log = featured_folder.parent / "log.csv"
    options = ["--preprocessing.n_eval_negatives=10", "--preprocessing.validation_users=20", "--data.extends=data/log"]
    assert main(["prepare", str(log), "--items=all.parquet", "--out=data/same", *options]) == 0
    assert main(["extend", "runs/run", "data/same", "--run.name=same"]) == 0
    old, new, same = (find_source(Path("runs", name)).tensors() for name in ("run", "run-2", "same"))
    assert [*new] == [*same]
    assert all(torch.equal(new.read(name), same.read(name)) for name in new)
    assert torch.equal(new.read(MODEL_PREFIX + TABLE)[:28], old.read(MODEL_PREFIX + TABLE))
    lists = [load(Path("runs", name)).recommend([[1, 2, 3], [7]], 31) for name in ("run-2", "same")]
    assert lists[0] == lists[1]
    assert {40, 31, 35} <= {each.item for each in lists[0][0]}


def test_commands_take_a_run_with_new_items(place: Path, capsys: Capture) -> None:
    assert main(["extend", "runs/run", "--items=new.parquet"]) == 0
    capsys.readouterr()
    assert main(["recommend", "runs/run-2", "--user=1", "--where=train_count = 0", "--top=9"]) == 0
    said = capsys.readouterr().out
    assert all(re.search(rf"\b{item}\b", said) for item in (25, 26, 27, 40, 31, 35))
    commands = ["similar runs/run-2 40", "evaluate runs/run-2", "export runs/run-2 --format=vectors"]
    assert [main(command.split()) for command in [*commands, "check data/log-2"]] == [0, 0, 0, 0]
    shutil.move("data/log-2", "data/moved")
    shutil.copy("new.parquet", "more.parquet")
    pl.read_parquet("new.parquet")[:1].with_columns(item=pl.lit(50)).write_parquet("more.parquet")
    assert main(["extend", "runs/run-2", "data/moved", "--items=more.parquet", "--name=again"]) == 0
    assert load(Path("runs/again")).recommend([[40, 50]], 1)
    assert json.loads(Path("data/moved-2/metadata.json").read_text())["items"] == 32
    assert run(settings_of("--resume=runs/again", "--training.n_epochs=1")) == Path("runs/again")


def test_a_dataset_with_other_features_is_refused(place: Path, featured_folder: Path, capsys: Capture) -> None:
    table = pl.read_parquet(featured_folder.parent / "items.parquet")
    table.with_columns(brand=pl.col("brand").replace({"a": "z"})).write_parquet("other.parquet")
    options = ["--preprocessing.n_eval_negatives=10", "--preprocessing.validation_users=20", "--out=data/other"]
    assert main(["prepare", str(featured_folder.parent / "log.csv"), "--items=other.parquet", *options]) == 0
    before = files_of(place)
    training = ["train", "data/other", "--model=sasrec", "--run.init_from=runs/run"]
    for command in (["extend", "runs/run", "data/other"], training):
        capsys.readouterr()
        assert main(command) == 2
        assert "item features" in capsys.readouterr().err.splitlines()[-1]
        assert files_of(place) == before


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--items=none.csv"], "none.csv: "), (["--items=bad.csv"], "bad.csv, line 3: "),
        (["--items=known.parquet"], "known.parquet: "), (["--items=new.parquet", "--training.n_epoch=3"], "n_epoch"),
        (["--items=new.parquet", "--data.path=x.csv"], "--data.path=x.csv: "),
        (["--items=new.parquet", "--data.dataset_dir=runs"], "--data.dataset_dir=runs: "),
        (["data/none", "--items=new.parquet"], "data/none: "), (["{other}", "--items=new.parquet"], "--items=FILE"),
    ],
)  # fmt: skip
def test_new_items_that_cannot_be_added_leave_nothing(
    place: Path, log_folder: Path, capsys: Capture, words: list[str], named: str
) -> None:
    Path("bad.csv").write_text("item,brand,tags,price\n31,a,t1,2\n32,b\n")
    pl.read_parquet("all.parquet")[:2].write_parquet("known.parquet")
    before = files_of(place)
    capsys.readouterr()
    assert main(["extend", "runs/run", *(word.format(other=log_folder) for word in words)]) == 2
    assert named in capsys.readouterr().err.splitlines()[-1]
    assert files_of(place) == before


def test_a_run_that_cannot_be_written_or_knows_no_features_leaves_no_dataset(
    place: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    before = files_of(place)
    with monkeypatch.context() as patch:
        error = OSError(28, "No space left on device", "checkpoint")
        patch.setattr("bert4rec.checkpoint.store._describe", Mock(side_effect=error))
        assert main(["extend", "runs/run", "--items=new.parquet"]) == 2
    assert files_of(place) == before
    assert [*Path("data").glob("[!.]*")] == [Path("data/log")]
    metadata = Path("data/log/metadata.json")
    metadata.write_text(metadata.read_text().replace('"fingerprint": "', '"fingerprint": "0'))
    assert main(["extend", "runs/run", "--items=new.parquet"]) == 2
    assert "data/log: " in capsys.readouterr().err
    edit_facts(Path("runs/run/checkpoints/best"), lambda facts: facts["config"]["model"].update(item_features=False))
    assert main(["extend", "runs/run", "--items=new.parquet"]) == 2
    assert "no item features" in capsys.readouterr().err
