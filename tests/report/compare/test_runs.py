"""What of a run can be read, and what is said where it cannot."""

import json
from pathlib import Path

import pytest

from bert4rec.report.compare.runs import read_run
from bert4rec.runtime.errors import DataError
from tests.report.compare.run_folders import make_run


def test_a_run_and_an_evaluation_in_it(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", [1, 2], settings={"model.kind": "sasrec"})
    run = read_run(folder)
    assert run.settings == {"run.name": "a", "training.seed": 1, "model.kind": "sasrec"}
    assert (run.seed, run.fingerprint) == (1, "f1")
    assert run.curve == [(1.0, {"NDCG@10": 0.1}), (2.0, {"NDCG@10": 0.2})]
    (folder / "evaluation").mkdir()
    (folder / "evaluation" / "report.json").write_text(json.dumps({"dataset": {"fingerprint": "f2"}}))
    evaluation = read_run(folder / "evaluation")
    assert (evaluation.settings, evaluation.fingerprint, evaluation.curve) == (run.settings, "f2", [])
    alone = tmp_path / "alone"
    (folder / "evaluation").rename(alone)
    assert read_run(alone).settings == {}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("report.json", None, "no finished run (it has no report.json); name the folder of one"),
        ("report.json", "{", "report.json: cannot be read: Expecting property name"),
        ("report.json", "[]", "report.json: cannot be read: it does not name its dataset"),
        ("report.json", '{"dataset": {}}', "report.json: does not name its dataset, so that it cannot be compared"),
        ("config.toml", "seed", "config.toml: cannot be read: Expected '='"),
        ("config.toml", "seed = 1", "config.toml: cannot be read: 'int' object has no attribute"),
        ("metrics.jsonl", '{"kind": "validation", "step": 1, "full": {}}', "metrics.jsonl: cannot be read: 'epoch'"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    folder = make_run(tmp_path / "a", [1, 2])
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(DataError) as caught:
        read_run(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
