"""An evaluation gives the figures of the run's report, exactly, however the model is placed; and the ranks of all."""

import contextlib
import csv
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch.distributed as dist

import preprocessing
from bert4rec import load
from bert4rec.checkpoint.run_folder import Trained, find_trained
from bert4rec.commands.evaluate import settings_of
from bert4rec.config.tables import Config
from bert4rec.evaluation import ranker
from bert4rec.evaluation.evaluator import Evaluator
from bert4rec.report.figures import SPLITS
from bert4rec.runtime.errors import SettingsError, UserError
from bert4rec.serving.export import export
from bert4rec.serving.load import find_source
from bert4rec.sharding.optimizer import Optimizers
from bert4rec.training import evaluate as evaluation
from bert4rec.training.evaluate import Evaluation, evaluate
from bert4rec.training.run import run
from tests.conftest import BY_HAND, LOG, SMALL, leave_group, train_alone
from tests.fixture_types import Patch, Settings
from tests.folders import remove_targets
from tests.runs import flip, in_step, report_of

pytestmark = pytest.mark.usefixtures("alone")


def evaluated(path: Path, output: Path, *options: str) -> Evaluation:
    trained = find_trained(path)
    return evaluate(settings_of(trained, options), trained, output)


@pytest.fixture
def says(caplog: pytest.LogCaptureFixture) -> Callable[..., bool]:
    """Whether a line of the log has all of some words."""
    logging.getLogger("bert4rec").propagate = True
    return lambda *words: any(all(str(word) in line for word in words) for line in caplog.messages)


def figures(report: dict[str, Any]) -> dict[str, Any]:
    names = (*SPLITS, "baselines", "intervals", "slices", "protocols")
    return {name: report[name] for name in names if name in report}


def assert_ranks_give(folder: Path, report: dict[str, Any]) -> None:
    """HR@10, NDCG@10 and MRR by written-out arithmetic over the files, to the last digits."""
    for split in ("validation", "test"):
        rows = pq.read_table(folder / f"ranks-{split}.parquet").to_pydict()
        for protocol in ("full", "popular", "uniform"):
            ranks = np.array([rank or np.inf for rank in rows[protocol] if rank is not None])  # 0: missed
            found = report[split][protocol]
            assert found["users"] == len(ranks)
            assert found["HR@10"] == np.mean(ranks <= 10)
            assert found["NDCG@10"] == pytest.approx(np.mean(np.where(ranks <= 10, 1 / np.log2(ranks + 1), 0)))
            assert found["MRR"] == pytest.approx(np.mean(1 / ranks))
        assert report["seen_items"] == "keep" or not any(np.array(rows["is_repeated"]) & (np.array(rows["full"]) > 0))


def evaluate_on_a_pool(config: Config, trained: Trained, output: Path) -> tuple[dict[str, Any], Path | None]:
    """A whole evaluation on the processes of the pool, which have their group already."""
    store = dist.PrefixStore(str(output), dist.distributed_c10d._get_default_store())
    with (
        mock.patch.object(evaluation, "rendezvous", return_value=(store, dist.get_rank(), dist.get_world_size())),
        mock.patch.object(evaluation, "process_group", return_value=contextlib.nullcontext()),
    ):
        found = evaluate(config, trained, output)
    return found.report, found.folder


