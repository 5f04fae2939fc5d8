"""Numbers, to the letter."""

import pytest

from bert4rec.runtime.wording import clock, counted, rounded


@pytest.mark.parametrize(
    ("number", "text"),
    [(3.663976945244957, "3.66"), (0.41234, "0.412"), (40.0, "40"), (0, "0"), (99.96, "100"), (1390.4, "1,390")],
)
def test_three_digits_or_all_before_the_point(number: float, text: str) -> None:
    assert rounded(number) == text


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "epoch", "1 epoch"), (1.0, "epoch", "1 epoch"), (2, "epoch", "2 epochs"), (0.5, "epoch", "0.5 epochs"),
        (1, "process", "1 process"), (8, "process", "8 processes"), (0, "GPU", "0 GPUs"), (1000, "user", "1,000 users"),
        (1.0004, "epoch", "1 epoch"), (1, "history", "1 history"), (3, "history", "3 histories"), (2, "day", "2 days"),
    ],
)  # fmt: skip
def test_one_of_a_thing_and_more(number: float, noun: str, text: str) -> None:
    assert counted(number, noun) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (123, "2:03"), (3723.4, "1:02:03")])
def test_time(seconds: float, text: str) -> None:
    assert clock(seconds) == text
