"""Runs of kinds that are not trained: the same folders, protocols and reports, and what they do not have."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bert4rec.__main__ import main
from bert4rec.config.kinds import KINDS, UNTRAINED
from bert4rec.config.load import load_config
from bert4rec.evaluation import ranker
from bert4rec.runtime.errors import DataError
from bert4rec.training.run import run
from tests.fixture_types import Capture, Patch, Settings
from tests.runs import in_step, interrupted, report_of

pytestmark = pytest.mark.usefixtures("alone")


def test_each_kind_has_the_figures_that_it_has_beside_a_trained_model(small_config: Settings, made: Path) -> None:
    trained = report_of(made)
    beside = trained["baselines"] | {"popularity": trained["popularity_baseline"]}
    kinds = {kind for kind in UNTRAINED if not KINDS[kind].needs_features}
    assert kinds == beside.keys()
    for kind in kinds:
        folder = run(small_config(**{"model.kind": kind}))
        report = report_of(folder)
        assert (folder.name, report["test"]) == (f"small-{kind}", beside[kind])
        for name in ("popularity_baseline", "best_possible", "dataset"):
            assert report[name] == trained[name]
        assert (report["kind"], "baselines" in report) == (kind, False)
        assert report["training"].items() >= {"epochs": 0.0, "steps": 0, "stopped_by": "nothing to train"}.items()
        assert load_config(folder / "config.toml").model.kind == kind
        (record,) = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert record == {"kind": "validation", "step": 0, "epoch": 0.0, "full": report["validation"]["full"]}
        ranks = pq.read_table(folder / "ranks-test.parquet")["full"].to_numpy()
        assert (ranks <= 10).mean() == report["test"]["full"]["HR@10"]
        assert not (folder / "checkpoints").exists()


def test_a_kind_that_needs_item_features_refuses_data_without(small_config: Settings) -> None:
    for changes in ({"model.kind": "content_neighbours"}, {"evaluation.baselines": ["content_neighbours"]}):
        with pytest.raises(DataError, match=next(iter(changes))):
            run(small_config(**changes))


def test_a_signal_leaves_nothing(small_config: Settings, monkeypatch: Patch) -> None:
    in_step(monkeypatch, ranker.Ranker, "_encode_batch", 1)
    config = small_config(**{"model.kind": "transition_graph"})
    interrupted(config)
    assert not Path(config.run.dir).exists()


def test_what_needs_a_trained_model_says_so(small_config: Settings, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "config.toml").write_text(small_config(**{"model.kind": "markov"}).to_toml())
    for words in (
        "recommend RUN --all", "similar RUN 3", "export RUN", "evaluate RUN", "extend RUN x", "train --resume=RUN",
        "train --model.kind=markov --run.init_from=RUN", "plan --config=RUN/config.toml --device=cpu --world-size=2",
    ):  # fmt: skip
        assert main(words.replace("RUN", str(tmp_path)).split()) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), 'model.kind = "markov"' in err) == ("", 1, True), words
