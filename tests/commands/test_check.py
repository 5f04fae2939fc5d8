"""What `bert4rec check` says: of a folder that is whole, of its arguments, and when it is stopped."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from bert4rec.__main__ import main
from bert4rec.commands import check
from bert4rec.dataset.check.metadata import Metadata
from bert4rec.dataset.check.tally import Tally
from bert4rec.runtime import console

METADATA = {
    "folder": Path("data/log"), "split": "leave_one_out", "max_len": 6, "step": 4, "n_validated": None,
    "n_negatives": 100, "has_times": True, "has_ratings": True, "has_target_times": True, "instant": None,
    "sparse_users": False, "sparse_items": False, "counts": {"users": 2_000, "items": 3},
    "files": {"README.md": {}, "train/state.json": {}}, "shares": {},
}  # fmt: skip


def tally(**counts: int) -> Tally:
    return Tally(np.array([4000, 2, 1]), np.array([3, 1500, 0]), **counts)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", "--help"])
    assert ended.value.code == 0
    assert "check [-h] DATASET_DIR" in capsys.readouterr().out


@pytest.mark.parametrize("given", [[], ["a", "b"], ["--fast"]])
def test_one_folder_is_named(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert line.endswith("--help")


def test_what_was_shown_of_a_folder_with_overlaps_and_users_without_negatives() -> None:
    counts = tally(rows=5_506, windows=1_234, validated=503, tested=1_000, overlaps=1_111)
    counts.shares["left_out"].update(validation=1, test=2)
    assert check.summary(Metadata(**METADATA), counts, 12_345).splitlines() == [
        "data/log",
        "  files         2 with 12,345 bytes: sizes and checksums as in metadata.json, no other file",
        "  train         1,234 windows, each where it must be, 1,111 positions that overlap the same in both; "
        "4,003 positions",
        "  validation    503 users: the training history, and the item that comes next as the target",
        "  test          1,000 users: all before the target; the last item of each user with 3 or more, nothing of it "
        "in train or validation",
        "  negatives     300,000, 100 a user and protocol: distinct, none that the user has taken; 3 rows without, of "
        "users with too few unseen items",
        "  lists         items, times, ratings: ids in range, oldest first, finite",
        "  tables        2,000 users, 3 items: distinct originals, counts as in the splits",
        "  interactions  5,506",
    ]


def test_what_was_shown_of_a_folder_that_is_all_for_training_and_has_items_alone() -> None:
    metadata = Metadata(**METADATA | {"split": "none", "step": 6, "has_times": False, "has_ratings": False})
    assert check.summary(metadata, tally(rows=4_003, windows=700), 99).splitlines() == [
        "data/log",
        "  files         2 with 99 bytes: sizes and checksums as in metadata.json, no other file",
        "  train         700 windows, each where it must be; 4,003 positions",
        "  test          no test, all interactions are in train",
        "  lists         items: ids in range",
        "  tables        2,000 users, 3 items: distinct originals, counts as in the splits",
        "  interactions  4,003",
    ]


def test_a_check_that_is_stopped_says_that_it_has_shown_nothing(
    small_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: Metadata) -> Tally:
        raise KeyboardInterrupt

    monkeypatch.setattr("bert4rec.dataset.check.content.check_content", interrupted)
    assert main(["check", str(small_folder)]) == 130
    assert capsys.readouterr() == ("", "stopped: nothing was shown\n")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_long_check_says_how_far_it_is(
    small_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(console, "SECONDS_BETWEEN_BARS", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert main(["check", str(small_folder)]) == 0
    said = capsys.readouterr().err
    how_far = r"read ([\d,]+) of \1 bytes for the checksums \(100%, 0 s\)", r"checked 60 of 60 users \(100%, 0 s\)"
    if terminal:
        assert all(re.search(rf"\r{text} *\r", said) for text in how_far)
        assert "\n" not in said
    else:
        lines = said.splitlines()
        assert all(any(re.fullmatch(text, line) for line in lines) for text in how_far)
