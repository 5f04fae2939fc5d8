"""The records of a run, to the letter."""

import json
import resource
from pathlib import Path
from unittest.mock import Mock, call

import pytest

from bert4rec.report.log import MetricsLog, read_records
from bert4rec.report.trackers import open_trackers
from tests.fixture_types import Capture


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
    said = capsys.readouterr().out
    assert f"{tmp_path / 'metrics.jsonl'}: File too large; the training continues, its log may have gaps\n" in said


def test_records_are_lines_of_json_and_trackers_get_their_numbers(tmp_path: Path) -> None:
    tracker = Mock()
    log = MetricsLog(tmp_path, [tracker])
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
