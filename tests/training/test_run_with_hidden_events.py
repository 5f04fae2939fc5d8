"""A log in which the answer is in the input, and what is measured once the events before a target are hidden."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from bert4rec import TimedHistory, load
from bert4rec.__main__ import main
from bert4rec.config.load import load_config
from bert4rec.dataset.check import check_dataset
from bert4rec.dataset.hidden import window_starts
from bert4rec.dataset.reader import open_dataset
from bert4rec.dataset.trained import count_trained
from bert4rec.evaluation.metrics import MISSED
from bert4rec.report.summary import advice, verdict
from bert4rec.training.run import run
from tests.conftest import leave_group
from tests.fixture_types import Capture
from tests.runs import report_of
from tests.shop import prepare_shop, write_shop

SIZES = {
    "model.embed_dim": 32, "model.ffn_dim": 64, "model.max_len": 50, "model.dropout": 0.1, "training.n_epochs": 1,
    "preprocessing.n_eval_negatives": 5,
}  # fmt: skip


def trained(folder: Path, place: Path, **changes: Any) -> Path:
    recipe = open_dataset(folder).metadata["preprocessing"]
    settings = {f"preprocessing.{key}": value for key, value in recipe.items()} | SIZES
    places = {"data.dataset_dir": str(folder), "run.dir": str(place / "runs")}
    run_folder = run(load_config(None, settings | places | changes))
    leave_group()
    return run_folder


@pytest.fixture(scope="module")
def open_shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset in which the views before a purchase are input."""
    return prepare_shop(tmp_path_factory.mktemp("open"))


