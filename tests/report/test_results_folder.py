"""Results stand where they were wanted, or beside what stands there, or nowhere."""

from pathlib import Path

import pytest

from bert4rec.report.results_folder import ResultsFolder
from bert4rec.runtime.errors import SettingsError


def write(folder: Path, text: str) -> Path:
    with ResultsFolder(folder) as results:
        (results.unfinished / "a").write_text(text)
        return results.finish()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    wanted = tmp_path / "new" / "results"
    assert [write(wanted, text).name for text in "xyz"] == ["results", "results-2", "results-3"]
    assert [path.read_text() for path in sorted(wanted.parent.glob("*/a"))] == ["x", "y", "z"]
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert write(tmp_path / "file", "x").name == "file-2"
    assert write(tmp_path / "empty", "x").name == "empty"


@pytest.mark.parametrize("folder", [".", "/"])
def test_the_current_folder_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("file").touch()
    if folder == "/":
        with pytest.raises(SettingsError, match=r"^/: cannot be made: Is a directory; name another folder"):
            write(Path(folder), "x")
    else:
        assert write(Path(folder), "x") == tmp_path / "here-2"


def test_what_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError), ResultsFolder(tmp_path / "results") as results:
        (tmp_path / "file" / results.unfinished.name).mkdir()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"^.*/file/results: cannot be made: File exists; .* --output=FOLDER$"):
        write(tmp_path / "file" / "results", "")
