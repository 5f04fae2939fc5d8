"""Kinds of values: what they accept, and what they stand for."""

import datetime
from typing import Any

import pytest

from bert4rec.config.load import load_config
from bert4rec.config.values import instant
from bert4rec.runtime.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("-1", -1),
        ("1970-01-02", 86_400),
        ("2001-09-09T01:46:40", 10**9),
        ("2001-09-09T03:46:40+02:00", 10**9),
    ],
)
def test_an_instant_is_text_in_utc_unless_it_says_otherwise_or_seconds(text: str, seconds: int) -> None:
    assert instant(text) == seconds


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        (0.25, 0.25),
        (86_400, "86400"),
        (datetime.date(2019, 3, 1), "2019-03-01"),
        ("2019-03-01T12:00", "2019-03-01T12:00"),
    ],
)
def test_a_share_or_an_instant(value: Any, taken: float | str) -> None:
    assert load_config(None, {"preprocessing.split_at": value}).preprocessing.split_at == taken


A_TIME = "must be a time: 2019-03-01, 2019-03-01T12:00:00 or seconds"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("split_at", "", f'split_at = "": {A_TIME}'),
        ("split_at", "soon", f'split_at = "soon": {A_TIME}'),
        ("time_from", "soon", f'time_from = "soon": {A_TIME}'),
        (
            "split_at",
            1.5,
            'split_at = 1.5: a share must be between 0 and 1, an instant stands in quotes: "2019-03-01"',
        ),
    ],
)
def test_what_is_no_time_is_one_line(name: str, value: Any, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_config(None, {f"preprocessing.{name}": value})
    assert str(caught.value) == f"preprocessing.{message}"
