"""An evaluation on a dataset with items that the model does not know, and without some that it knows."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bert4rec import load
from bert4rec.__main__ import main
from bert4rec.checkpoint.run_folder import find_trained
from bert4rec.commands.evaluate import settings_of
from bert4rec.dataset.runs import CATALOGUE
from bert4rec.report.summary import unknown_items
from bert4rec.runtime.errors import DataError
from bert4rec.serving.export import export
from bert4rec.serving.load import find_source
from bert4rec.training.evaluate import Evaluation, evaluate
from tests.checks import one_line
from tests.conftest import BY_HAND, LOG, leave_group, long, prepare_log, train_alone
from tests.fixture_types import Capture, Patch
from tests.runs import report_of

pytestmark = pytest.mark.usefixtures("alone")

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


def evaluated(model: Path, dataset: Path, output: Path, *options: str) -> Evaluation:
    trained = find_trained(model)
    return evaluate(settings_of(trained, [str(dataset), *options]), trained, output)


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


@pytest.mark.parametrize("changes", [{}, {"model.times": "history"}, long({"model.kind": "sasrec"})], ids=str)
def test_ranks_are_those_of_a_written_out_reference(
    old: Path, log_folder: Path, other_folder: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    model = trained_on(log_folder, tmp_path / "runs", **changes) if changes else old
    found = evaluated(model, other_folder, tmp_path / "out")
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


def test_the_report_of_a_run_or_package_counts_unknown(old: Path, other_folder: Path, tmp_path: Path) -> None:
    export(find_source(old), tmp_path / "package", ["safetensors"], k=10, leaves_out_seen=True)
    of_run, of_package = (evaluated(path, other_folder, tmp_path / "a") for path in (old, tmp_path / "package"))
    assert rows_of(of_run.folder) == rows_of(of_package.folder)
    for report in (of_run.report, of_package.report):
        assert report["evaluation"]["unknown"] == {
            "items": {"items": 2, "of": 8},
            "targets": {"validation": {"users": 1, "of": 7}, "test": {"users": 2, "of": 7}},
            "histories": {"validation": {"users": 1, "of": 7}, "test": {"users": 1, "of": 7}},
        }
        assert report["test"]["full"]["users"] == 7
        assert unknown_items(report)
    assert unknown_items(report_of(old)) == ""


def test_unknown_items_are_in_no_list(old: Path, other_folder: Path, tmp_path: Path) -> None:
    trained = find_trained(old)
    found = evaluate(settings_of(trained, [str(other_folder)]), trained, tmp_path / "out", lists="parquet")
    lists = pq.read_table(found.folder / "lists-test.parquet").to_pydict()
    assert {item for items in lists["items"] for item in items} == {1, 2, 3, 4, 5, 6}
    assert [user for user, items in zip(lists["user"], lists["items"], strict=True) if not items] == ["h"]


def test_baselines_are_those_of_the_dataset(old: Path, other_folder: Path, tmp_path: Path) -> None:
    old_metrics = evaluated(old, other_folder, tmp_path / "a").report
    own_metrics = report_of(trained_on(other_folder, tmp_path / "runs"))
    for name in ("popularity_baseline", "baselines"):
        assert old_metrics[name] == own_metrics[name]


def test_an_old_run_whose_dataset_is_gone(
    old: Path, grown_folder: Path, other_folder: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """A run has links to its items; without them, a dataset that extends that of the run needs no map of ids."""
    grown, other = (rows_of(evaluated(old, one, tmp_path / "a").folder) for one in (grown_folder, other_folder))
    monkeypatch.setattr("bert4rec.checkpoint.run_folder.Trained.dataset", tmp_path / "gone")
    assert rows_of(evaluated(old, other_folder, tmp_path / "b").folder) == other
    bare = Path(shutil.copytree(old, tmp_path / "bare", symlinks=True))
    shutil.rmtree(bare / CATALOGUE)
    assert rows_of(evaluated(bare, grown_folder, tmp_path / "b").folder) == grown
    (tmp_path / "strange").mkdir()
    strange = prepare_log(tmp_path / "strange", {user: [item + 100 for item in items] for user, items in LOG.items()})
    for model, dataset, named in ((bare, other_folder, tmp_path / "gone"), (old, strange, "")):
        with pytest.raises(DataError, match=f"{dataset}: .*{named}"):
            evaluated(model, dataset, tmp_path / "c")
        leave_group()


def test_a_dataset_that_was_made_again_with_other_content_is_measured_only_by_name(
    old: Path, log_folder: Path, other_folder: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("bert4rec.checkpoint.run_folder.Trained.dataset", other_folder)
    trained = find_trained(old)
    with one_line(f"{other_folder}: ", f"evaluate {old} {other_folder}"):
        settings_of(trained, [])
    for folder, is_another in ((other_folder, True), (log_folder, False)):
        about = evaluated(old, folder, tmp_path / "out").report["evaluation"]
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
