"""Columns of a log that depend on the item become attributes of the items; all others are named with the reason."""

import random
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import preprocessing
from bert4rec.dataset.check import check_dataset
from bert4rec.dataset.findings import findings
from bert4rec.dataset.reader import read_metadata
from bert4rec.prepare.new_items import AddedItems, add_items
from bert4rec.sources.attributes import ItemValues, reason_lines
from tests.fixture_types import Capture
from tests.folders import id_table
from tests.prepare.test_bad_input import content_of

BRANDS = ["Acme", "Bolt", "Core"]
N_ITEMS = 12
Prepare = Callable[..., int]


def log_rows(n_users: int = 40, **columns: Callable[[int, int, int], Any]) -> pl.DataFrame:
    """Rows of users and random items; each further column is a function of user, item and row."""
    rng = random.Random(5)
    pairs = [(user, rng.randrange(N_ITEMS)) for user in range(n_users) for _ in range(8)]
    return pl.DataFrame(
        {
            "user": [f"u{user}" for user, _ in pairs],
            "item": [f"A{item}" for _, item in pairs],
            "time": [1_600_000_000 + 60 * row for row in range(len(pairs))],
            **{name: [value(*pair, row) for row, pair in enumerate(pairs)] for name, value in columns.items()},
        },
        strict=False,
    )


def brand(_user: int, item: int, _row: int) -> str | None:
    return None if item == 7 else BRANDS[item % 3]


