"""A file of items becomes numbers: each kind written out, what is guessed and what is refused."""

import gzip
import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import preprocessing
from bert4rec.dataset.check import check_dataset
from bert4rec.dataset.item_features import Bags, FeatureRows
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.prepare.new_items import add_items
from bert4rec.prepare.writer import write_metadata
from bert4rec.runtime.errors import DataError
from bert4rec.sources.item_features import read_item_file, write_features
from tests.fixture_types import Capture

LOG = {"a": [1, 2, 3, 1], "b": [2, 3, 1, 4], "c": [3, 1, 2, 5], "d": [4, 1, 2, 3]}

Prepare = Callable[..., int]


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Prepare `LOG` with a file of items, given as its text or bytes; more words are options."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{user},{item},{1_600_000_000 + at}" for user, items in LOG.items() for at, item in enumerate(items)]
    (tmp_path / "log.csv").write_text("\n".join(["user,item,time", *rows]) + "\n")

    def run(content: str | bytes | pl.DataFrame, *words: str, name: str = "items.csv") -> int:
        if isinstance(content, pl.DataFrame):
            content.write_parquet(name)
        else:
            Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
        evaluated = "--preprocessing.n_eval_negatives=1"
        return preprocessing.main(["log.csv", f"--items={name}", "--data.dataset_dir=out", evaluated, *words])

    return run


def features(dataset: Dataset) -> dict[Any, dict[str, list[Any]]]:
    """Original id → feature → names of its values, or its numbers or vector."""
    assert dataset.features is not None
    about = dataset.features.about
    names = dict.fromkeys(range(dataset.features.sizes.n_values), "")
    if (file := dataset.folder / "item_features" / "values.parquet").exists():
        names |= dict(pl.read_parquet(file).select("number", "name").rows())
    found: dict[Any, dict[str, list[Any]]] = {}
    for item, original in enumerate(dataset.originals(dataset.n_items)):
        rows = dataset.features.read(np.array([item]))
        found[original], at = {}, 0
        for name, feature in about.items():
            if feature["kind"] == "vector":
                found[original][name] = pytest.approx(rows.vectors[0, at : at + feature["width"]].tolist())
                at += feature["width"]
                continue
            is_own = (rows.values >= feature["first"]) & (rows.values < feature["first"] + feature["n_values"])
            assert np.square(rows.weights[is_own]).sum() == pytest.approx(1)
            numbers = rows.values[is_own].tolist()
            found[original][name] = [names[each] if names[each] else each - feature["first"] for each in numbers]
    return found


TABLE = """item,genre,brand,price,stock
1,Action|Comedy,x,1.0,true
2,Comedy,y,2.0,false
3,Drama|Action,x,,true
4,,y,4.0,true
5,Horror,z,5.0,false
9,Action|Western,z,99.0,true
"""


@pytest.mark.parametrize("column", ["title", "name"])
def test_an_item_without_a_title_in_the_log_has_that_of_the_file(prepare: Prepare, column: str) -> None:
    log = Path("log.csv")
    head, *rows = log.read_text().splitlines()
    log.write_text("\n".join([f"{head},name", *(f"{row},T{row.split(',')[1]}" for row in rows)]) + "\n")
    text = TABLE.replace("stock", f"stock,{column}").replace("true\n", "true,file\n").replace("false\n", "false,file\n")
    assert prepare(text, "--title=name") == 0
    titles = dict(pl.read_parquet("out/items.parquet").select("original", "title").rows())
    assert titles == {1: "T1", 2: "T2", 3: "T3", 4: "T4", 5: "T5", 9: "file"}
    Path("new.csv").write_text(text.replace("\n9,", "\n10,"))
    add_items(Path("out"), "new.csv", Path("more"))
    more = dict(pl.read_parquet("more/items.parquet").select("original", "title").rows())
    assert more == titles | {10: "file"}


def test_new_items_may_be_the_first_with_titles(prepare: Prepare) -> None:
    assert prepare(TABLE) == 0
    Path("new.csv").write_text(
        TABLE.replace("stock", "stock,title")
        .replace("true\n", "true,file\n")
        .replace("\n9,", "\n10,")
        .replace("false\n", "false,\n")
    )
    add_items(Path("out"), "new.csv", Path("more"))
    items = pl.read_parquet("more/items.parquet")
    assert dict(items.select("original", "title").drop_nulls().rows()) == {10: "file"}
    check_dataset(Path("more"))


