"""Windows that do not make a history, and evaluation rows that contradict it."""

from pathlib import Path

import pytest

from tests.dataset.check.damages import (
    CHECKED,
    LONG,
    ONE,
    SHORT,
    Cases,
    Damage,
    Sound,
    another,
    cases,
    change,
    damaged,
    leaked,
    made,
    metadata,
    put,
    setting,
    table,
    target_in,
    twice,
    without,
)
from tests.dataset.check.folders import LISTS, Event, Folder, Maker, accepted, check, cut, refused


def shift(folder: Folder) -> None:
    """The last window begins one position earlier."""
    before, last = folder.rows("train", LONG)[-2:]
    last.update({name: [before[name][-3], *last[name][:-1]] for name in LISTS})


def early_windows(folder: Folder) -> None:
    """Windows of a user that are cut from the beginning, not from the end."""
    history = folder.history(LONG)
    ends = list(range(6, 18, 4))
    new = [cut({name: history[name][:end] for name in history if name != "user"}, 6, 4)[-1] for end in ends]
    rest = {name: history[name][14:] for name in LISTS}
    folder.put_windows(LONG, [*new, rest])


def one_sided(folder: Folder) -> None:
    """None in the test, as might be right of a user who has taken much after it, whose count says so."""
    change("test", CHECKED, popular_negatives=[], uniform_negatives=[])(folder)
    table("users", CHECKED, count=60)(folder)


WINDOWS: Cases = {
    "window shifted": (shift, r"train: row \d+ \(user 2\): items\[0\] is \d+, the window before has \d+ for the same"),
    "windows cut from the beginning": (early_windows, r"train: row \d+ \(user 2\): a later window has 4 items"),
    "item of an overlap": (
        put("train", LONG, "items", 1, another, window=1),
        r"\(user 2\): items\[1\] is .* before has",
    ),
    "time of an overlap": (put("train", LONG, "times", 0, 0, window=1), r"\(user 2\): times\[0\] is 0, .* before has"),
    "rating of an overlap": (
        put("train", LONG, "ratings", 0, 9.5, window=1),
        r"\(user 2\): ratings\[0\] is 9\.5, .* has",
    ),
    "first window missing": (
        without("train", LONG, window=0),
        r"test: row \d+ \(user 2\): has 18 items .* train 14 pos",
    ),
    "middle window missing": (without("train", LONG, window=1), r"train: row \d+ \(user 2\): .* the window before has"),
    "last window missing": (
        without("train", LONG, window=-1),
        r"test: row \d+ \(user 2\): has 18 items .* train 14 pos",
    ),
    "window doubled": (twice("train", LONG), r"train: row \d+ \(user 2\): items\[0\] is \d+, the window before has"),
    "first window too short": (
        change("train", LONG, items=[2], times=[1], ratings=[1.0]),
        r"train: row \d+ \(user 2\): the first of 4 windows has 1 items, it must have 3 to 6",
    ),
    "later window too short": (
        change("train", LONG, items=[2], times=[1], ratings=[1.0], window=2),
        r"train: row \d+ \(user 2\): a later window has 1 items, not max_len = 6",
    ),
    "window too long": (
        change("train", SHORT, items=[2] * 7, times=[1] * 7, ratings=[1.0] * 7),
        r"train: row \d+ \(user 1\): the first of 1 windows has 7 items, it must have 1 to 6",
    ),
    "empty window": (
        change("train", ONE, items=[], times=[], ratings=[]),
        r"\(user 4\): the first of 1 windows has 0 items",
    ),
    "max_len": (metadata(max_len=5), r"train: row \d+ \(user \d+\): the first of .* has 6 items, it must have"),
    "sliding_step": (setting(sliding_step=3), r"train: row \d+ \(user \d+\)"),
}

