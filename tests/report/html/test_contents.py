"""What is read of a run folder."""

from pathlib import Path

import pytest

from bert4rec.report.html.contents import read_contents
from tests.report.html.run_by_hand import EXAMPLES, REPORT, write_run


def test_all_files_of_a_run(tmp_path: Path) -> None:
    contents = read_contents(write_run(tmp_path / "one"))
    assert (contents.name, contents.report, contents.examples) == ("one", REPORT, EXAMPLES)
    assert (len(contents.train), len(contents.validations), contents.n_evaluated) == (40, 20, 0)
    assert contents.settings["model"] == {"embed_dim": 32, "kind": "bert4rec"}
    assert contents.plan.startswith("plan: ")


def test_a_report_is_enough_and_is_needed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one")
    for path in folder.iterdir():
        if path.name != "report.json":
            path.unlink()
    contents = read_contents(folder)
    assert (contents.train, contents.settings, contents.environment, contents.plan, contents.examples) == (
        [],
        {},
        {},
        "",
        {},
    )
    (folder / "report.json").unlink()
    with pytest.raises(FileNotFoundError):
        read_contents(folder)
