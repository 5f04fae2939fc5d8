"""A run with item features recommends what its evaluation ranked, cold items included, without reading a feature."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bert4rec import load, train
from bert4rec.__main__ import main
from bert4rec.serving.export import export
from bert4rec.serving.load import find_source
from tests.conftest import SMALL


@pytest.fixture(scope="module", params=[("sasrec", 1_000_000), ("bert4rec", 1_000_000), ("sasrec", 4), ("sasrec", 1)])
def run(request: Any, featured_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    small = {key: value for key, value in SMALL.items() if not key.startswith(("data.", "preprocessing."))}
    kind, tables_from = request.param
    settings = small | {"model.kind": kind, "model.feature_tables_from": tables_from, "run.dir": str(place)}
    settings["training.n_epochs"] = 2
    return train({**settings, "evaluation.seen_items": "leave_out"}, dataset=featured_folder).folder


def test_it_recommends_what_it_has_ranked(
    run: Path, featured_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = export(find_source(run), tmp_path / "package", ["safetensors"], k=5, leaves_out_seen=True)
    table = pl.read_parquet(featured_folder / "items.parquet").sort("item")
    originals = table["original"].to_list()
    file = next((featured_folder / "histories").glob("*.arrow"))
    histories = {row["user"]: row for row in pl.read_ipc_stream(file).iter_rows(named=True)}
    ranks = pl.read_parquet(run / "ranks-test.parquet")
    known = [
        [originals[item] for item in histories[user]["items"][: histories[user]["test"]]] for user in ranks["user"]
    ]
    lists = load(run).recommend(known, 28)
    found = [
        1 + [each.item for each in best].index(originals[target])
        for best, target in zip(lists, ranks["target"], strict=True)
    ]
    assert found == ranks["full"].to_list()
    assert load(package).recommend(known, 28) == lists
    cold = set(table.filter(pl.col("count") == 0)["original"])
    assert len(cold) == 3
    assert cold <= {each.item for best in lists for each in best}
    assert {each.item for each in load(run).similar([27], 27)[0]} == {*originals} - {27}
    monkeypatch.setattr("bert4rec.checkpoint.run_folder.Trained.dataset", tmp_path / "gone")
    assert load(run).recommend(known, 28) == lists


def test_an_evaluation_reads_the_features_again(run: Path, tmp_path: Path) -> None:
    assert main(["evaluate", str(run), f"--output={tmp_path / 'again'}"]) == 0
    reports = [json.loads((folder / "report.json").read_text()) for folder in (run, tmp_path / "again")]
    assert reports[0]["test"] == reports[1]["test"]