def test_each_kind_becomes_the_numbers_of_its_values(prepare: Prepare, capsys: Capture) -> None:
    assert prepare(TABLE) == 0
    dataset = open_dataset(Path("out"))
    found = features(dataset)
    # 5 is a test target alone and 9 not in the log: what only they have is unseen, which is value 0.
    assert {item: row["genre"] for item, row in found.items()} == {
        1: ["Action", "Comedy"], 2: ["Comedy"], 3: ["Action", "Drama"], 4: [0], 5: [0], 9: ["Action"],
    }  # fmt: skip
    assert {item: row["brand"] for item, row in found.items()} == {
        1: ["x"], 2: ["y"], 3: ["x"], 4: ["y"], 5: [0], 9: [0],
    }  # fmt: skip
    edges = dataset.metadata["item_features"]["price"]["edges"]
    assert found[3]["price"] == [0]
    assert found[9]["price"] == [1 + len(edges)]
    assert found[2]["price"] == [1 + sum(edge <= 2.0 for edge in edges)]
    assert found[1]["stock"] == found[9]["stock"] == ["true"]
    items = pl.read_parquet("out/items.parquet")
    assert items.filter(pl.col("count") == 0)["original"].to_list() == [9]
    assert dict(items.select("original", "stock").rows()) == {1: True, 2: False, 3: True, 4: True, 5: False, 9: True}
    numbers = {original: item for item, original in enumerate(dataset.originals(6))}
    assert dataset.features
    categories = dataset.features.categories_of(np.array([numbers[3], numbers[4], numbers[5], numbers[3]]))
    assert categories == {"brand": ["x", "y", "", "x"], "stock": ["true", "true", "false", "true"]}
    assert dataset.metadata["item_features"]["genre"]["coverage"] == pytest.approx(5 / 6)
    out = capsys.readouterr().out
    for column in ("genre", "brand", "price", "stock"):
        assert f"  {column}: " in out


@pytest.mark.parametrize(
    ("name", "damage", "token"),
    [
        ("weights", lambda array: array * 2, "weights"),
        ("values", lambda array: array + 100, "weights"),
        ("offsets", lambda array: array[:-1], "6 items"),
        ("vectors", lambda array: array * 2, "length 2"),
    ],
)
def test_a_check_finds_features_that_are_wrong(prepare: Prepare, name: str, damage: Any, token: str) -> None:
    table = pl.DataFrame({"item": [1, 2, 3, 4, 5, 9], "kind": [*"ababab"], "image": [[0.6, 0.8]] * 6})
    assert prepare(table, name="items.parquet") == 0
    metadata = check_dataset(Path("out"))
    file = Path("out/item_features") / f"{name}.npy"
    np.save(file, damage(np.load(file)))
    Path("out/metadata.json").unlink()
    write_metadata(Path("out"), {key: value for key, value in metadata.items() if key not in ("files", "fingerprint")})
    with pytest.raises(DataError, match=token):
        check_dataset(Path("out"))


def test_words_of_two_items_and_vectors_of_length_one(prepare: Prepare) -> None:
    table = pl.DataFrame(
        {
            "item": [1, 2, 3, 4, 5],
            "title": ["The Red Fox", "A red HEN", "the blue fox", "Green fox, red", "lonely"],
            "image": [[3.0, 4.0], [0.0, 2.0], None, [1.0, 0.0], [0.0, 0.0]],
        }
    )
    assert prepare(table, name="items.parquet") == 0
    found = features(open_dataset(Path("out")))
    bucket = {word: found[item]["title"] for word, item in (("red", 2), ("fox, red, the", 1))}
    assert len(bucket["red"]) == 1
    assert len(bucket["fox, red, the"]) == 3
    assert bucket["red"][0] in bucket["fox, red, the"]
    assert set(found[3]["title"]) == set(found[1]["title"]) - set(found[2]["title"])
    assert found[5]["title"] == [0]
    assert {item: row["image"] for item, row in found.items()} == {
        1: [0.6, 0.8], 2: [0, 1], 3: [0, 0], 4: [1, 0], 5: [0, 0],
    }  # fmt: skip