LEAKS: Cases = {
    "test target in train": (leaked(LONG, "test"), r"test: row \d+ \(user 2\): has 18 items .* train 19 positions"),
    "test target of a validated user in train": (
        leaked(CHECKED, "test"),
        r"validation: row \d+ \(user 3\): has 16 items .* train 18 positions",
    ),
    "validation target in train": (
        leaked(CHECKED, "validation"),
        r"validation: row \d+ \(user 3\): has 16 items .* train 17 positions",
    ),
    "validation target changed": (
        change("validation", CHECKED, target=another),
        r"test: .* \(user 3\): items\[16\] is \d+, the validation target is",
    ),
    "validation target's time changed": (
        change("validation", CHECKED, target_time=lambda _, row: row["target_time"] + 1),
        r"test: .* \(user 3\): times\[16\] is \d+, the validation target's time is \d+",
    ),
    "item of a test history": (
        put("test", LONG, "items", 4, another),
        r"test: row \d+ \(user 2\): items\[4\] is \d+, the training history has \d+",
    ),
    "time of a test history": (
        put("test", LONG, "times", 0, 0),
        r"test: row \d+ \(user 2\): times\[0\] is 0, the training history has \d+",
    ),
    "rating of a validation history": (
        put("validation", CHECKED, "ratings", 3, 7.25),
        r"validation: .* \(user 3\): ratings\[3\] is 7\.25, the training",
    ),
    "item of a validation history": (
        put("validation", CHECKED, "items", 0, another),
        r"validation: .* \(user 3\): items\[0\] is \d+, the training his",
    ),
    "validation row missing": (
        without("validation", CHECKED),
        r"test: .* \(user 3\): has 17 items .* train 16 positions of this user;",
    ),
    "user missing in train": (without("train", LONG), r"test: row 1 \(user 2\): this user has no training window"),
}

NEGATIVES: Cases = {
    "negative trained on": (
        put("test", LONG, "uniform_negatives", 2, lambda _, row: row["items"][7]),
        r"test: row 1 \(user 2\): uniform_negatives has item \d+, which this user has taken",
    ),
    "negative is the target": (
        put("test", LONG, "popular_negatives", 1, target_in("test")),
        r"test: .* popular_negatives .* this user has taken",
    ),
    "negative is the validation target": (
        put("test", CHECKED, "popular_negatives", 1, target_in("validation")),
        r"test: .* popular_negatives .* has taken",
    ),
    "negative of validation is the test target": (
        put("validation", CHECKED, "uniform_negatives", 0, target_in("test")),
        r"validation: .* uniform_neg.* has taken",
    ),
    "no negatives, though there are unseen items": (
        change("test", LONG, popular_negatives=[], uniform_negatives=[]),
        r"test: row 1 \(user 2\): has no negatives, though its user has 4\d or more unseen items, enough for 3",
    ),
    "no negatives in both splits, though there are unseen items": (
        lambda f: [
            change(split, CHECKED, popular_negatives=[], uniform_negatives=[])(f) for split in ("validation", "test")
        ],
        r"validation: row \d+ \(user 3\): has no negatives, though its user has \d+ or more unseen items, enough for 3",
    ),
}

BY_TIME: Cases = {
    "test target in train": (leaked(LONG, "test"), r"test: row \d+ \(user 2\): has \d+ items .* train \d+ positions"),
    "validation row missing": (without("validation", CHECKED), r"test: row \d+ \(user 3\): has \d+ items"),
    "validation target changed": (change("validation", CHECKED, target=another), r"the validation target is"),
    "negatives in one of the splits": (
        one_sided,
        r"test: row \d+ \(user 3\): has negatives in one of validation and test only",
    ),
}


@pytest.mark.parametrize(("split", "damage", "words"), cases(leave_one_out=WINDOWS | LEAKS | NEGATIVES, time=BY_TIME))
def test_rows_that_contradict_a_training_history_are_refused(
    sound: Sound, tmp_path: Path, split: str, damage: Damage, words: str
) -> None:
    refused(damaged(sound[split], damage, tmp_path / "dataset"), words)


def test_times_do_not_decrease_between_windows_that_do_not_overlap(tmp_path: Path) -> None:
    folder = made("none", step=6)
    assert check(folder.save(tmp_path / "sound"))[0] == 0
    window = folder.rows("train", LONG)[1]
    window["times"] = [0] * len(window["times"])
    refused(
        folder.save(tmp_path / "dataset"), r"train: .* \(user 2\): times\[0\] is 0, earlier than the end of the window"
    )


def test_what_a_user_did_after_the_test_may_be_why_there_are_no_negatives(tmp_path: Path) -> None:
    """By time nothing of it is in the splits, but its number in `users.parquet`."""
    histories = [[Event(2 + place, place, 1.0) for place in range(length)] for length in (8, 3)]
    maker = Maker(histories, split="time", n_negatives=3, n_items=8)
    maker.instant = 2
    folder = maker.make()
    first, second = folder.splits["test"]
    assert (first["items"], first["target"], first["popular_negatives"]) == ([2, 3], 4, [])
    assert (second["items"], second["target"], len(second["popular_negatives"])) == ([2, 3], 4, 3)
    accepted(folder.save(tmp_path / "dataset"))
