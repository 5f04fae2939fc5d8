"""A kind of model added as CONTRIBUTING.md says is trained, evaluated, recommended with and exported."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from tests import launch
from tests.conftest import SMALL

PAGE = launch.ROOT / "CONTRIBUTING.md"


def add(path: Path, place: str, text: str) -> None:
    """Put `text` behind the only `place`."""
    content = path.read_text()
    assert content.count(place) == 1, path
    path.write_text(content.replace(place, place + text))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the package with the kind `next_item`, step by step as the page has it."""
    package = tmp_path / "tree" / "bert4rec"
    shutil.copytree(launch.ROOT / "bert4rec", package, ignore=shutil.ignore_patterns("__pycache__"))
    module, entry = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (package / "models/next_item.py").write_text(module)
    add(package / "config/kinds.py", '.SASRec", is_causal=True),\n', indent(f"{entry.rstrip()},\n", 8 * " "))
    return package.parent


def start(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return launch.start([sys.executable, "-m", "bert4rec", *arguments], tree, PYTHONPATH=str(tree))


def test_it_goes_all_the_way(tree: Path, small_folder: Path) -> None:
    settings = SMALL | {"model.kind": "next_item", "run.name": "own", "training.n_epochs": 1}
    small = [f"--{name}={value}" for name, value in settings.items()]
    done = start(tree, "train", f"--data.dataset_dir={small_folder}", *small)
    assert done.returncode == 0, done.stderr
    report = json.loads((tree / "runs/own/report.json").read_text())
    assert (report["kind"], report["model"]) == ("next_item", "Next item")
    for arguments in (
        ["evaluate", "runs/own", "--output=evaluation"],
        ["export", "runs/own", "--format=safetensors,pt2", "--output=package"],
    ):
        done = start(tree, *arguments)
        assert done.returncode == 0, done.stderr
    measured = json.loads((tree / "evaluation/report.json").read_text())
    assert measured["test"]["full"]["NDCG@10"] == report["test"]["full"]["NDCG@10"]
    of_run, of_package = (start(tree, "recommend", model, "--items=1,2,3") for model in ("runs/own", "package"))
    assert (of_run.returncode, of_package.returncode) == (0, 0), of_run.stderr + of_package.stderr
    assert len(of_run.stdout.splitlines()) == 10
    assert of_package.stdout == of_run.stdout