def test_one_json_object_and_lines_of_json_are_read(prepare: Prepare) -> None:
    assert prepare(json.dumps({"1": [7, 8], "2": [7], "3": []}), name="items.json") == 0
    found = features(open_dataset(Path("out")))
    assert {item: row["attributes"] for item, row in found.items()} == {1: ["7", "8"], 2: ["7"], 3: [0], 4: [0], 5: [0]}
    lines = "".join(json.dumps({"item": item, "kind": "ab"[item % 2]}) + "\n" for item in range(1, 6))
    assert prepare(lines, name="items.jsonl") == 0
    assert features(open_dataset(Path("out")))[1] == {"kind": ["b"]}


def test_settings_name_the_kinds_and_leave_the_rest_out(prepare: Prepare, capsys: Capture) -> None:
    Path("config.toml").write_text('[data.item_features]\nprice = "number"\nbrand = "ignore"\n')
    assert prepare(TABLE, "--config=config.toml", "--data.item_features.stock=category") == 0
    assert list(open_dataset(Path("out")).metadata["item_features"]) == ["price", "stock"]
    out = capsys.readouterr().out
    assert "genre: not used" in out
    assert "brand: not used" in out


def test_a_dataset_that_extends_another_keeps_its_numbers(prepare: Prepare, capsys: Capture) -> None:
    assert prepare(TABLE) == 0
    before = features(open_dataset(Path("out")))
    Path("out").rename("old")
    with Path("log.csv").open("a") as log:
        log.write("e,7,1700000000\ne,1,1700000001\ne,7,1700000002\n")
    more = TABLE + "7,Comedy|Musical,y,2.0,true\n"
    assert prepare(more, "--data.extends=old") == 0
    after = features(open_dataset(Path("out")))
    assert {item: after[item] for item in before} == before
    assert after[7] == {**before[2], "stock": before[1]["stock"]}  # a musical is a value that the model does not know
    old, new = (open_dataset(Path(name)).metadata["item_features"] for name in ("old", "out"))
    assert {name: one["n_values"] for name, one in old.items()} == {name: one["n_values"] for name, one in new.items()}
    for content, words in ((more, ["--data.item_features.genre=category"]), ("item,genre\n1,Comedy\n", [])):
        assert prepare(content, "--data.extends=old", "--data.replace=true", *words) == 2
        assert "item_features" in capsys.readouterr().err
    assert preprocessing.main(["log.csv", "--data.extends=old", "--data.dataset_dir=other"]) == 2
    assert "--items=FILE" in capsys.readouterr().err


def test_an_extension_may_have_its_columns_in_another_order_and_empty_ones(prepare: Prepare, capsys: Capture) -> None:
    table = pl.DataFrame(
        {
            "item": [1, 2, 3, 4, 5],
            "brand": ["x", "y", "x", "y", "x"],
            "words": ["one two three", "two three four", "one two five", "three one six", "one two six"],
            "price": [1.5, 2.5, 3.5, 4.5, None],
            "tags": [["a"], ["b", "c"], [], ["a"], ["c"]],
            "image": [[1.0, 0.0], [0.0, 1.0], None, [1.0, 1.0], [2.0, 1.0]],
            "sound": [[1.0], [2.0], [3.0], [4.0], [5.0]],
        }
    )
    assert prepare(table, name="items.parquet") == 0
    Path("out").rename("old")
    assert prepare(table[:, ::-1], "--data.extends=old", name="items.parquet") == 0
    about = [open_dataset(Path(name)).metadata["item_features"] for name in ("old", "out")]
    assert [*about[0].items()] == [*about[1].items()]
    for file in Path("old/item_features").iterdir():
        assert Path("out/item_features", file.name).read_bytes() == file.read_bytes()
    for column in table.columns[1:]:
        for empty in [None] if column in ("image", "sound") else [None, ""]:
            capsys.readouterr()
            assert (
                prepare(table.with_columns(pl.lit(empty).alias(column)), "--data.extends=old", name="new.parquet") == 0
            )
            assert re.search(rf"  {column}: {about[0][column]['kind']}[^,]*, 0% of the items", capsys.readouterr().out)
            assert open_dataset(Path("out")).metadata["item_features"][column]["coverage"] == 0
    assert prepare(table.with_columns(sound=pl.lit([1.0, 2.0])), "--data.extends=old", name="items.parquet") == 2
    assert "such as 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (pl.Date, pl.Datetime("ms")), (pl.Datetime("ns"), pl.Date), (pl.Datetime("us", "UTC"), pl.Datetime("ms")),
        (pl.Duration("ms"), pl.Duration("us")),
    ],
)  # fmt: skip
def test_a_date_is_the_same_number_in_an_extension_that_has_another_unit(
    prepare: Prepare, before: pl.DataType, now: pl.DataType
) -> None:
    days = pl.Series([1, 40, 900, 901, 20_000]) * 86_400_000
    at = days.cast(pl.Duration("ms")) if before == pl.Duration else days.cast(pl.Datetime("ms"))
    at = at.dt.replace_time_zone(getattr(before, "time_zone", None)) if before == pl.Datetime else at
    found = []
    for dtype, words in ((before, ()), (now, ("--data.extends=old",))):
        at = at.dt.replace_time_zone(None) if words and before == pl.Datetime else at
        table = pl.DataFrame({"item": [1, 2, 3, 4, 5], "at": at.cast(dtype)})
        assert prepare(table, *words, name="items.parquet") == 0
        found.append(features(open_dataset(Path("out"))))
        Path("out").rename("old" if not words else "new")
    assert found[0] == found[1]
    assert len({str(row["at"]) for row in found[0].values()}) == 4


