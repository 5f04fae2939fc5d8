"""What Weights & Biases keeps of a run on the disk, where it is installed: pip install -r requirements-wandb.txt."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert4rec.report.trackers.wandb import WeightsAndBiases

pytest.importorskip("wandb")

HEADER, BLOCK = 7, 32_768  # bytes: of the file and of each record; of the blocks of LevelDB's log format


def records(path: Path) -> Iterator[bytes]:
    """Those of a .wandb file: each has a checksum, its length and its kind before it, and may go over many blocks."""
    content, at, parts = path.read_bytes(), HEADER, b""
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + HEADER])
        parts += content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.filterwarnings("ignore")  # of the libraries about themselves
def test_records_of_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "report.json").write_text("{}")
    tracker = WeightsAndBiases(tmp_path, {"model.kind": "sasrec", "training.n_epochs": 3})
    tracker.add(1, {"train/loss": 2.0})
    tracker.add(2, {"train/loss": 1.5})
    tracker.add(2, {"validation/full/HR@10": 0.5})
    tracker.finish({"test/full/HR@10": 0.25}, [tmp_path / "report.json"])
    tracker.close(is_finished=True)
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    history, summary, config = [], {}, {}
    for record in map(Record.FromString, records(path)):
        if record.HasField("history"):
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            history.append({name: value for name, value in items.items() if name == "_step" or name[0] != "_"})
        summary |= {"/".join(item.nested_key) or item.key: item.value_json for item in record.summary.update}
        if record.HasField("run"):
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    assert history == [
        {"train/loss": 2.0, "_step": 1},
        {"train/loss": 1.5, "validation/full/HR@10": 0.5, "_step": 2},
    ]
    assert summary["test/full/HR@10"] == "0.25"
    assert (config["model.kind"], config["training.n_epochs"]) == ("sasrec", 3)
    assert (path.parent / "files" / "report.json").read_text() == "{}"
