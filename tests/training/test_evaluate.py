"""An evaluation gives the figures of the run's report, exactly, however the model is placed; also of other items."""

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
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch.distributed as dist

import preprocessing
from bert4rec import load
from bert4rec.__main__ import main
from bert4rec.checkpoint.run_folder import Trained, find_trained
from bert4rec.commands.evaluate import settings_of
from bert4rec.config.tables import Config
from bert4rec.dataset.runs import CATALOGUE
from bert4rec.evaluation import BEST_POSSIBLE, ranker
from bert4rec.evaluation.evaluator import Evaluator
from bert4rec.report.figures import SPLITS
from bert4rec.report.summary import unknown_items
from bert4rec.runtime.errors import DataError, SettingsError, UserError
from bert4rec.serving.export import export
from bert4rec.serving.load import find_source
from bert4rec.sharding.optimizer import Optimizers
from bert4rec.training import evaluate as evaluation
from bert4rec.training.evaluate import Evaluation, evaluate
from bert4rec.training.run import run
from tests.checks import one_line
from tests.conftest import BY_HAND, LOG, SMALL, leave_group, long, prepare_log, train_alone
from tests.fixture_types import Capture, Patch, Settings
from tests.folders import remove_targets
from tests.runs import edit_facts, flip, in_step, report_of

pytestmark = pytest.mark.usefixtures("alone")