def test_ids_are_those_of_the_log_and_text_may_be_packed(prepare: Prepare, tmp_path: Path) -> None:
    rows = ["user,item", *(f"{user},00{item}" for user, items in LOG.items() for item in [*items, "x"])]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    content = "item,price\n" + "".join(f"00{item},{item}.5\n" for item in range(1, 6))
    assert prepare(gzip.compress(content.encode()), name="items.csv.gz") == 0
    items = pl.read_parquet("out/items.parquet")
    assert dict(items.select("original", "price").rows())["003"] == 3.5
    assert items["price"].null_count() == 1  # of 00x


def test_the_categories_of_an_extension_are_split_as_before(prepare: Prepare) -> None:
    assert prepare("item,tags\n1,a;b\n2,b\n3,a;b\n4,7;b\n", name="items.tsv") == 0
    before = features(open_dataset(Path("out")))
    Path("out").rename("old")
    assert prepare("item,tags\n1,a;b\n2,b\n3,a\n4,7\n", "--data.extends=old") == 0
    after = features(open_dataset(Path("out")))
    assert after[1] == before[1]
    assert sorted(after[1]["tags"]) == ["a", "b"]
    Path("out").rename("older")
    assert prepare("item,tags\n4,7\n", "--data.extends=old") == 0
    assert features(open_dataset(Path("out")))[4] == {"tags": ["7"]}


ITEMS = "item,kind\n1,a\n2,b\n3,a\n4,b\n"
NUMBERS = "item,price\n1,1.5\n2,2.5\n3,3.5\n"
KIND = "--data.item_features.kind"
PRICE = "--data.item_features.price"
X = "--data.item_features.x"
TAGS = '{"item": 1, "kind": ["a"]}\n{"item": 2, "kind": ["a", "b"]}\n'

