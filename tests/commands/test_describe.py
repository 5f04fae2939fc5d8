"""`bert4rec describe`: the counts of a dataset and what stands out, as text and as a page."""

from pathlib import Path

import polars as pl

from bert4rec.__main__ import main
from tests.fixture_types import Capture, Patch


def test_it_tells_what_the_preparation_told(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        (f"u{user}", f"i{(user * place) % 9}", 86_400 * (100 + place)) for user in range(20) for place in range(1, 9)
    ]
    pl.DataFrame(rows, schema=["user", "item", "time"], orient="row").write_csv("log.csv")
    assert main(["prepare", "log.csv", "--preprocessing.n_eval_negatives=1"]) == 0
    prepared = capsys.readouterr().out
    assert main(["describe", "data/log"]) == 0
    described = capsys.readouterr().out
    assert described.strip() in prepared
    assert main(["describe", "data/log", "--html"]) == 0
    page = Path("description.html").read_text()
    assert page.count("<svg") == 3
    assert "http://" not in page.replace("http://www.w3.org/", "")
