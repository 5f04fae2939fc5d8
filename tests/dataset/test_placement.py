"""Which host has which part, and what a folder with some of the parts must have."""

import shutil
from pathlib import Path

import pytest

from bert4rec.dataset.format import FOLDERS
from bert4rec.dataset.placement import Held, place
from bert4rec.dataset.reader import of_parts, open_dataset
from tests.checks import one_line

PARTS = ["a", "b", "c", "d"]


def held(host: str, parts: str) -> Held:
    return Held(host, {part: {"validation": PARTS.index(part), "test": 9} for part in parts})


def test_a_part_belongs_to_the_first_host_that_has_it() -> None:
    reports = [held("two", "bc"), held("two", ""), held("one", "abd"), held("one", "")]
    placements = [place(Path("log"), PARTS, reports, rank) for rank in range(4)]
    assert [placement.parts for placement in placements] == [["b", "c"]] * 2 + [["a", "d"]] * 2
    assert [placement.place for placement in placements] == [0, 1, 0, 1]
    assert placements[3].hosts == ((0, 1), (2, 3))
    assert placements[0].held_out == {"validation": [0, 1, 2, 3], "test": [9] * 4}
    assert len({placement.checksum for placement in placements}) == 1
    swapped = place(Path("log"), PARTS, [held("one", "ad"), held("two", "bc"), held("one", ""), held("two", "")], 0)
    assert swapped.checksum == placements[0].checksum  # other ranks, the same parts
    others = [reports[2], reports[3], reports[0], reports[1]]
    assert place(Path("log"), PARTS, others, 0).checksum != placements[0].checksum


def test_a_missing_part_and_a_host_without_one_are_refused() -> None:
    with one_line("log: ", "histories/d", "negatives/d"):
        place(Path("log"), PARTS, [held("one", "ab"), held("two", "bc")], 0)
    with one_line("log: ", "two"):
        place(Path("log"), PARTS, [held("one", "abcd"), held("two", "bc")], 0)


@pytest.fixture
def folder(small_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_folder, tmp_path / "dataset"))


def first_part(folder: Path, name: str) -> Path:
    return next((folder / name).glob("*.arrow"))


def test_only_parts_may_be_elsewhere(folder: Path) -> None:
    whole = open_dataset(folder, parts_by_host=True)
    assert whole.histories.parts == [first_part(folder, "histories").name]
    first_part(folder, "negatives").unlink()
    assert open_dataset(folder, parts_by_host=True).histories.parts == []  # both files make a part
    with one_line(str(folder / "negatives")):
        open_dataset(folder)
    (folder / "train_counts.npy").unlink()
    with one_line(str(folder / "train_counts.npy")):
        open_dataset(folder, parts_by_host=True)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_part_of_another_size_or_content_is_refused(folder: Path, name: str) -> None:
    path = first_part(folder, name)
    content = path.read_bytes()
    for changed in (content[:-8], content[: len(content) // 2] + b"\1" * (len(content) - len(content) // 2)):
        path.write_bytes(changed)
        with one_line(str(path)):
            open_dataset(folder, parts_by_host=True)


def test_a_host_reads_its_own_parts_alone(folder: Path) -> None:
    dataset = open_dataset(folder, parts_by_host=True)
    counts = {split: dataset.splits[split].n_by_file for split in dataset.splits}
    (part,) = dataset.histories.parts or ()
    report = Held("one", {part: {split: n[part] for split, n in counts.items()}})
    own = of_parts(dataset, place(folder, [part], [report], 0))
    assert own.placement is not None
    assert own.histories.users.tolist() == open_dataset(folder).histories.users.tolist()
    assert {split: [len(users)] for split, users in own.splits.items()} == own.placement.held_out
