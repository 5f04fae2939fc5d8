"""What the report of a run says beside its figures, and which figures it has."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert4rec.__main__ import main
from bert4rec.config.tables import Config
from bert4rec.training.run import run
from tests.conftest import BY_HAND, prepare_log

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the libraries about themselves
]

SPLITS = ("validation", "test")


def report_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


def test_repeated_targets_and_users_left_out_are_reported(
    log_config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(log_config(**{"training.n_epochs": 2, "training.eval_every_n_epochs": 1}))
    report, page = report_of(folder), (folder / "report.md").read_text()
    assert report["dataset"]["repeated_targets"] == {
        "validation": {"users": 2, "of": 6},
        "test": {"users": 3, "of": 6},
    }
    assert report["dataset"]["left_out"] == {"validation": {"users": 2, "of": 6}, "test": {"users": 2, "of": 6}}
    protocols = ["full", "popular", "uniform"]
    for name in ("test", "validation", "popularity_baseline"):
        assert list(report[name]) == protocols
        assert [report[name][protocol]["users"] for protocol in protocols] == [6, 4, 4]
        assert report[name]["full"]["HR@10"] == 1  # of eight items
    assert report["seen_items"] == "keep"
    assert report["popularity_baseline"]["full"]["MRR"] == pytest.approx((1 / 3 + 1 / 6 + 2 / 7 + 2 / 8) / 6)
    line = "test of 6 users, full catalogue: HR@10 1.0000, "
    assert f"\n{line}" in capsys.readouterr().out
    assert main(["report", str(folder)]) == 0
    printed = capsys.readouterr().out
    for heading in (
        "Full catalogue, seen items among them; 6 users",
        "Among 5 unseen items drawn uniformly; 4 of 6 users (left out: 2, with fewer than 5 unseen items)",
    ):
        assert f"\n{heading}\n" in printed
        assert f"\n{heading}\n" in page
    assert " Seen by their users before: 3 of 6 test targets (50.0 %), 2 of 6 validation targets (33.3 %). " in page
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    validations = [record for record in records if record["kind"] == "validation"]
    assert [set(record) for record in validations] == [{"kind", "step", "epoch", "full"}] * 2
    best = max(validations, key=lambda record: record["full"]["NDCG@10"])
    assert report["training"]["best_epoch"] == best["epoch"]


@pytest.mark.parametrize(("protocols", "reported"), [(["popular", "uniform"], []), (["uniform", "full"], ["full"])])
def test_a_protocol_for_nobody_is_absent(
    small_config: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    protocols: list[str], reported: list[str],
) -> None:  # fmt: skip
    too_many = {"preprocessing.n_eval_negatives": 7}
    folder = prepare_log(tmp_path, **too_many)
    report = report_of(
        run(
            small_config(
                **BY_HAND | too_many | {"data.dataset_dir": str(folder), "evaluation.protocols": protocols},
                **{"training.n_epochs": 1},
            )
        )
    )
    for name in ("test", "validation", "popularity_baseline"):
        assert list(report[name]) == reported
    line = "\nNo user has 7 unseen items: there is no ranking among sampled items.\n"
    assert capsys.readouterr().out.count(line) == (0 if reported else 1)
    assert main(["report", str(tmp_path / "runs" / "synthetic-dmp")]) == 0
    assert capsys.readouterr().out.count(line) == 1
