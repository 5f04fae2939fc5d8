"""What MLflow has of a run, where it is installed: pip install -r requirements-mlflow.txt."""

from pathlib import Path

import pytest

from bert4rec.report.trackers.mlflow import MLflow

mlflow = pytest.importorskip("mlflow")


@pytest.mark.filterwarnings("ignore")  # of the libraries about themselves
def test_parameters_metrics_and_files_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    (folder / "report.json").write_text("{}")
    settings = {f"table.key{number}": number for number in range(250)} | {"evaluation.ks": [1, 10]}
    tracker = MLflow(folder, settings)
    tracker.add(1, {"train/loss": 2.0})
    tracker.add(2, {"train/loss": 1.5, "validation/full/HR@10": 0.5})
    tracker.finish({"test/full/HR@10": 0.25}, [folder / "report.json"])
    tracker.close(is_finished=True)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("bert4rec").experiment_id])
    assert (run.info.run_name, run.info.status) == ("one", "FINISHED")
    assert run.data.params == {name: str(value) for name, value in settings.items()}
    assert run.data.metrics == {"train/loss": 1.5, "validation/full/HR_at_10": 0.5, "test/full/HR_at_10": 0.25}
    assert [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "train/loss")] == [
        (1, 2.0), (2, 1.5),
    ]  # fmt: skip
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["report.json"]
    MLflow(folder, settings).close(is_finished=False)  # a part of the same run, in the same experiment
    found = client.search_runs([run.info.experiment_id])
    assert sorted(one.info.status for one in found) == ["FINISHED", "KILLED"]