MALFORMED: dict[str, tuple[str | bytes, list[str], list[str]]] = {
    "an empty file": ("", [], ["items.csv", "is empty"]),
    "blank lines alone": ("\n \n", [], ["items.csv", "is empty"]),
    "a header alone": ("item,kind\n", [], ["items.csv", "no items"]),
    "no column of ids": ("code2,kind2\nx,y\n", [], ["no column item", "code2, kind2"]),
    "ids of another type": ("item,price\nx,1.5\n1,2.5\n", [], ['item "x"']),
    "ids that are no whole numbers": ("item,price\n1.5,1.5\n1,2.5\n", [], ['item "1.5"']),
    "unknown ids alone": ("item,price\n100,1.5\n101,2.5\n", [], ["items.csv", "5 items"]),
    "an id twice": ("item,price\n1,1.5\n1,2.5\n", [], ['"1"', "two rows"]),
    "a row without an id": ("item,price\n1,1.5\n,2.5\n", [], ["1 row without item"]),
    "ids alone": ("item\n1\n2\n", [], ["only the column item"]),
    "a name of the dataset": ("item,count\n1,2\n", [], ['"count"', "rename"]),
    "another name of the dataset": ("item,original\n1,2\n", [], ['"original"', "rename"]),
    "two columns of one name": ("item,kind,kind\n1,a,b\n", [], ['"kind"', "rename"]),
    "a column without a name": (",item,kind\n0,1,a\n", [], ["column 1 of 3", "name"]),
    "too few fields": ("item,kind,price\n1,a,2\n2,b\n", [], ["line 3", "2 fields", "3"]),
    "too many fields": ("item,kind\n1,a\n2,b,c\n3,d,e\n", [], ["line 3", "3 fields", "1 line more"]),
    "the header again": ("item,kind\n1,a\nitem,kind\n", [], ["line 3", "header"]),
    "an unclosed quote": ('item,kind\n1,"a\n', [], ["line 2", "quote"]),
    "a ZIP archive": (b"PK\x03\x04rest", [], ["items.csv", "ZIP"]),
    "a damaged Parquet file": (b"PAR1rest", [], ["items.csv"]),
    "a damaged gzip file": (b"\x1f\x8b\x08rest", [], ["items.csv"]),
    "no feature that exists": (ITEMS, [f"{KIND}s=category"], ["kinds", "item, kind", "did you mean kind?"]),
    "no kind that exists": (ITEMS, [f"{KIND}=colour"], ["colour", "category"]),
    "a feature of ids": (ITEMS, ["--data.item_features.item=category"], ["item_features.item", "remove it"]),
    "no table of features": (ITEMS, ["--data.item_features=3"], ["item_features"]),
    "only ignored columns": (ITEMS, [f"{KIND}=ignore"], ["none of its columns", "kind"]),
    "a constant column alone": ("item,kind\n1,a\n2,a\n", [], ["kind", 'the same for all items: "a"']),
    "a distinct text alone": ("item,kind\n1,a\n2,b\n3,c\n", [], ["kind", "nearly a different value"]),
    "an empty column alone": ("item,kind\n1,\n2,\n", [], ["kind", "empty"]),
    "an empty column by name": ("item,kind\n1,\n2,\n", [f"{KIND}=category"], ["item_features.kind", "empty"]),
    "a text as number": (ITEMS, [f"{KIND}=number"], ["kind", 'item "1" has "a"', "number"]),
    "a text as vector": (ITEMS, [f"{KIND}=vector"], ["kind", 'item "1" has "a"', "list"]),
    "truth as number": ("item,kind\n1,true\n2,false\n", [f"{KIND}=number"], ["kind", 'item "1" has true']),
    "truth as words": ("item,kind\n1,true\n2,false\n", [f"{KIND}=words"], ["kind", "true", "a text"]),
    "numbers as words": (NUMBERS, [f"{PRICE}=words"], ["price", 'item "1" has 1.5', "a text"]),
    "numbers as categories": (NUMBERS, [f"{PRICE}=categories"], ["price", 'item "1" has 1.5', "category"]),
    "not a number": ("item,price\n1,1.5\n2,NaN\n3,2.5\n", [f"{PRICE}=number"], ["price", 'item "2" has NaN', "finite"]),
    "not a category": ("item,price\n1,1.5\n2,NaN\n3,2.5\n", [f"{PRICE}=category"], ["price", 'item "2" has NaN']),
    "an infinite number": ("item,price\n1,1.5\n2,inf\n3,2.5\n", [], ["price", 'item "2"', "finite"]),
    "no word": ("item,kind\n1,?\n2,!\n", [f"{KIND}=words"], ["kind", "no value"]),
    "a list as text": ('item,kind\n1,"[1, 2]"\n2,"[1]"\n', [f"{KIND}=categories"], ["kind", '"[1, 2]"', "a|b"]),
    "a list as a category": ('item,kind\n1,"[1, 2]"\n2,"[1]"\n', [f"{KIND}=category"], ["kind", '"[1, 2]"', "a|b"]),
    "a list as text, guessed": ('item,kind\n1,"[1, 2]"\n2,"[1]"\n', [], ["kind", '"[1, 2]"', "a|b"]),
    "an object with no list": ('{"1": [3], "2": 3}', [], ["items.csv", 'item "2" has 3', "list of values"]),
    "an object with another": ('{"1": {"kind": "a"}}', [], ['item "1" has {"kind": "a"}']),
    "a header that is JSON": ("[1, 2]", [], ["items.csv", "no items"]),
    "a line with no object": (f"{TAGS}3\n", [], ["line 3", "3", "JSON object"]),
    "a line that is cut off": (TAGS + '{"item": 3,\n', [], ["line 3", "JSON object"]),
    "a key twice in a line": (TAGS + '{"item": 3, "kind": [], "kind": []}\n', [], ["line 3", '"kind"', "twice"]),
    "a key twice in one object": ('{"1": [3], "2": [4], "1": [5]}', [], ['"1"', "twice"]),
    "a list and a text": (TAGS + '{"item": 3, "kind": "a"}\n', [], ["items.csv", '"a"']),
    "numbers and texts in a list": ('{"1": [3, {"a": 1}]}', [], ["items.csv"]),
    "an object as a value": ('{"item": 1, "kind": {"a": 1}}\n', [f"{KIND}=category"], ["kind", '{"a": 1}', "ignore"]),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_what_cannot_be_used_is_one_line(prepare: Prepare, capsys: Capture, case: str) -> None:
    content, words, tokens = MALFORMED[case]
    assert_refused(prepare, capsys, content, words, tokens)


def assert_refused(
    prepare: Prepare, capsys: Capture, content: str | bytes | pl.DataFrame, words: list[str], tokens: list[str],
    name: str = "items.csv",
) -> None:  # fmt: skip
    """Assert that the preparation writes one line with all `tokens` to stderr, and nothing to the disk."""
    assert prepare(content, *words, name=name) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert all(token in error for token in tokens), error
    assert {path.name for path in Path.cwd().iterdir()} == {"log.csv", name}


@pytest.mark.parametrize(
    ("column", "kind", "tokens"),
    [
        ([[1.0, 2.0], [1.0], None], "vector", ['item "2" has [1.0]', "length"]),
        ([[1.0, float("nan")], [1.0, 2.0], None], "vector", ['item "1" has [1.0, NaN]', "finite"]),
        ([[1.0, 2.0], [1.0, None], None], "vector", ['item "2" has [1.0, null]', "missing"]),
        ([[], [1.0], None], "vector", ['item "1" has []']),
        ([["a"], ["b"], None], "vector", ['item "1" has ["a"]', "numbers"]),
        ([["a"], ["b"], None], "category", ['item "1" has ["a"]', "choose categories"]),
        ([["a"], ["b"], None], "number", ["choose categories"]),
        ([["a"], ["b"], None], "words", ["choose categories"]),
        ([[[1]], [[2]], None], "categories", ['item "1" has [[1]]', "ignore"]),
        ([{"a": 1}, {"a": 2}, None], "categories", ['item "1" has {"a": 1}', "ignore"]),
        ([b"a", b"b", None], "category", ['item "1"', "ignore"]),
        ([[], [], []], "categories", ["no value"]),
    ],
)
def test_values_that_do_not_fit_their_kind_are_one_line(
    prepare: Prepare, capsys: Capture, column: list[Any], kind: str, tokens: list[str]
) -> None:
    table = pl.DataFrame({"item": [1, 2, 3], "x": column})
    assert_refused(prepare, capsys, table, [f"{X}={kind}"], ["data.item_features.x", *tokens], "items.parquet")


def test_a_missing_file_and_generated_data_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("items.csv").write_text(ITEMS)
    assert preprocessing.main(["--items=items.csv"]) == 2
    assert "items.csv" in capsys.readouterr().err
    Path("log.csv").write_text("user,item\n1,2\n1,3\n")
    assert preprocessing.main(["log.csv", "--items=none.csv"]) == 2
    error = capsys.readouterr().err
    assert "none.csv" in error
    assert error.count("\n") == 1


GUESSES = {
    "category": ["a", "b", "a", "b"],
    "categories": [["a"], ["b", "c"], [], ["a"]],
    "number": [1.5, 2.5, None, 3.5],
    "words": ["one two three", "two three four", "one two five", "three one six"],
    "vector": [[1.0, 0.0], [0.0, 1.0], None, [1.0, 1.0]],
}
UNUSED = {
    "constant": ["a"] * 4,
    "empty": [None] * 4,
    "distinct": ["q", "w", "e", "r"],
    "nested": [[[1]], [[2]], [], []],
}


def test_no_column_is_left_out_in_silence(tmp_path: Path) -> None:
    table = pl.DataFrame({"item": [1, 2, 3, 4], **GUESSES, **UNUSED})
    table.write_parquet(tmp_path / "items.parquet")
    file = read_item_file(str(tmp_path / "items.parquet"), {}, item_column="item", item_type=pl.Int64())
    assert {feature.column: feature.kind for feature in file.features} == {kind: kind for kind in GUESSES}
    assert file.unused.keys() == UNUSED.keys()
    assert len(file.lines()) == len(table.columns) - 1


VALUES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text": (pl.String, st.sampled_from(["", " ", "a", "b|a", "one two three", "[1, 2]", "?"])),
    "whole": (pl.Int64, st.integers(0, 40)),
    "real": (pl.Float64, st.floats(width=32)),
    "truth": (pl.Boolean, st.booleans()),
    "date": (pl.Date, st.dates()),
    "bytes": (pl.Binary, st.binary(max_size=2)),
    "label": (pl.Categorical(), st.sampled_from("ab")),
    "texts": (pl.List(pl.String), st.lists(st.sampled_from(["", "a", "b"]), max_size=3)),
    "reals": (pl.List(pl.Float64), st.lists(st.floats(width=32), min_size=2, max_size=2)),
    "lists": (pl.List(pl.List(pl.Int64)), st.lists(st.lists(st.integers(0, 2), max_size=2), max_size=2)),
    "object": (pl.Struct({"a": pl.Int64}), st.fixed_dictionaries({"a": st.integers(0, 2)})),
    "nothing": (pl.Null, st.none()),
}
KINDS = st.sampled_from(["category", "categories", "number", "words", "vector", "ignore"])


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_each_column_is_a_feature_or_is_named_with_the_reason(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = tmp_path_factory.mktemp("property")
    n, names = (
        data.draw(st.integers(1, 8)),
        data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, unique=True)),
    )
    columns = [
        pl.Series(name, data.draw(st.lists(st.none() | VALUES[name][1], min_size=n, max_size=n)), VALUES[name][0])
        for name in names
    ]
    pl.DataFrame([pl.Series("item", range(n)), *columns]).write_parquet(place / "items.parquet")
    kinds = data.draw(st.dictionaries(st.sampled_from(names), KINDS))
    try:
        file = read_item_file(str(place / "items.parquet"), kinds, item_column="item", item_type=pl.Int64())
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017  # most kinds do not fit most values
        assert any(name in str(error) for name in names)  # noqa: PT017
        return
    used = {feature.column: feature.kind for feature in file.features}
    assert sorted([*used, *file.unused]) == sorted(names)
    assert all(file.unused.values())
    assert {**used, **dict.fromkeys(file.unused, "ignore")}.items() >= kinds.items()
    assert len(file.lines()) == len(names)
    about = write_features(place, file, pl.Series("item", range(n)), np.ones(n, np.int64))
    assert {name: feature["kind"] for name, feature in about.items()} == used


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.sampled_from("abcdef"), max_size=4), min_size=2, max_size=12))
def test_the_names_of_the_numbers_are_the_values_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, values: list[list[str]]
) -> None:
    place = tmp_path_factory.mktemp("property")
    table = pl.DataFrame({"item": range(len(values)), "tags": values}, schema_overrides={"tags": pl.List(pl.String)})
    table.write_parquet(place / "items.parquet")
    kinds: Any = {"tags": "categories"}
    if not any(values):
        return
    file = read_item_file(str(place / "items.parquet"), kinds, item_column="item", item_type=pl.Int64())
    write_features(place, file, table["item"], np.ones(len(values), np.int64))
    names = dict(pl.read_parquet(place / "item_features" / "values.parquet").select("number", "name").rows())
    offsets, numbers = (np.load(place / "item_features" / f"{name}.npy") for name in ("offsets", "values"))
    parts = [numbers[start:stop].tolist() for start, stop in pairwise(offsets)]
    found = [{names[number] for number in part if number in names} for part in parts]
    assert found == [{*each} for each in values]


@given(st.lists(st.lists(st.integers(0, 5), unique=True, min_size=1, max_size=4), min_size=1, max_size=6))
def test_the_values_of_some_items_are_read_together(bags: list[list[int]]) -> None:
    items = np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])
    made = Bags.of([(items, np.concatenate(bags).astype(np.int64))], n_items=len(bags))
    for item, bag in enumerate(bags):
        where = slice(made.offsets[item], made.offsets[item + 1])
        assert made.values[where].tolist() == sorted(bag)
        assert np.square(made.weights[where]).sum() == pytest.approx(1)
    assert FeatureRows._fields == ("values", "weights", "lengths", "vectors")