@pytest.fixture(scope="module")
def hidden_shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset in which those of the same visit are hidden."""
    return prepare_shop(tmp_path_factory.mktemp("hidden"), **{"preprocessing.hide_before_target": "visit"})


def hit_rates(report: dict[str, Any]) -> dict[str, float]:
    found = {"model": report["test"]} | report.get("baselines", {})
    return {kind: metrics["full"]["HR@10"] for kind, metrics in found.items()}


@pytest.mark.usefixtures("alone")
def test_the_verdict_is_about_the_answer_while_it_is_in_the_input(
    open_shop: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["describe", str(open_shop)]) == 0
    assert "--preprocessing.hide_before_target=visit" in capsys.readouterr().out
    report = report_of(trained(open_shop, tmp_path, **{"model.kind": "markov"}))
    assert hit_rates(report)["model"] > 0.95
    assert report["answers_in_input"]["targets"] == report["answers_in_input"]["of"] == 300
    assert verdict(report).kind == "copies"
    assert advice(report) == ""
    assert len(report["slices"]["test"]["answer_in_input"]) == 1


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", ["bert4rec", "sasrec"])
def test_hidden_events_leave_honest_figures_which_recommendations_equal(
    hidden_shop: Path, tmp_path: Path, capsys: Capture, kind: str
) -> None:
    """And the time of a query decides what is hidden."""
    folder = trained(hidden_shop, tmp_path, **{"model.kind": kind})
    report, dataset = report_of(folder), open_dataset(hidden_shop, with_times=True)
    assert max(hit_rates(report).values()) < 0.7
    assert report["answers_in_input"]["targets"] == 0
    assert verdict(report).kind != "copies"
    assert main(["evaluate", str(folder), f"--output={tmp_path / 'again'}"]) == 0
    assert json.loads((tmp_path / "again" / "report.json").read_text())["test"] == report["test"]

    model, histories, split = load(folder), dataset.histories, dataset.splits["test"]
    rows = np.searchsorted(histories.users, split.users)
    places = histories.targets("test")[rows]
    whole = histories.read(rows, np.zeros_like(places), places)
    asked, ends = [], places.cumsum()
    instants = histories.values_at("times", rows, places)
    for end, n, at in zip(ends.tolist(), places.tolist(), instants.tolist(), strict=True):
        part = slice(end - n, end)
        events = [histories.kinds[event] for event in whole.events[part]]
        asked.append(TimedHistory(model.ids.of(whole.items[part].tolist()), whole.times[part].tolist(), at, events))
    best = [[one.item for one in top] for top in model.recommend(asked, dataset.n_items)]
    targets = model.ids.of(split.targets(np.arange(len(split))).tolist())
    ranks = pl.read_parquet(folder / "ranks-test.parquet")["full"].to_list()
    found = [top.index(target) + 1 if target in top else MISSED for top, target in zip(best, targets, strict=True)]
    assert found == ranks

    later = [one._replace(at=one.times[-1] + 10**6) for one in asked[:5]]
    without_times = [TimedHistory(one.items, events=one.events) for one in asked[:5]]
    assert model.recommend(later, 3) == model.recommend(without_times, 3) != model.recommend(asked[:5], 3)
    package = tmp_path / "package"
    assert main(["export", str(folder), f"--output={package}", "--format=safetensors"]) == 0
    assert load(package).recommend(asked[:5], 3) == model.recommend(asked[:5], 3)

    u1 = np.array([1])  # u0, u1, u10, …
    last, lists = int(histories.times(u1, np.array([0]), histories.lengths_at(u1))[-1]), []
    for at in ([], [f"--at={last}"]):
        capsys.readouterr()
        assert main(["recommend", str(folder), "--user", "u1", *at]) == 0
        lists.append(capsys.readouterr().out)
    assert lists[0] != lists[1]
    assert main(["recommend", str(folder), "--user", "u1", f"--at={last - 1}"]) == 2


@pytest.mark.parametrize("before", ["visit", "last_target", 2])
def test_the_folder_is_what_the_check_computes_and_evaluation_reads_the_inputs(tmp_path: Path, before: Any) -> None:
    folder = prepare_shop(tmp_path, **{"preprocessing.hide_before_target": before})
    check_dataset(folder)
    dataset = open_dataset(folder)
    histories, split = dataset.histories, dataset.splits["test"]
    every = np.arange(len(split))
    places = histories.targets("test")
    places = places[places >= 0]
    rows = np.searchsorted(histories.users, split.users)
    starts = np.zeros_like(places)
    times, events = histories.times(rows, starts, places + 1), histories.read(rows, starts, places + 1).events
    is_target = np.isin(events, histories.target_kinds)
    expected = window_starts(before, times, is_target, places + 1)[(places + 1).cumsum() - 1]
    expected -= (places + 1).cumsum() - places - 1
    assert split.lengths(every).tolist() == split.read(every).lengths.tolist() == expected.tolist()
    assert (expected < places).any()
    repeated = dataset.metadata["repeated_targets"]["test"]
    assert repeated == {"users": int(split.read(every).are_repeated().sum()), "of": len(split)}


def test_what_is_hidden_before_a_target_is_not_taken_for_the_target(tmp_path: Path) -> None:
    """The views before a held-out purchase are trained on, the purchase is not."""
    write_shop(tmp_path / "shop.csv")
    rows = pl.read_csv(tmp_path / "shop.csv").sort("time", maintain_order=True)
    rows.head(len(rows) * 2 // 3).write_csv(tmp_path / "old.csv")
    hides = {"preprocessing.hide_before_target": "visit"}
    old = prepare_shop(tmp_path, **hides | {"data.path": tmp_path / "old.csv", "data.dataset_dir": tmp_path / "old"})
    grown = open_dataset(prepare_shop(tmp_path, **hides | {"data.extends": old}))
    counts = count_trained(grown, old, np.arange(grown.n_items, dtype=np.int32))
    assert [counts[split]["users"] for split in ("validation", "test")] == [0, 0]


def test_a_repeat_has_the_kind_of_the_row_before(tmp_path: Path) -> None:
    folder = prepare_shop(tmp_path, **{"preprocessing.repeats": "first_in_a_row"})
    rows = pl.read_csv(tmp_path / "shop.csv")
    kept = json.loads((folder / "metadata.json").read_text())["events"]
    counts = dict(rows["event"].value_counts().iter_rows())
    assert kept["purchase"] == counts["purchase"]
    assert kept["view"] < counts["view"]
