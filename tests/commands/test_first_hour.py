"""The commands of the first hour, typed as the README has them: a log, a model, recommendations with titles."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

from bert4rec.__main__ import main
from tests.fixture_types import Capture, Patch

N = 120  # rows
MOMENTS = [datetime(2026, 3, 1, tzinfo=UTC) + timedelta(minutes=10 * row) for row in range(N)]
LOG = {
    "customer": [f"c-{row % 12}" for row in range(N)],
    "sku": [f"SKU-{(row * 7 + row // 12) % 30}" for row in range(N)],
    "at": MOMENTS,
    "title": [f"Thing {(row * 7 + row // 12) % 30}" for row in range(N)],
}
SMALL = ["--epochs=1", "--embed-dim=8", "--model.ffn_dim=8", "--model.n_layers=1", "--model.max_len=8"]


def test_three_commands_and_a_file_of_histories_with_the_logs_own_columns(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    pl.DataFrame(LOG).write_csv("log.csv", datetime_format="%Y-%m-%dT%H:%M:%S")
    assert main(["prepare", "log.csv", "--preprocessing.n_eval_negatives=2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "next: bert4rec train data/log"
    assert main(["train", "data/log", *SMALL]) == 0
    *_, report, following = capsys.readouterr().out.splitlines()
    assert report == "report: runs/log/report.html"
    assert following.startswith("next: bert4rec recommend runs/log --user c-")
    assert main(following.split()[2:]) == 0
    user, *best = capsys.readouterr().out.splitlines()
    assert user.startswith("c-")
    assert len(best) == 10
    assert all(" Thing " in line for line in best)

    newest_first = {"customer": ["z", "z"], "sku": ["SKU-7", "SKU-14"], "at": [MOMENTS[1], MOMENTS[0]]}
    pl.DataFrame(newest_first).write_csv("new.csv", datetime_format="%Y-%m-%dT%H:%M:%S")
    assert main(["recommend", "runs/log", "--histories=new.csv", "--top=1"]) == 0
    by_file = capsys.readouterr().out
    assert main(["recommend", "runs/log", "--items=SKU-14,SKU-7", "--top=1"]) == 0
    assert f'"{capsys.readouterr().out.split()[1]}"' in by_file