def evaluated(path: Path, output: Path, *options: str, targets: str = "") -> Evaluation:
    trained = find_trained(path)
    return evaluate(settings_of(trained, options), trained, output, targets=targets)


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
        assert says(made / "report.json", "276")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out-2"}
    names = {"ranks-test.parquet", "ranks-validation.parquet", "report.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    for name in names - {"report.json"}:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "out-2" / name).read_bytes()
    assert_ranks_give(tmp_path / "out", report)
    training_keys = ("training", "sharding", "plan", "hits_by_rank", "warnings", "fallback")
    same = {key: value for key, value in report.items() if key not in training_keys}
    assert {key: report_of(tmp_path / "out")[key] for key in same} == same


@pytest.mark.parametrize("is_package", [long(False), True])
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
    for n in (7 * (3 * 4 + 4), 7 * (3 * 8 + 12)):
        assert says(folder / "report.json", n)
    assert list(found.report["test"]) == ["full", "popular", "uniform"]
    assert figures(found.report) == figures(report_of(folder))
    assert_ranks_give(tmp_path / "out", report_of(folder))
    assert "HR@3" in report_of(tmp_path / "out")["test"]["full"]


def test_other_weights_other_data_other_figures(whole: Path, tmp_path: Path, says: Callable[..., bool]) -> None:
    report, out, small = report_of(whole), tmp_path / "out", "--evaluation.protocols=['uniform']"
    checkpoints = whole / "checkpoints"
    other_step = next(path for path in checkpoints.glob("step-*") if path != (checkpoints / "best").resolve())
    evaluated(other_step, out, small)
    assert says(whole / "report.json", "other weights")
    alone = Path(shutil.copytree(whole / "checkpoints" / "best", tmp_path / "alone"))
    with one_line(f"{alone}: its scores need prior.safetensors"):
        evaluated(alone, out)
    leave_group()
    other = tmp_path / "by_time"  # other users and other targets, the same items
    options = [f"--{key}={value}" for key, value in (SMALL | {"preprocessing.split": "time"}).items()]
    assert preprocessing.main(["--config=config.toml", f"--data.dataset_dir={other}", *options]) == 0
    logging.getLogger("bert4rec").propagate = True  # which a preparation changes
    found = evaluated(whole / "checkpoints" / "best", out, str(other))
    assert found.folder == tmp_path / "out-2"
    assert found.report["dataset"]["split"] == "time"
    assert found.report["test"]["full"]["users"] == len(pq.read_table(found.folder / "ranks-test.parquet"))
    assert figures(evaluated(whole, out, str(other)).report) == figures(found.report)
    assert says(whole / "report.json", "another dataset")
    report["test"]["uniform"]["HR@10"] = 2.0
    (whole / "report.json").write_text(json.dumps(report))
    value = evaluated(whole, out, small, "--evaluation.ks=[10]").report["test"]["uniform"]["HR@10"]
    assert says(whole / "report.json", f"HR@10 {value:.6g}, not 2")


def test_other_targets_of_a_split_by_time(whole: Path, tmp_path: Path) -> None:
    """The figures are those of the ranks; the last of all targets of a user is its last."""
    other = tmp_path / "by_time"
    options = [f"--{key}={value}" for key, value in (SMALL | {"preprocessing.split": "time"}).items()]
    assert preprocessing.main(["--config=config.toml", f"--data.dataset_dir={other}", *options]) == 0
    tables = {}
    for which in ("last", "random", "successive"):
        report = evaluated(whole, tmp_path / which, str(other), targets=which).report
        assert (report["dataset"]["targets"], [*report["test"]], "validation" in report) == (which, ["full"], False)
        assert BEST_POSSIBLE not in report
        tables[which] = table = pl.read_parquet(tmp_path / which / "ranks-test.parquet")
        assert report["test"]["full"]["users"] == report["dataset"]["repeated_targets"]["test"]["of"] == len(table)
        assert report["test"]["full"]["HR@10"] == pytest.approx((table["full"] <= 10).mean())
    every = tables["successive"]
    assert len(every) > tables["last"]["user"].n_unique() == len(tables["last"]) == len(tables["random"])
    assert every.group_by("user", maintain_order=True).last().equals(tables["last"])
    with pytest.raises(UserError, match="split by time"):
        evaluated(whole, tmp_path / "x", targets="last")


def test_what_ends_early_leaves_nothing(whole: Path, small_folder: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    def assert_ends(status: int, start: object, *options: object) -> None:
        with pytest.raises(UserError) as caught:
            evaluated(whole, tmp_path / "x" / "out", "--evaluation.protocols=['uniform']", *map(str, options))
        leave_group()
        assert (caught.value.status, "\n" in str(caught.value)) == (status, False)
        assert str(caught.value).startswith(str(start))
        assert [*(tmp_path / "x").glob("*")] == []

    nothing = Path(shutil.copytree(small_folder, tmp_path / "nothing"))
    remove_targets(nothing, "validation", "test")
    for dataset in (tmp_path, nothing):
        assert_ends(2, f"{dataset}: ", dataset)
    with monkeypatch.context() as patch:
        in_step(patch, ranker.Ranker, "_encode_batch", 2)
        assert_ends(143, "stopped by SIGTERM")
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "write_json", mock.Mock(side_effect=OSError(28, "No space left on device")))
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
    """A run on the items 1 to 8 with a prior, whose weights six users would not choose."""
    changes = {"training.n_epochs": 1, "model.prior": ["transitions", "neighbours", "ease"]}
    folder = train_alone(log_folder, tmp_path_factory.mktemp("runs"), **BY_HAND, **changes)
    weights = {"transitions": [0.3], "neighbours": [0.2], "ease": [0.5, -0.4]}
    edit_facts(folder / "checkpoints/best", lambda facts: facts["state"].update(prior=weights))
    return folder


@pytest.mark.parametrize("seen", ["leave_out", long("keep")])
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
    assert model.prior
    for row in rows:
        assert row["scores"] == sorted(row["scores"], reverse=True)
        (best,) = model.recommend([LOG[row["user"]][:-1]], 10, leave_out_seen=seen == "leave_out")
        if seen == "keep" or row["rank"]:
            assert [one.item for one in best] == row["items"]
            assert [one.score for one in best] == pytest.approx(row["scores"], abs=1e-5)


def test_the_model_alone_is_that_of_a_run_without_a_prior(log_run: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="can only leave the prior out"):
        settings_of(find_trained(log_run), ["--model.prior=auto"])
    without, figures = tmp_path / "without", {}
    shutil.copytree(log_run, without, symlinks=True)
    edit_facts(without / "checkpoints/best", lambda facts: facts["state"].update(prior={}))
    cases = {"all": (log_run, []), "alone": (log_run, ["--model.prior=none"]), "none": (without, [])}
    for case, (folder, option) in cases.items():
        trained = find_trained(folder)
        result = evaluate(settings_of(trained, option), trained, tmp_path / case)
        figures[case] = result.report["test"], pq.read_table(result.folder / "ranks-test.parquet")["popular"]
        assert result.report["evaluation"].get("without_prior", False) is (case == "alone")
        leave_group()
    assert figures["alone"] == figures["none"] != figures["all"]


# Without the items 7 and 8. The model does not know 9 and 10: targets of g and k, and the whole history of h.
OTHER_LOG = {
    "a": LOG["a"],
    "b": LOG["b"],
    "e": [5, 6, 5, 4],
    "g": [1, 2, 3, 9],
    "h": [9, 10, 9, 1],
    "i": [9, 1, 10, 9, 2, 5],
    "k": [3, 4, 5, 6, 1, 2, 3, 10],
}


@pytest.fixture(scope="module")
def old(log_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the items 1 to 8."""
    return trained_on(log_folder, tmp_path_factory.mktemp("runs"))


def trained_on(dataset: Path, runs: Path, **changes: Any) -> Path:
    return train_alone(dataset, runs, **BY_HAND, **{"run.name": "run"}, **changes)


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset of `OTHER_LOG`, which numbers the items in its own way."""
    return prepare_log(tmp_path_factory.mktemp("other"), OTHER_LOG)


def rows_of(folder: Path | None, split: str = "test") -> list[dict[str, Any]]:
    return pq.read_table(folder / f"ranks-{split}.parquet").to_pylist()


def rank_by_sorting(model: Path, history: list[int], target: int, candidates: set[int]) -> int:
    """The rank of `target` among the `candidates` that the model knows, seen ones too; 0 where it is missed."""
    recommender = load(model)
    items = recommender.items
    known = [item for item in history if item in items.ids]
    if target not in items.ids or not known:
        return 0
    vectors = recommender.network.item_vectors
    (hidden,) = recommender.encode([known])
    scores = vectors[:, : len(hidden)] @ hidden + vectors[:, len(hidden) :].sum(1)  # the last column is the bias
    score = dict(zip(items.ids, scores.tolist(), strict=True))
    others = [item for item in candidates if item in score and item != target]
    return 1 + sum(score[item] > score[target] for item in others)


@pytest.mark.parametrize(
    "changes", [{}, long({"model.times": "history"}), long({"model.kind": "sasrec", "model.prior": "none"})], ids=str
)
def test_ranks_are_those_of_a_written_out_reference(
    old: Path, log_folder: Path, other_folder: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    model = trained_on(log_folder, tmp_path / "runs", **changes) if changes else old
    found = evaluated(model, tmp_path / "out", str(other_folder))
    candidates = {item for items in OTHER_LOG.values() for item in items}
    for split, last in (("test", 1), ("validation", 2)):
        rows = rows_of(found.folder, split)
        assert rows
        for row in rows:
            items = OTHER_LOG[row["original_user"]]
            history, target = items[:-last], items[-last]
            assert row["original_item"] == target
            if "model.times" not in changes:
                assert row["full"] == rank_by_sorting(model, history, target, candidates), row["original_user"]
            if row["full"] == 0:
                assert {row["popular"], row["uniform"]} <= {None, 0}
    assert {row["original_user"] for row in rows_of(found.folder) if row["full"] == 0} == {"g", "h", "k"}


@pytest.mark.parametrize("name", [long("old"), "log_run"])
def test_the_report_of_a_run_or_package_counts_unknown(
    name: str, other_folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run, package = request.getfixturevalue(name), tmp_path / "package"
    export(find_source(run), package, ["safetensors"], k=10, leaves_out_seen=True)
    of_run, of_package = (evaluated(path, tmp_path / "a", str(other_folder)) for path in (run, package))
    assert rows_of(of_run.folder) == rows_of(of_package.folder)
    for report in (of_run.report, of_package.report):
        assert report["evaluation"]["unknown"] == {
            "items": {"items": 2, "of": 8},
            "targets": {"validation": {"users": 1, "of": 7}, "test": {"users": 2, "of": 7}},
            "histories": {"validation": {"users": 1, "of": 7}, "test": {"users": 1, "of": 7}},
        }
        assert report["test"]["full"]["users"] == 7
        assert unknown_items(report)
    assert unknown_items(report_of(run)) == ""


def test_unknown_items_are_in_no_list(old: Path, other_folder: Path, tmp_path: Path) -> None:
    trained = find_trained(old)
    found = evaluate(settings_of(trained, [str(other_folder)]), trained, tmp_path / "out", lists="parquet")
    lists = pq.read_table(found.folder / "lists-test.parquet").to_pydict()
    assert {item for items in lists["items"] for item in items} == {1, 2, 3, 4, 5, 6}
    assert [user for user, items in zip(lists["user"], lists["items"], strict=True) if not items] == ["h"]


def test_baselines_are_those_of_the_dataset(old: Path, other_folder: Path, tmp_path: Path) -> None:
    old_metrics = evaluated(old, tmp_path / "a", str(other_folder)).report
    own_metrics = report_of(trained_on(other_folder, tmp_path / "runs"))
    for name in ("popularity_baseline", "baselines"):
        assert old_metrics[name] == own_metrics[name]


def test_an_old_run_whose_dataset_is_gone(
    old: Path, grown_folder: Path, other_folder: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """A run has links to its items; without them, a dataset that extends that of the run needs no map of ids."""
    grown, other = (rows_of(evaluated(old, tmp_path / "a", str(one)).folder) for one in (grown_folder, other_folder))
    monkeypatch.setattr("bert4rec.checkpoint.run_folder.Trained.dataset", tmp_path / "gone")
    assert rows_of(evaluated(old, tmp_path / "b", str(other_folder)).folder) == other
    bare = Path(shutil.copytree(old, tmp_path / "bare", symlinks=True))
    shutil.rmtree(bare / CATALOGUE)
    assert rows_of(evaluated(bare, tmp_path / "b", str(grown_folder)).folder) == grown
    (tmp_path / "strange").mkdir()
    strange = prepare_log(tmp_path / "strange", {user: [item + 100 for item in items] for user, items in LOG.items()})
    for model, dataset, named in ((bare, other_folder, tmp_path / "gone"), (old, strange, "")):
        with pytest.raises(DataError, match=f"{dataset}: .*{named}"):
            evaluated(model, tmp_path / "c", str(dataset))
        leave_group()


def test_a_dataset_that_was_made_again_with_other_content_is_measured_only_by_name(
    old: Path, log_folder: Path, other_folder: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("bert4rec.checkpoint.run_folder.Trained.dataset", other_folder)
    trained = find_trained(old)
    with one_line(f"{other_folder}: ", f"evaluate {old} {other_folder}"):
        settings_of(trained, [])
    for folder, is_another in ((other_folder, True), (log_folder, False)):
        about = evaluated(old, tmp_path / "out", str(folder)).report["evaluation"]
        assert about.get("trained_on") == (trained.metadata["fingerprint"] if is_another else None)


def test_the_old_and_the_extended_run_are_paired(
    old: Path, grown_folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    old = Path(shutil.copytree(old, tmp_path / "runs" / "run", symlinks=True))
    new, unknown = old.with_name("run-2"), "2 of 10 items"
    assert main(["extend", str(old), str(grown_folder)]) == 0
    for words, shown in (
        (["evaluate", str(old), str(grown_folder)], {unknown: True}), (["evaluate", str(new)], {unknown: False}),
        (["compare", str(old / "evaluation"), str(new / "evaluation"), "--all"], {"B − A": True, unknown: True}),
    ):  # fmt: skip
        assert main(words) == 0
        out = capsys.readouterr().out
        assert {text: text in out for text in shown} == shown
