"""Models that know times, from the dataset to recommendations."""

import json
import shutil
from pathlib import Path

import pytest

from bert4rec import TimedHistory, load
from bert4rec.__main__ import main
from bert4rec.checkpoint.run_folder import checkpoint_of, read_metadata
from bert4rec.runtime.errors import DataError
from bert4rec.training.build import knows_times
from bert4rec.training.run import run
from tests.conftest import leave_group, prepare_log
from tests.fixture_types import Capture, Settings
from tests.runs import report_of

SHORT = {"training.n_epochs": 1, "evaluation.baselines": []}


@pytest.mark.parametrize(
    ("kind", "times", "title", "formats"),
    [
        ("sasrec", "target", "SASRec with the target's time", "safetensors,pt2"),
        ("bert4rec", "history", "Bert4Rec with times", "safetensors"),
    ],
)
def test_from_the_dataset_to_recommendations(
    small_config: Settings, tmp_path: Path, capsys: Capture, kind: str, times: str, title: str, formats: str
) -> None:
    folder = run(small_config(**SHORT, **{"model.kind": kind, "model.times": times}))
    leave_group()
    report = report_of(folder)
    assert (report["model"], report["times"]) == (title, times)
    assert title in (folder / "report.md").read_text()
    assert main(["evaluate", str(folder), f"--output={tmp_path / 'again'}"]) == 0
    assert json.loads((tmp_path / "again" / "report.json").read_text())["test"] == report["test"]
    capsys.readouterr()
    assert main(["recommend", str(folder), "--user", "7"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 11
    assert main(["recommend", str(folder), "--items=1,2"]) == 0
    status = main(["recommend", str(folder), "--user", "7", "--at=2100-01-01"])
    assert status == (0 if times == "target" else 2)
    assert main(["export", str(folder), f"--output={tmp_path / 'package'}", f"--format={formats}"]) == 0
    history = TimedHistory([1, 2, 3], [10, 20, 30], at=95 if times == "target" else None)
    (package_list,), (run_list,) = (load(path).recommend([history], 3) for path in (tmp_path / "package", folder))
    assert [one.item for one in package_list] == [one.item for one in run_list]
    assert "TimedHistory(" in (tmp_path / "package" / "README.md").read_text()


def test_times_are_used_where_the_log_has_moved_and_where_the_weights_know_them(
    log_folder: Path, log_config: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also by a run that is gone on with, and in another log by a run that begins with the weights of this one."""
    moved = Path(shutil.copytree(log_folder, tmp_path / "moved"))
    about = json.loads((moved / "metadata.json").read_text())
    about["log"]["shift"] = {"since": 0, "column": "family", "values": {"boots": [0.28, 0.04], "hats": [0.1, 0.2]}}
    (moved / "metadata.json").write_text(json.dumps(about))
    settings = {**SHORT, "model.kind": "sasrec"}

    def times_of(folder: Path) -> str:
        leave_group()
        return str(read_metadata(checkpoint_of(folder))["config"]["model"]["times"])

    first = run(log_config(**settings, **{"data.dataset_dir": str(moved)}))
    assert times_of(first) == "history"
    assert 'model.times = "history": ' in caplog.text
    assert report_of(first)["times"] == "history"
    longer = run(
        log_config(**settings | {"data.dataset_dir": str(moved), "run.resume": str(first), "training.n_epochs": 2})
    )
    assert (longer, times_of(longer)) == (first, "history")
    begun = [log_config(**settings, **{"run.init_from": str(weights)}) for weights in (first, checkpoint_of(first))]
    assert all(map(knows_times, begun))
    assert times_of(run(begun[1])) == "history"
    assert times_of(run(log_config(**settings))) == "none"


def test_a_dataset_without_times_is_refused(log_config: Settings, tmp_path: Path) -> None:
    folder = prepare_log(tmp_path, **{"data.time_column": ""})
    config = log_config(**SHORT, **{"data.dataset_dir": str(folder), "model.times": "history"})
    with pytest.raises(DataError, match=str(tmp_path)):
        run(config)
    leave_group()