def price(_user: int, item: int, _row: int) -> float:
    return 1.5 + item


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Prepare a file of rows into the folder `out`; more words are options."""
    monkeypatch.chdir(tmp_path)

    def run(rows: pl.DataFrame, *words: str, name: str = "log.csv", out: str = "out") -> int:
        write(rows, name)
        usual = ["--data.replace=true", "--preprocessing.n_eval_negatives=1"]
        return preprocessing.main([name, f"--data.dataset_dir={out}", *usual, *words])

    return run


def write(rows: pl.DataFrame, name: str) -> None:
    kinds = {"csv": "csv", "jsonl": "ndjson", "parquet": "parquet", "feather": "ipc"}
    getattr(rows, f"write_{kinds[name.rpartition('.')[2]]}")(name)


def attributes(out: str = "out") -> pl.DataFrame:
    """The table of items by their original ids, without the columns that every dataset has."""
    items = id_table(Path(out), "items").sort("original")
    return items.drop("item", "count", "train_count")


def unused(printed: str) -> dict[str, str]:
    """Column → why it is not used."""
    blocks = [block.splitlines()[1:] for block in printed.split("columns that are not used")[1:]]
    lines = [line.strip() for block in blocks for line in takewhile(lambda line: line.startswith("  "), block)]
    found = [(name, line.partition(": ")[2]) for line in lines for name in line.partition(": ")[0].split(", ")]
    assert len(found) == len(dict(found))
    return dict(found)


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl", "log.parquet"])
def test_what_depends_on_the_item_becomes_typed_columns_of_the_items(prepare: Prepare, name: str) -> None:
    of_items = {
        "brand": brand, "price": price, "new": lambda _u, item, _r: item % 2 == 0,
        "weight": lambda _u, item, _r: 100 + item, "type": lambda _u, item, _r: ["book", "record"][item % 2],
    }  # fmt: skip
    others = {"amount": lambda _u, _i, row: row * 7 % 5, "age": lambda user, _i, _r: 20 + user % 4}
    assert prepare(log_rows(**of_items, **others), name=name) == 0
    assert "events" not in {finding.name for finding in findings(read_metadata(Path("out")))}  # the type is of items
    numbers = sorted(range(N_ITEMS), key=lambda item: f"A{item}")
    columns = {column: [value(0, item, 0) for item in numbers] for column, value in of_items.items()}
    assert_frame_equal(attributes(), pl.DataFrame({"original": [f"A{item}" for item in numbers], **columns}))
    assert "item_features" not in read_metadata(Path("out"))
    assert read_metadata(Path("out"))["bad_rows"] == {}  # of JSON lines with true and false
    check_dataset(Path("out"))


def test_each_other_column_is_named_once_with_its_reason(prepare: Prepare, capsys: Capture) -> None:
    others: dict[str, Callable[[int, int, int], Any]] = {
        "amount": lambda _u, _i, row: row * 7 % 5, "price": lambda _u, item, row: 2 + item + (item == 3 and row > 600),
        "town": lambda user, _i, _r: f"town {user % 5}", "line": lambda _u, _i, row: f"{row:x}",
        "basket": lambda user, _i, row: 10 * user + row % 8 // 4, "note": lambda *_: None, "shop": lambda *_: "north",
        "date": lambda *_: "yesterday", "loaded": lambda _u, _i, row: f"2026-01-{1 + row % 9:02d}",
        "tags": lambda *_: ["a", "b"], "cost": lambda _u, item, _r: "N/A" if item == 3 else f"{item}.25",
    }  # fmt: skip
    rows = log_rows(
        n_users=100, brand=brand, **others,
        action=lambda _u, _i, row: ["view", "buy"][row % 2], visit=lambda _u, _i, row: row // 3,
    ).with_columns(time=1_600_000_000 + pl.int_range(pl.len()) // 4 * 60)  # fmt: skip
    assert prepare(rows, name="log.parquet") == 0
    printed = capsys.readouterr().out
    assert unused(printed).keys() == others.keys() - {"cost"}
    assert '"N/A"' in printed
    assert attributes().columns == ["original", "brand", "cost"]
    assert {"events", "sessions"} <= {finding.name for finding in findings(read_metadata(Path("out")))}
    few = pl.DataFrame({"user": [1, 1, 1, 2], "item": [1, 2, 3, 1], "colour": ["red", "blue", "red", "red"]})
    assert prepare(few) == 0
    assert "colour" in unused(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("price", lambda _u, item, row: 2.5 + item + (row == 3000), "--data.item_features.price=number"),
        ("title", lambda _u, item, row: f"{'the ' * (row % 2)}thing {item}", "--title=title"),
    ],
)
def test_a_column_that_differs_within_items_is_taken_by_name(
    prepare: Prepare, capsys: Capture, name: str, value: Callable[[int, int, int], Any], option: str
) -> None:
    rows = log_rows(n_users=400, **{name: value})
    assert prepare(rows) == 0
    assert name in unused(capsys.readouterr().out)
    assert attributes().columns == ["original"]
    assert prepare(rows, option) == 0
    first = rows.group_by("item").agg(pl.col(name).first()).rename({"item": "original"}).sort("original")
    assert attributes().equals(first)
    assert [*read_metadata(Path("out")).get("item_features", {})] == [name] * ("features" in option)


def test_numbers_are_equal_however_they_are_written_and_files_may_lack_a_column(prepare: Prepare) -> None:
    rows = log_rows(price=lambda _u, item, row: f"{2 + item}.5{'0' * (row % 3)}", brand=brand)
    Path("logs").mkdir()
    write(rows[:100].with_columns(brand=pl.lit("")), "logs/1.csv")
    write(rows[100:200].drop("brand"), "logs/2.csv")
    assert prepare(rows[200:], name="logs/3.csv") == 0
    whole = attributes()
    assert preprocessing.main(["logs/*.csv", "--data.dataset_dir=parts", "--preprocessing.n_eval_negatives=1"]) == 0
    assert attributes("parts").equals(whole)
    assert whole["price"].sort().to_list() == [2.5 + item for item in range(N_ITEMS)]


def test_a_feature_of_the_log_is_that_of_a_file_of_items(prepare: Prepare) -> None:
    rows = log_rows(brand=brand, price=price)
    kinds = ["--data.item_features.brand=category", "--data.item_features.price=number"]
    assert prepare(rows, *kinds) == 0
    rows.select("item", "brand", "price").unique(maintain_order=True).write_csv("items.csv")
    assert prepare(rows.drop("brand", "price"), "--items=items.csv", *kinds, name="short.csv", out="two") == 0
    one, two = Path("out"), Path("two")
    assert content_of(one) == content_of(two)
    assert read_metadata(one)["item_features"] == read_metadata(two)["item_features"]
    check_dataset(one)


def test_a_file_of_items_wins_and_both_give_features(prepare: Prepare, capsys: Capture) -> None:
    rows = log_rows(brand=brand, price=price)
    lines = [f"A{item},own,{item % 2}" for item in range(N_ITEMS)]
    Path("items.csv").write_text("\n".join(["item,brand,size", *lines, "B,x,1"]) + "\n")
    expected = {("brand=category", "size=category", "price=number"): {"brand", "size", "price"},
                (): {"brand", "size"}, ("price=number",): {"price"}}  # fmt: skip  # unless named, those of the file
    for kinds, names in expected.items():
        assert prepare(rows, "--items=items.csv", *(f"--data.item_features.{kind}" for kind in kinds)) == 0
        assert read_metadata(Path("out"))["item_features"].keys() == names
        assert "brand" in unused(capsys.readouterr().out)
        items = attributes()
        assert items.columns == ["original", "brand", "size", "price"]
        assert items["brand"].value_counts(sort=True)["brand"].to_list() == ["own", "x"]
        assert items.filter(pl.col("original") == "B")["price"].to_list() == [None]


def test_a_file_of_new_items_extends_the_features_of_a_log(prepare: Prepare) -> None:
    rows = log_rows(brand=brand, price=price)
    assert prepare(rows, "--data.item_features.brand=category") == 0
    Path("new.csv").write_text("item,brand,price\nZ,Bolt,9.5\nA1,Acme,0\n")
    assert add_items(Path("out"), "new.csv", Path("more")) == AddedItems(new=1, known=1)
    assert attributes("more").rows() == [*attributes().rows(), ("Z", "Bolt", 9.5)]
    check_dataset(Path("more"))


def test_an_extension_takes_the_features_from_the_log(prepare: Prepare) -> None:
    rows = log_rows(brand=brand, price=price)
    assert prepare(rows, "--data.item_features.brand=category", out="old") == 0
    more = pl.DataFrame({"user": ["new"] * 3, "item": ["A1", "Z", "A2"], "time": [1_700_000_000] * 3})
    grown = pl.concat([rows, more.with_columns(brand=pl.Series(["Bolt", "Acme", "Core"]))], how="diagonal")
    assert prepare(grown, "--data.extends=old", name="grown.csv") == 0
    old, new = (read_metadata(Path(name))["item_features"] for name in ("old", "out"))
    assert old["brand"]["n_values"] == new["brand"]["n_values"]
    values = [pl.read_parquet(f"{name}/item_features/values.parquet") for name in ("old", "out")]
    assert values[0].equals(values[1])
    assert dict(attributes().select("original", "brand").rows())["Z"] == "Acme"
    assert prepare(grown.drop("brand"), "--data.extends=old", name="without.csv", out="no") == 2


REFUSED = [
    "brnd=category", "user=category", "item=category", "count=number", "brand=number", "tags=categories",
    "brand=category --data.source=sequences",
]  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_a_feature_that_the_log_cannot_give_is_one_line(prepare: Prepare, capsys: Capture, words: str) -> None:
    rows = log_rows(brand=brand, count=lambda _u, item, _r: item)
    rows = rows.with_columns(tags=pl.lit([1, 2])) if "tags" in words else rows
    name = "log.jsonl" if "tags" in words else "log.csv"
    assert prepare(rows, *f"--data.item_features.{words}".split(), name=name) == 2
    error = capsys.readouterr().err
    assert (words.partition("=")[0] in error, error.count("\n")) == (True, 1), error
    assert not Path("out").exists()


def test_many_columns_do_not_flood() -> None:
    assert len([*reason_lines({f"c{number}": f"reason {number}" for number in range(60)})]) == 13


VALUES = st.sampled_from([None, "", "a", "b", "1", "1.0", "1.50", "1.5"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), VALUES), min_size=1, max_size=40), st.integers(1, 9))
def test_values_in_parts_are_those_of_the_whole(pairs: list[tuple[int, str | None]], size: int) -> None:
    rows = pl.DataFrame(pairs, schema={"item": pl.Int64, "\nx": pl.String}, orient="row")
    found, equal = ItemValues({"\nx": "x"}), {"1.0": "1", "1.50": "1.5"}
    for part in rows.iter_slices(size):
        found.add(part)
    values = {item: [value for other, value in pairs if other == item and value] for item, _ in pairs}
    assert dict(found.first(["\nx"]).rows()) == {item: next(iter(known), None) for item, known in values.items()}
    distinct = [{equal.get(value, value) for value in known} for known in values.values()]
    item_evidence = found.evidence("\nx")
    assert item_evidence.n_groups == sum(len(known) > 1 for known in values.values())
    assert item_evidence.n_varied == sum(len(each) > 1 for each in distinct)
    assert item_evidence.n_values == min(2, len(set().union(*distinct)))


@pytest.mark.parametrize("name", ["log.parquet", "log.feather"])
def test_categories_are_texts_and_durations_are_seconds(prepare: Prepare, name: str) -> None:
    rows = log_rows(
        title=lambda _u, item, _r: f"Thing number {item}", stars=lambda *_: "4.5", brand=brand,
        at=lambda _u, _i, row: f"2026-01-{1 + row // 60 % 28:02} 10:{row % 60:02}:00",
    ).drop("time").with_columns(
        length=pl.duration(seconds=pl.col("item").str.slice(1).cast(pl.Int64)),
        played=pl.duration(minutes=pl.int_range(pl.len())),
    )  # fmt: skip
    assert prepare(rows, "--rating=stars", name=name, out="texts") == 0
    assert prepare(rows.cast({pl.String: pl.Categorical}), "--rating=stars", name=name, out="categories") == 0
    texts, categories = (read_metadata(Path(folder)) for folder in ("texts", "categories"))
    assert texts["fingerprint"] == categories["fingerprint"]
    assert attributes("texts")["length"].to_list() == [float(item[1:]) for item in attributes("texts")["original"]]
    assert "played" not in attributes("texts").columns
    fields = {"user": "user", "item": "item", "time": "at", "rating": "stars", "title": "title"}
    assert texts["columns"] == fields
