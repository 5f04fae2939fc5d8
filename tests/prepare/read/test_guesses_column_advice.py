"""What is suggested where a table lacks the columns that the settings name."""

import shlex

import pytest

from bert4rec.config.load import load_config, parse_command_line
from bert4rec.prepare.read.guesses import column_advice

USUAL = {"user": "user", "item": "item"}


@pytest.mark.parametrize(
    ("named", "present", "advice"),
    [
        (USUAL, ["customer", "sku", "at"],
         "try --data.user_column=customer --data.item_column=sku --data.time_column=at"),
        (USUAL, ["userId", "movieId", "rating", "timestamp"],
         "try --data.user_column=userId --data.item_column=movieId --data.time_column=timestamp"),
        (USUAL, ["Visitor-ID", "event", "itemid", "event_time"],
         "try --data.user_column=Visitor-ID --data.item_column=itemid --data.time_column=event_time"),
        (USUAL, ["user", "product", "price"], "try --data.item_column=product"),
        (USUAL, ["user", "x"], "name it with --data.item_column=…"),
        (USUAL, ["client", "x"], "try --data.user_column=client --data.item_column=…"),
        (USUAL | {"time": "t"}, ["user", "item", "r"], "name it with --data.time_column=…"),
        (USUAL | {"time": "at"}, ["user", "product", "at", "date"], "try --data.item_column=product"),
        (USUAL | {"user": "custmer"}, ["user", "customer", "item"], "try --data.user_column=customer"),
        (USUAL | {"rating": "r"}, ["user", "item", "stars"], "try --data.rating_column=stars"),
        (USUAL, ["user;item"], "name it with --data.user_column=… --data.item_column=…"),
        (USUAL, ["196", "242", "881250949"],
         "where this is a row and not a header, add --data.has_header=false --data.user_column=1 --data.item_column=2 "
         "--data.time_column=3"),
        (USUAL | {"time": "at", "rating": "r"}, ["2024-03-01", "7", "x"],
         "where this is a row and not a header, add --data.has_header=false --data.user_column=2 --data.item_column=3 "
         "--data.time_column=1 --data.rating_column=…"),
        (USUAL | {"time": "at"}, ["196", "242", "3"],
         "where this is a row and not a header, add --data.has_header=false --data.user_column=1 --data.item_column=2 "
         "--data.time_column=…"),
        (USUAL, ["7", "8"],
         "where this is a row and not a header, add --data.has_header=false --data.user_column=1 --data.item_column=2"),
        (USUAL, ["881250949"],
         "where this is a row and not a header, add --data.has_header=false --data.user_column=… --data.item_column=… "
         "--data.time_column=1"),
        (USUAL, ["session_id", "user_agent", "user_pseudo_id", "item_name", "item_id"],
         "try --data.user_column=user_pseudo_id --data.item_column=item_id"),
        (USUAL, ["session_id", "customer", "sku"], "try --data.user_column=customer --data.item_column=sku"),
        (USUAL, ["session_id", "item"], "try --data.user_column=session_id"),
        (USUAL, ["1", "2", "3"], "name it with --data.user_column=… --data.item_column=…"),
    ],
)  # fmt: skip
def test_the_columns_that_are_likely(named: dict[str, str], present: list[str], advice: str) -> None:
    assert column_advice(named, present) == f"; {advice}"


@pytest.mark.parametrize("name", ["user id", "$user", "user's", "user\tid", "User (id)"])
def test_the_options_are_ready_for_the_shell(name: str) -> None:
    advice = column_advice({"user": "user id's", "item": "item"}, [name, "item"])
    options = shlex.split(advice.removeprefix("; try "))
    assert load_config(None, parse_command_line(options)[1]).data.user_column == name
