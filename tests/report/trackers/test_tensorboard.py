"""What TensorBoard reads in a run folder."""

import itertools
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tensorboard.plugins.hparams import metadata, plugin_data_pb2

from bert4rec.report.trackers.tensorboard import TensorBoard


def test_numbers_by_step_and_settings_beside_results(tmp_path: Path) -> None:
    settings = {"model.kind": "sasrec", "training.learning_rate": 0.5, "evaluation.ks": [1, 10]}
    tracker = TensorBoard(tmp_path, settings)
    tracker.add(1, {"train/loss": 2.0})
    tracker.add(2, {"train/loss": 1.5})
    tracker.finish({"test/full/HR@10": 0.25}, [])
    tracker.close(is_finished=True)
    events = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    events.Reload()
    (run,) = events.Runs()
    assert [(scalar.step, scalar.value) for scalar in events.Scalars(run, "train/loss")] == [(1, 2.0), (2, 1.5)]
    assert [scalar.value for scalar in events.Scalars(run, "test/full/HR@10")] == [0.25]
    content = events.SummaryMetadata(run, metadata.SESSION_START_INFO_TAG).plugin_data.content
    started = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    assert started.hparams["model.kind"].string_value == "sasrec"
    assert started.hparams["training.learning_rate"].number_value == 0.5
    assert started.hparams["evaluation.ks"].string_value == "[1, 10]"


def test_a_resumed_run_shows_its_later_steps_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    events = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    events.Reload()
    (run,) = events.Runs()
    assert [(scalar.step, scalar.value) for scalar in events.Scalars(run, "train/loss")] == [(1, 1.0), (2, 0.5)]
