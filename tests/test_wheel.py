"""The wheel in an environment that has nothing else: from the file to recommendations, in an empty folder."""

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from bert4rec import __version__
from scripts.requirements import requirements
from tests.update.conftest import first_run, quick, shop

__all__ = ["first_run", "quick", "shop"]

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


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("alone", "quick")
def test_the_lock_of_the_server_is_all_that_serving_needs(shop: Path, tmp_path: Path) -> None:
    wheel = next(ROOT / line for line in output(ROOT / "scripts/wheel.sh", at=ROOT).splitlines() if "bert4rec" in line)
    programs, empty = tmp_path / "venv/bin", tmp_path / "empty"
    empty.mkdir()
    output(sys.executable, "-m", "venv", programs.parent, at=tmp_path)
    (torch,) = (text for text in requirements() if text.startswith("torch=="))
    output(programs / "pip", "install", "--quiet", "-r", ROOT / "requirements-serve.lock", f"{torch}+cpu", at=tmp_path)
    output(programs / "pip", "install", "--quiet", "--no-deps", wheel, at=tmp_path)
    n_bytes = sum(path.lstat().st_size for path in programs.parent.rglob("*"))
    began = time.monotonic()
    process = subprocess.Popen(
        [programs / "bert4rec", "serve", shop, "--port=0"], cwd=empty, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split(": ")[0]
        body = json.dumps({"queries": [{"user": "u1"}], "where": "train_count > 1"}).encode()
        request = urllib.request.Request(f"{address}/v1/recommend", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            lists = json.loads(answer.read())["lists"]
        print(f"{n_bytes / 1e6:,.0f} MB, {time.monotonic() - began:.1f} s to the first answer")
        assert len(lists[0]["items"]) == 10
    finally:
        process.kill()
        process.wait()
    done = subprocess.run([programs / "bert4rec", "train"], cwd=empty, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "pip install" in done.stderr


def output(*words: object, at: Path) -> str:
    done = subprocess.run([*map(str, words)], cwd=at, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
