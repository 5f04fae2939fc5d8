"""`bert4rec report`: what it advises fits the run."""

import json
import os
import shutil
import webbrowser
from pathlib import Path

import pytest

from bert4rec.__main__ import main
from bert4rec.checkpoint.run_folder import find_trained
from bert4rec.config.load import load_config
from tests.fixture_types import Capture, Patch
from tests.report.runs_by_hand import SMALL_REPORT as REPORT
from tests.report.runs_by_hand import write_run
from tests.runs import edit_facts


def test_who_has_read_data_is_not_told_how_to(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("runs/x")
    run.mkdir(parents=True)
    data = {"data.source": "table", "data.path": "log.csv", "data.dataset_dir": "data/mine"}
    (run / "config.toml").write_text(load_config(None, data | {"training.max_minutes": 0.01}).to_toml())
    content = REPORT | {"dataset": REPORT["dataset"] | {"source": "table"}, "world_size": 2}
    (run / "report.json").write_text(json.dumps(content))
    assert main(["report"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("| Bert4Rec ") == 1
    assert [line.strip() for line in printed.partition("runs/x/report.html")[2].splitlines() if line[:1] == " "] == [
        "bert4rec recommend runs/x --all --output=recommendations.parquet",
        "torchrun --standalone --nproc_per_node=2 -m bert4rec train --resume=runs/x --training.max_minutes=0.04",
        "bert4rec check data/mine",
        "bert4rec prepare --config=runs/x/config.toml --data.extends=data/mine \\",
        "--data.dataset_dir=FOLDER --data.path=FILE",
    ]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch about itself
def test_nothing_is_advised_that_needs_a_dataset_that_is_not_there(made: Path, tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    shutil.copytree(made, run, symlinks=True)
    settings = run / "config.toml"
    settings.write_text(settings.read_text().replace('source = "synthetic"', 'source = "table"'))
    content = json.loads((run / "report.json").read_text())
    content["dataset"]["source"] = "table"
    (run / "report.json").write_text(json.dumps(content))
    folder = find_trained(run).dataset

    def advised() -> str:
        assert main(["report", str(run)]) == 0
        return capsys.readouterr().out.partition("report.html\n")[2]

    assert f"bert4rec check {folder}\n" in advised()
    edit_facts(run / "checkpoints" / "best", lambda facts: facts["config"]["data"].update(dataset_dir="gone"))
    without = advised()
    assert f"bert4rec recommend {run} --all --dataset=FOLDER" in without
    assert "bert4rec check" not in without


def test_one_table_and_the_verdict_are_printed_and_with_all_the_others(tmp_path: Path, capsys: Capture) -> None:
    run = write_run(tmp_path / "one", dataset=REPORT["dataset"] | {"source": "synthetic"})
    (run / "report.html").write_text("")
    assert main(["report", str(run)]) == 0
    table, _, rest = capsys.readouterr().out.partition("\n\nUse it: ")
    assert (table.count("\n| Bert4Rec "), "0.3113" in table, "| " in rest) == (1, True, False)
    assert f"bert4rec report {run} --all" in rest
    assert main(["report", str(run), "--all"]) == 0
    everything = capsys.readouterr().out
    assert everything.count("\n| Bert4Rec ") == 2
    assert table in everything


def test_who_has_generated_data_is_told_of_real_ones(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    generated = REPORT | {"dataset": REPORT["dataset"] | {"source": "synthetic"}}
    (tmp_path / "report.json").write_text(json.dumps(generated))
    assert main(["report", str(tmp_path)]) == 0
    assert "\n  bert4rec prepare --config=configs/ml-1m.toml --download\n" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)  # where the project's own files are not
    assert main(["report", str(tmp_path)]) == 0
    assert "\n  bert4rec train --data.source=ml-1m\n" in capsys.readouterr().out


def test_the_page_is_written_where_it_is_missing_or_older_than_its_figures(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setattr("bert4rec.report.pages.charts", lambda contents: ())
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    run = write_run(tmp_path / "one run", dataset=REPORT["dataset"] | {"source": "synthetic"})
    page = run / "report.html"
    assert main(["report", str(run), "--open"]) == 0
    assert opened == [page.as_uri()]
    assert f"{page}\n" in capsys.readouterr().out
    for age, is_written in ((0, False), (100, True)):
        page.write_text("kept")
        os.utime(page, (page.stat().st_atime, (run / "report.json").stat().st_mtime + 1 - age))
        assert main(["report", str(run)]) == 0
        assert (page.read_text() != "kept") == is_written
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    capsys.readouterr()
    assert main(["report", str(run), "--open"]) == 2
    page.unlink()
    (run / "examples.json").write_text("{")
    assert main(["report", str(run)]) == 2
    (run / "examples.json").write_text("{}")
    (run / "report.html.tmp").mkdir()  # where the page is written first
    assert main(["report", str(run)]) == 2
    errors = [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()]
    assert [error.partition(": ")[0] for error in errors] == [str(page), str(run), f"{page}.tmp"]
