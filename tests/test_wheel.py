"""The wheel in an environment that has nothing else: from the file to recommendations, in an empty folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from bert4rec import __version__
from scripts.requirements import requirements

ROOT = Path(__file__).parents[1]
SMALL = ["--data.n_users=60", "--data.n_items=150", "--data.n_rows=900", "--training.n_epochs=1"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_wheel_is_all_that_is_needed(tmp_path: Path) -> None:
    wheels = [ROOT / line for line in output(ROOT / "scripts/wheel.sh", at=ROOT).splitlines()]
    assert {wheel.name.partition("-")[0] for wheel in wheels} == {"bert4rec_torchrec", "fbgemm_gpu"}
    programs = tmp_path / "venv/bin"
    output(sys.executable, "-m", "venv", programs.parent, at=tmp_path)
    install = [programs / "pip", "install", "--quiet", "--constraint", ROOT / "requirements.lock"]
    (torch,) = (text for text in requirements() if text.startswith("torch=="))
    output(*install, *wheels, f"{torch}+cpu", at=tmp_path)
    output(programs / "pip", "check", at=tmp_path)
    (tmp_path / "empty").mkdir()

    def bert4rec(*words: str) -> str:
        return output(programs / "bert4rec", *words, at=tmp_path / "empty")

    assert bert4rec("--version") == f"bert4rec {__version__}\n"
    assert "no config.toml here: all settings have their defaults" in bert4rec("prepare", *SMALL)
    bert4rec("train", *SMALL)
    assert "Test of runs/synthetic" in bert4rec("report")
    assert len(bert4rec("recommend", "runs/synthetic", "--items=1,2", "--top=3").splitlines()) == 3


def output(*words: object, at: Path) -> str:
    done = subprocess.run([*map(str, words)], cwd=at, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
