"""A finished run, from Python."""

import json
import re
from pathlib import Path

import pytest

from bert4rec.inference.run import Run
from bert4rec.runtime.errors import DataError


def test_a_finished_run_says_what_it_found(made: Path) -> None:
    run = Run(str(made))
    assert run.folder == made
    assert run.report == json.loads((made / "report.json").read_text())
    assert run.metrics == run.report["test"]
    figures = f"HR@10 {run.metrics['full']['HR@10']:.4f}, NDCG@10 {run.metrics['full']['NDCG@10']:.4f}"
    assert repr(run).startswith(f"Run('{made}': test of 60 users, full catalogue: {figures} (popularity: ")
    records = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    assert run.history == records
    assert [(record["kind"], record["step"]) for record in run.history] == [
        ("train", 7), ("validation", 7), ("train", 14), ("validation", 14), ("train", 21), ("validation", 21),
    ]  # fmt: skip
    model = run.load()
    assert model.dataset == Path(re.findall(r'dataset_dir = "(.+)"', (made / "config.toml").read_text())[0])


def test_a_folder_that_is_no_finished_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^\S+: no finished run \(it has no report\.json\); name the folder of one$"):
        Run(tmp_path)
    (tmp_path / "report.json").write_text("{")
    with pytest.raises(DataError, match=r"^\S+report\.json: cannot be read: [^\n]+$"):
        Run(tmp_path)