def test_the_figures_of_a_sharded_bert4rec(made: Path, tmp_path: Path, says: Callable[..., bool]) -> None:
    report = report_of(made)
    for options in ([], ["--mode=ddp", "--evaluation.per_device_eval_batch_size=7"]):
        found = evaluated(made, tmp_path / "out", *options)
        assert figures(found.report) == figures(report)
        assert report_of(found.folder) == found.report
        assert says(made / "report.json", "240")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out-2"}
    names = {"ranks-test.parquet", "ranks-validation.parquet", "report.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    for name in names - {"report.json"}:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "out-2" / name).read_bytes()
    assert_ranks_give(tmp_path / "out", report)
    training_keys = ("training", "sharding", "plan", "hits_by_rank", "warnings", "fallback")
    same = {key: value for key, value in report.items() if key not in training_keys}
    assert {key: report_of(tmp_path / "out")[key] for key in same} == same


@pytest.mark.parametrize("is_package", [False, True])
def test_two_processes_give_the_same_figures(
    pools: Callable[[int], Any], made: Path, small_folder: Path, tmp_path: Path, is_package: bool
) -> None:
    trained, dataset = find_trained(made), list[str]()
    if is_package:
        export(find_source(made), tmp_path / "package", ["safetensors"], k=10, leaves_out_seen=True)
        trained, dataset = find_trained(tmp_path / "package"), [str(small_folder)]
        with pytest.raises(SettingsError):
            settings_of(trained, [])  # a package does not name its dataset
    found = pools(2).run(evaluate_on_a_pool, settings_of(trained, dataset), trained, tmp_path / "out")
    for report, _ in found:
        assert figures(report) == figures(report_of(made))
        assert report["world_size"] == 2
    assert [folder for _, folder in found] == [tmp_path / "out", None]
    assert_ranks_give(tmp_path / "out", report_of(made))


def test_the_figures_of_a_replicated_sasrec(log_config: Settings, tmp_path: Path, says: Callable[..., bool]) -> None:
    sampled = {"training.loss": "sampled_softmax", "training.n_train_negatives": 4, "model.kind": "sasrec"}
    folder = run(log_config(**sampled, **{"parallelism.mode": "ddp", "training.n_epochs": 1}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Optimizers, "__init__", None)  # an evaluation has no state of an optimizer
        for options in (["--evaluation.ks=[3]"], ["--mode=dmp", "--parallelism.sharding_type=column_wise"]):
            found = evaluated(folder, tmp_path / "out", *options)
    for n in (6 * (3 * 4 + 4), 6 * (3 * 8 + 12)):
        assert says(folder / "report.json", n)
    assert list(found.report["test"]) == ["full", "popular", "uniform"]
    assert figures(found.report) == figures(report_of(folder))
    assert_ranks_give(tmp_path / "out", report_of(folder))
    assert "HR@3" in report_of(tmp_path / "out")["test"]["full"]


def test_other_weights_other_data_other_figures(whole: Path, tmp_path: Path, says: Callable[..., bool]) -> None:
    report, out, small = report_of(whole), tmp_path / "out", "--evaluation.protocols=['uniform']"
    evaluated(whole / "checkpoints" / "step-000000014", out, small)
    assert says(whole / "report.json", "other weights")
    alone = Path(shutil.copytree(whole / "checkpoints" / "best", tmp_path / "alone"))
    other = tmp_path / "by_time"  # other users and other targets, the same items
    options = [f"--{key}={value}" for key, value in (SMALL | {"preprocessing.split": "time"}).items()]
    assert preprocessing.main(["--config=config.toml", f"--data.dataset_dir={other}", *options]) == 0
    logging.getLogger("bert4rec").propagate = True  # which a preparation changes
    found = evaluated(alone, out, str(other))
    assert found.folder == tmp_path / "out-2"
    assert found.report["dataset"]["split"] == "time"
    assert found.report["test"]["full"]["users"] == len(pq.read_table(found.folder / "ranks-test.parquet"))
    assert figures(evaluated(whole, out, str(other)).report) == figures(found.report)
    assert says(whole / "report.json", "another dataset")
    report["test"]["uniform"]["HR@10"] = 2.0
    (whole / "report.json").write_text(json.dumps(report))
    value = evaluated(whole, out, small, "--evaluation.ks=[10]").report["test"]["uniform"]["HR@10"]
    assert says(whole / "report.json", f"HR@10 {value:.6g}, not 2")


def test_what_ends_early_leaves_nothing(whole: Path, small_folder: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    def assert_ends(status: int, start: object, *options: object) -> None:
        with pytest.raises(UserError) as caught:
            evaluated(whole, tmp_path / "x" / "out", "--evaluation.protocols=['uniform']", *map(str, options))
        leave_group()
        assert (caught.value.status, "\n" in str(caught.value)) == (status, False)
        assert str(caught.value).startswith(str(start))
        assert [*(tmp_path / "x").glob("*")] == []

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    nothing = Path(shutil.copytree(small_folder, tmp_path / "nothing"))
    remove_targets(nothing, "validation", "test")
    for dataset in (tmp_path, nothing):
        assert_ends(2, f"{dataset}: ", dataset)
    with monkeypatch.context() as patch:
        in_step(patch, ranker.Ranker, "_encode_batch", 2)
        assert_ends(143, "stopped by SIGTERM")
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "write_json", fail)
        assert_ends(1, tmp_path / "x" / "out")
    best = (whole / "checkpoints" / "best").resolve()
    flip(best / "__0_0.distcp", 1000)
    assert_ends(2, best)


def test_the_report_is_written_before_the_ranks(made: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """Ids take most of the memory: a process that the system ends there leaves its figures."""
    reports = []
    monkeypatch.setattr(Evaluator, "write_ranks", lambda _, folder, *__: reports.append(report_of(folder)))
    evaluated(made, tmp_path / "out", "--evaluation.protocols=['uniform']")
    assert reports == [report_of(tmp_path / "out")]


def test_settings_that_an_evaluation_cannot_change(whole: Path, tmp_path: Path) -> None:
    trained = find_trained(whole)
    for option in ("--model.embed_dim=32", "--preprocessing.split=time", "--training.n_epochs=9", "--run.dir=x"):
        with pytest.raises(SettingsError, match=f"^{option}: "):
            settings_of(trained, [option])
    with pytest.raises(SettingsError, match=r"^--config: "):
        settings_of(trained, ["--config=config.toml"])
    config = (whole / "config.toml").read_text()
    (whole / "config.toml").write_text(config.replace("embed_dim = 16", "embed_dim = 32"))
    assert settings_of(trained, []).model.embed_dim == 16  # that of the weights
    with pytest.raises(SettingsError, match="--lists"):  # which need the full catalogue
        evaluate(settings_of(trained, ['--evaluation.protocols=["popular"]']), trained, tmp_path / "x", lists="csv")


@pytest.fixture(scope="module")
def log_run(log_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_alone(log_folder, tmp_path_factory.mktemp("runs"), **BY_HAND, **{"training.n_epochs": 1})


@pytest.mark.parametrize("seen", ["leave_out", "keep"])
def test_the_lists_of_all_test_users_have_the_hits_of_the_report(log_run: Path, tmp_path: Path, seen: str) -> None:
    trained, ks = find_trained(log_run), [1, 3, 10]
    options = [f"--evaluation.seen_items={seen}", "--evaluation.ks=[1, 3, 10]"]
    files = {}
    for form in ("csv", "jsonl", "parquet"):
        evaluation = evaluate(settings_of(trained, options), trained, tmp_path / form, lists=form)
        files[form] = evaluation.folder / f"lists-test.{form}"
        leave_group()
    rows = [json.loads(line) for line in files["jsonl"].read_text().splitlines()]
    assert rows == pq.read_table(files["parquet"]).to_pylist()
    figures = evaluation.report["test"]["full"]
    for k in ks:
        hits = [row["target"] in row["items"][:k] for row in rows]
        assert sum(hits) / len(rows) == figures[f"HR@{k}"]
        assert hits == [row["rank"] is not None and row["rank"] <= k for row in rows]
    ranks = pq.read_table(evaluation.folder / "ranks-test.parquet")
    assert [row["rank"] or 0 for row in rows] == ranks["full"].to_pylist()
    assert [row["user"] for row in rows] == ranks["original_user"].to_pylist()
    table = list(csv.DictReader(files["csv"].open()))
    assert [[line[f"item_{n}"] for n in range(1, 11) if line[f"item_{n}"]] for line in table] == [
        list(map(str, row["items"])) for row in rows
    ]
    model = load(log_run)
    for row in rows:
        assert row["scores"] == sorted(row["scores"], reverse=True)
        (best,) = model.recommend([LOG[row["user"]][:-1]], 10, leave_out_seen=seen == "leave_out")
        if seen == "keep" or row["rank"]:
            assert [one.item for one in best] == row["items"]
            assert [one.score for one in best] == pytest.approx(row["scores"], abs=1e-5)
