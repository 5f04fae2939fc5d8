"""From a file that is only named to a run, as a person types it: what it is, where its dataset stands, what is next."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import launch

SMALL = [
    "--config=/dev/null", "--preprocessing.n_eval_negatives=2", "--model.max_len=4", "--model.embed_dim=8",
    "--model.ffn_dim=8",
]  # fmt: skip


def start(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return launch.start([sys.executable, str(launch.ROOT / script), *arguments], folder)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with a log of a shop."""
    rows = [f"c{user},s{(user * step) % 23},{1_700_000_000 + step}" for user in range(40) for step in range(6)]
    (tmp_path / "log.csv").write_text("customer,sku,at\n" + "\n".join(rows) + "\n")
    return tmp_path


COLUMNS = ["--data.user_column=customer", "--data.item_column=sku", "--data.time_column=at"]


@pytest.mark.long
def test_a_file_is_recognized_and_the_next_command_trains_on_it_also_without_the_file(shop: Path) -> None:
    done = start(shop, "preprocessing.py", *SMALL, "--data.path=log.csv", *COLUMNS)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "data.source = table: log.csv is a CSV file with the columns customer, sku, at"
    settings = ["data/log", *(word for word in SMALL if not word.startswith("--preprocessing."))]
    assert lines[-1] == f"next: python train.py {shlex.join(settings)}"
    assert json.loads((shop / "data" / "log" / "metadata.json").read_text())["rows"] == 240

    brief = ["--training.n_epochs=1", "--mode=ddp"]
    done = start(shop, "train.py", *SMALL, "--data.path=log.csv", *brief)  # by what lies there
    assert done.returncode == 0, done.stderr
    (shop / "log.csv").unlink()
    done = start(shop, "train.py", *settings, *brief)
    assert done.returncode == 0, done.stderr
    reports = [json.loads((shop / "runs" / name / "report.json").read_text()) for name in ("log", "log-2")]
    assert [report["dataset"]["rows"] for report in reports] == [240, 240]

    (shop / "shop.toml").write_text('[data]\npath = "log.csv"\n')
    done = start(shop, "train.py", "--config=shop.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: log.csv: ")
    assert "--data.dataset_dir=" in done.stderr


@pytest.mark.long
def test_two_files_have_two_datasets(shop: Path) -> None:
    (shop / "other.csv").write_text((shop / "log.csv").read_text().replace("c1,", "c99,"))
    for name in ("log", "other"):
        assert start(shop, "preprocessing.py", *SMALL, f"--data.path={name}.csv", *COLUMNS).returncode == 0
    assert sorted(path.name for path in (shop / "data").iterdir()) == ["log", "other"]
    (shop / "log.csv").rename(shop / "log.txt")
    done = start(shop, "preprocessing.py", *SMALL, "--data.path=log.txt", *COLUMNS)
    assert done.returncode == 2
    named = ("error: data/log: ", "log.csv", "log.txt", "--data.dataset_dir=data/log-2", "--replace")
    assert all(text in done.stderr for text in named)
