"""The records of a run; what TensorBoard, MLflow and W&B, if installed, store, and what a failing tracker does."""

import itertools
import json
import resource
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tensorboard.plugins.hparams import metadata, plugin_data_pb2

from bert4rec.report import log as module
from bert4rec.report.log import MetricsLog, TensorBoard, open_trackers, read_records
from bert4rec.runtime.errors import SettingsError
from tests.fixture_types import Capture, Patch


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's own thread
def test_a_disk_that_is_full_for_a_while_tears_no_line(tmp_path: Path, capsys: Capture) -> None:
    log = MetricsLog(tmp_path, open_trackers(["tensorboard"], tmp_path, {}, purge_from=0))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))  # bytes that a file may have
    try:
        for step in range(5):
            log.add("train", step, loss=0.5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    log.add("train", 5, loss=0.5)
    log.close()
    assert [record["step"] for record in read_records(tmp_path, "train")] == [0, 1, 2, 3, 4, 5]
    assert f"{tmp_path / 'metrics.jsonl'}: File too large" in capsys.readouterr().out


def test_records_are_lines_of_json_and_trackers_get_their_numbers(tmp_path: Path) -> None:
    tracker = Mock()
    log = MetricsLog(tmp_path, {"one": lambda: tracker})
    log.add("train", 10, loss=2.5)
    log.add("validation", 20, full={"HR@10": 0.5})
    log.add_note("resume", 20, world_size=2)
    log.finish({"test/full/HR@10": 0.25}, [tmp_path / "report.json"])
    log.close(is_finished=False)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[0] == {"kind": "train", "step": 10, "loss": 2.5}
    assert read_records(tmp_path, "validation") == [{"kind": "validation", "step": 20, "full": {"HR@10": 0.5}}]
    assert tracker.mock_calls == [
        call.add(10, {"train/loss": 2.5}),
        call.add(20, {"validation/full/HR@10": 0.5}),
        call.finish({"test/full/HR@10": 0.25}, [tmp_path / "report.json"]),
        call.close(is_finished=False),
    ]


def test_a_package_that_is_not_installed_is_named(monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    module.require_packages(["tensorboard"])
    with pytest.raises(SettingsError, match=r"run\.trackers"):
        module.require_packages(["tensorboard", "mlflow"])


@pytest.mark.parametrize(("n_calls", "failing"), [(0, "open"), (1, "add"), (2, "finish"), (3, "close"), (3, "")])
def test_after_its_first_failure_it_gets_no_more(tmp_path: Path, capsys: Capture, n_calls: int, failing: str) -> None:
    inner, opening = Mock(), Mock(side_effect=ValueError)
    if failing != "open":
        opening = Mock(return_value=inner)
        getattr(inner, failing or "nothing").side_effect = RuntimeError("no server\nfor it")
    reason = "ValueError" if failing == "open" else "no server"
    log = MetricsLog(tmp_path, {"one": opening})
    log.add("train", 1, loss=0.5)
    log.finish({}, [Path("report.json")])
    for _ in range(2):
        log.close(is_finished=True)
    assert [method for method, _, _ in inner.mock_calls] == ["add", "finish", "close"][:n_calls]
    printed = capsys.readouterr().out
    assert (printed.count("\n"), f"one fails: {reason};" in printed) == ((1, True) if failing else (0, False))


def events_of(folder: Path) -> tuple[EventMultiplexer, str]:
    events = EventMultiplexer().AddRunsFromDirectory(str(folder))
    events.Reload()
    (run,) = events.Runs()
    return events, run


def test_numbers_by_step_and_settings_beside_results(tmp_path: Path) -> None:
    settings = {"model": {"kind": "sasrec"}, "training": {"learning_rate": 0.5}, "evaluation": {"ks": [1, 10]}}
    tracker = open_trackers(["tensorboard"], tmp_path, settings, purge_from=0)["tensorboard"]()
    tracker.add(1, {"train/loss": 2.0})
    tracker.add(2, {"train/loss": 1.5})
    tracker.finish({"test/full/HR@10": 0.25}, [])
    tracker.close(is_finished=True)
    events, run = events_of(tmp_path)
    assert [(scalar.step, scalar.value) for scalar in events.Scalars(run, "train/loss")] == [(1, 2.0), (2, 1.5)]
    assert [scalar.value for scalar in events.Scalars(run, "test/full/HR@10")] == [0.25]
    content = events.SummaryMetadata(run, metadata.SESSION_START_INFO_TAG).plugin_data.content
    started = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert started["model.kind"].string_value == "sasrec"
    assert started["training.learning_rate"].number_value == 0.5
    assert started["evaluation.ks"].string_value == "[1, 10]"


def test_a_resumed_run_shows_its_later_steps_once(tmp_path: Path, monkeypatch: Patch) -> None:
    """Also in the same second and process, after nine other files: 10 comes before 9 in the names."""
    numbers = itertools.count(9)
    writer = "tensorboard.summary.writer.event_file_writer._global_uid"
    monkeypatch.setattr(writer, SimpleNamespace(get=lambda: next(numbers)))
    time.sleep(1 - time.time() % 1)
    first = TensorBoard(tmp_path, {})
    for step in (1, 2, 3):
        first.add(step, {"train/loss": 1.0})
    first.close(is_finished=False)
    second = TensorBoard(tmp_path, {}, purge_from=1)
    second.add(2, {"train/loss": 0.5})
    second.close(is_finished=True)
    events, run = events_of(tmp_path)
    assert [(scalar.step, scalar.value) for scalar in events.Scalars(run, "train/loss")] == [(1, 1.0), (2, 0.5)]


@pytest.mark.filterwarnings("ignore")  # of the libraries about themselves
def test_parameters_metrics_and_files_of_a_run(tmp_path: Path, monkeypatch: Patch) -> None:
    mlflow = pytest.importorskip("mlflow")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    (folder / "report.json").write_text("{}")
    settings = {"table": {f"key{number}": number for number in range(250)} | {"ks": [1, 10]}}
    open_one = open_trackers(["mlflow"], folder, settings, purge_from=0)["mlflow"]
    tracker = open_one()
    tracker.add(1, {"train/loss": 2.0})
    tracker.add(2, {"train/loss": 1.5, "validation/full/HR@10": 0.5})
    tracker.finish({"test/full/HR@10": 0.25}, [folder / "report.json"])
    tracker.close(is_finished=True)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("bert4rec").experiment_id])
    assert (run.info.run_name, run.info.status) == ("one", "FINISHED")
    assert run.data.params == {f"table.{name}": str(value) for name, value in settings["table"].items()}
    assert run.data.metrics == {"train/loss": 1.5, "validation/full/HR_at_10": 0.5, "test/full/HR_at_10": 0.25}
    assert [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "train/loss")] == [
        (1, 2.0), (2, 1.5),
    ]  # fmt: skip
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["report.json"]
    open_one().close(is_finished=False)  # a part of the same run, in the same experiment
    found = client.search_runs([run.info.experiment_id])
    assert sorted(one.info.status for one in found) == ["FINISHED", "KILLED"]


@pytest.mark.filterwarnings("ignore")  # of the libraries about themselves
def test_records_of_an_offline_run(tmp_path: Path, monkeypatch: Patch) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "report.json").write_text("{}")
    tracker = open_trackers(["wandb"], tmp_path, {"model": {"kind": "sasrec"}}, purge_from=0)["wandb"]()
    tracker.add(1, {"train/loss": 2.0})
    tracker.add(1, {"validation/full/HR@10": 0.5})
    tracker.finish({"test/full/HR@10": 0.25}, [tmp_path / "report.json"])
    tracker.close(is_finished=True)
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    words = (b"model.kind", b"sasrec", b"train/loss", b"validation/full/HR@10", b"test/full/HR@10", b"0.25")
    assert [word for word in words if word not in path.read_bytes()] == []
    assert (path.parent / "files" / "report.json").read_text() == "{}"
