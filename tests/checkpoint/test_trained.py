"""Which weights a person means, and what is said where there are none."""

import shutil
from pathlib import Path

import pytest

from bert4rec.checkpoint.run_folder import found
from bert4rec.checkpoint.trained import Trained, find_trained
from bert4rec.runtime.errors import DataError
from tests.runs import edit_facts


def test_a_run_its_best_checkpoint_and_another_one(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = (whole / "checkpoints" / "best").resolve()
    other = next(path for path in found(whole / "checkpoints") if path != best)
    trained = find_trained(whole)
    assert (trained.folder, trained.run, trained.n_items, trained.is_reported) == (best, whole, 130, True)
    assert find_trained(whole / "checkpoints" / "best") == trained
    assert (find_trained(other).run, find_trained(other).is_reported) == (whole, False)
    assert find_trained(other).checksum != trained.checksum
    monkeypatch.chdir(whole.parent)
    assert find_trained(whole).folder == best.relative_to(whole.parent)


def test_a_run_that_was_moved_near_the_root_has_its_dataset_where_the_settings_say(made: Path) -> None:
    metadata = dict(find_trained(made).metadata)
    metadata["config"] = metadata["config"] | {"data": {"dataset_dir": "data/x"}, "run": {"dir": "a/b/runs"}}
    for run in (Path("/model"), Path("/")):
        assert Trained(run / "checkpoints" / "step-1", metadata, run).dataset == Path("data/x")


def test_a_checkpoint_by_itself_has_no_run(whole: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(whole / "checkpoints" / "best", tmp_path / "alone"))
    trained = find_trained(alone)
    assert (trained.folder, trained.run, trained.is_reported) == (alone, None, False)


def test_what_cannot_be_used_is_one_line(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"^.*: neither a run folder with a checkpoint, nor a checkpoint, nor a model package$"
    ):
        find_trained(tmp_path)
    best = (whole / "checkpoints" / "best").resolve()
    edit_facts(best, lambda facts: facts.update(facts_version=1))
    with pytest.raises(DataError, match=r"form 1, here it is 3\); use that version$"):
        find_trained(whole)
    edit_facts(best, lambda facts: facts.update(facts_version=3))
    (best / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"this checkpoint is damaged: manifest.json is missing$"):
        find_trained(best)
    (best / "facts.json").write_text("{")
    with pytest.raises(DataError, match=r"this checkpoint is damaged: facts.json cannot be read$"):
        find_trained(best)
