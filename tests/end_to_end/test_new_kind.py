"""A kind of model added as CONTRIBUTING.md says is trained, evaluated, recommended with and exported."""

import json
import re
import shutil
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


# Runs command lines in one process, and writes their output as JSON.
COMMANDS = """
import json, sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from bert4rec.__main__ import main
outputs = []
for words in json.loads(sys.argv[1]):
    with redirect_stdout(StringIO()) as output:
        assert main(words) == 0, words
    outputs.append(output.getvalue())
Path("outputs.json").write_text(json.dumps(outputs))
"""


@pytest.mark.long
def test_it_goes_all_the_way(tree: Path, small_folder: Path) -> None:
    settings = SMALL | {"model.kind": "next_item", "run.name": "own", "training.n_epochs": 1}
    commands = [
        ["train", f"--data.dataset_dir={small_folder}", *(f"--{name}={value}" for name, value in settings.items())],
        ["evaluate", "runs/own", "--output=evaluation"],
        ["export", "runs/own", "--format=safetensors", "--output=package"],
        *(["recommend", model, "--items=1,2,3"] for model in ("runs/own", "package")),
    ]
    done = launch.start([sys.executable, "-c", COMMANDS, json.dumps(commands)], tree, PYTHONPATH=str(tree))
    assert done.returncode == 0, done.stderr
    report = json.loads((tree / "runs/own/report.json").read_text())
    assert (report["kind"], report["model"]) == ("next_item", "Next item")
    measured = json.loads((tree / "evaluation/report.json").read_text())
    assert measured["test"]["full"]["NDCG@10"] == report["test"]["full"]["NDCG@10"]
    *_, run_output, package_output = json.loads((tree / "outputs.json").read_text())
    assert len(run_output.splitlines()) == 10
    assert package_output == run_output
