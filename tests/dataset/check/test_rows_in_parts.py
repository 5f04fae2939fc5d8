"""Rows of a split as arrays: where each stands, which targets were seen before, and the line for what is wrong."""

from pathlib import Path

import numpy as np
import pytest

from bert4rec.dataset.check.rows_in_parts import Part, first_true, refusal

AGAIN = "make the dataset again with `bert4rec prepare`"
PART = Part(  # rows 10 to 13 of the split, of which the second has no history
    place=Path("folder/test"),
    first=10,
    users=np.array([3, 5, 6, 9]),
    lengths=np.array([2, 0, 3, 1]),
    lists={"items": np.array([7, 8, 4, 5, 4, 2]), "ratings": np.array([0.5, 1, 1.5, 2, 2.5, 3])},
    targets=np.array([8, 7, 7, 2]),
    target_times=None,
    drawn=np.array([0]),
    negatives={},
)


def test_a_row_lies_between_its_start_and_its_end() -> None:
    assert len(PART) == 4
    assert PART.starts.tolist() == [0, 2, 2, 5]
    assert PART.ends.tolist() == [2, 2, 5, 6]


def test_a_target_is_repeated_where_its_own_history_holds_it() -> None:
    assert PART.repeated.tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    ("position", "place"),
    [
        (0, "row 10 (user 3): ratings[0] is 0.5"),
        (1, "row 10 (user 3): ratings[1] is 1.0"),
        (2, "row 12 (user 6): ratings[0] is 1.5"),
        (4, "row 12 (user 6): ratings[2] is 2.5"),
        (5, "row 13 (user 9): ratings[0] is 3.0"),
    ],
)
def test_a_position_in_the_lists_is_named_by_its_row_and_its_place_there(position: int, place: str) -> None:
    error = PART.refusal_at(position, "ratings", "must be whole")
    assert str(error) == f"folder/test: {place}, must be whole; {AGAIN}"


def test_a_row_is_named_by_its_number_in_the_whole_split() -> None:
    assert str(PART.refusal(1, "is odd")) == f"folder/test: row 11 (user 5): is odd; {AGAIN}"
    assert str(refusal(Path("users.parquet"), 4, 4, "is odd")) == f"users.parquet: row 4 (user 4): is odd; {AGAIN}"


@pytest.mark.parametrize(
    ("flags", "place"), [([], None), ([False, False], None), ([True], 0), ([False, True, False, True], 1)]
)
def test_the_first_true_flag(flags: list[bool], place: int | None) -> None:
    assert first_true(np.array(flags, bool)) == place
