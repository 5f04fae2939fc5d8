"""`bert4rec compare`: what is printed and written, and what is refused."""

from pathlib import Path

import pytest

from bert4rec.__main__ import main
from tests.fixture_types import Capture, Patch
from tests.report.runs_by_hand import make_run


def test_it_prints_and_writes_the_same(tmp_path: Path, capsys: Capture) -> None:
    ranks = {"a": [1, 20], "b": [1, 2]}
    folders = [str(make_run(tmp_path / name, run_ranks, validation=[3])) for name, run_ranks in ranks.items()]
    html, markdown = tmp_path / "x.html", tmp_path / "y.md"
    assert main(["compare", *folders, "--all", f"--html={html}", f"--markdown={markdown}"]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(f"\n{html}\n{markdown.with_name('y-curves.png')}\n{markdown}\n")
    page = markdown.read_text()
    assert printed.startswith(page.partition("## Learning curves")[0])
    assert "![Validation NDCG@10 by epoch](y-curves.png)" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "x.html", "y-curves.png", "y.md"]
    for folder in folders:
        (Path(folder) / "metrics.jsonl").unlink()
    (tmp_path / "y-curves.png").unlink()
    assert main(["compare", *folders, f"--markdown={markdown}"]) == 0
    assert ("Learning curves" in markdown.read_text(), (tmp_path / "y-curves.png").exists()) == (False, False)


def test_without_all_it_prints_the_differences_and_one_table_of_the_runs(tmp_path: Path, capsys: Capture) -> None:
    folders = [make_run(tmp_path / name, [1, hit, *[30] * 18], validation=[3]) for name, hit in (("a", 20), ("b", 1))]
    assert main(["compare", *map(str, folders)]) == 0
    _, _, *rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    figures = [[cell.strip().partition(" ")[0] for cell in row.split("|")[1:-1]] for row in rows]
    assert figures == [
        ["A", "Bert4Rec", "0.0500", "0.0500", str(folders[0])], ["B", "Bert4Rec", "0.1000", "0.1000", str(folders[1])],
    ]  # fmt: skip
    assert main(["compare", *map(str, folders), "--split=validation"]) == 0
    assert "| 1.0000 [" in capsys.readouterr().out  # not of the test


@pytest.mark.parametrize(
    ("words", "token"), [(["a"], "a: "), (["a", "nowhere"], "nowhere: "), (["a", "a", "--html=no/x"], "--html=no/x: ")]
)
def test_what_is_refused_is_one_line(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture, words: list[str], token: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("a"), [1, 20])
    assert main(["compare", *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: {token}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


@pytest.mark.parametrize(("folder", "way"), [("", "--config=runs/b/config.toml"), ("checkpoints/step-7", "--resume=")])
def test_a_run_that_is_not_finished_is_named_with_the_command_that_goes_on_with_it(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture, folder: str, way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("a"), [1, 20])
    Path("runs/b", folder).mkdir(parents=True)
    Path("runs/b/config.toml").write_text("")
    assert main(["compare", "a", "runs/b"]) == 2
    said = capsys.readouterr().err
    assert (said.count("\n"), way in said, "evaluate runs/b" in said) == (1, True, folder != "")
