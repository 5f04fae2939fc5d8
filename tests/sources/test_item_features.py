"""A file of items becomes numbers: each kind written out, what is guessed and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import preprocessing
from bert4rec.dataset.check import check_dataset
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.prepare.folder import write_metadata
from bert4rec.prepare.new_items import add_items
from bert4rec.runtime.errors import DataError
from bert4rec.sources.item_features import read_item_file, write_features
from tests.fixture_types import Capture
from tests.folders import id_table

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


GUESSES = {
    "category": ["a", "b", "a", "b"],
    "categories": [["a"], ["b", "c"], [], ["a"]],
    "number": [1.5, 2.5, None, 3.5],
    "words": ["one two three", "two three four", "one two five", "three one six"],
    "vector": [[1.0, 0.0], [0.0, 1.0], None, [1.0, 1.0]],
}
UNUSED = {
    "constant": ["a"] * 4, "empty": [None] * 4, "distinct": ["q", "w", "e", "r"], "nested": [[[1]], [[2]], [], []],
}  # fmt: skip


@pytest.mark.parametrize("column", ["title", "name"])
def test_an_item_without_a_title_in_the_log_has_that_of_the_file(prepare: Prepare, column: str) -> None:
    text = TABLE.replace("stock", f"stock,{column}").replace("true\n", "true,file\n").replace("false\n", "false,file\n")
    Path("new.csv").write_text(text.replace("\n9,", "\n10,"))
    if column == "title":  # new items may be the first with titles
        assert prepare(TABLE) == 0
        add_items(Path("out"), "new.csv", Path("first"))
        items = id_table(Path("first"), "items").select("original", "title").drop_nulls()
        assert dict(items.rows()) == {10: "file"}
        check_dataset(Path("first"))
    head, *rows = Path("log.csv").read_text().splitlines()
    Path("log.csv").write_text("\n".join([f"{head},name", *(f"{row},T{row.split(',')[1]}" for row in rows)]) + "\n")
    assert prepare(text, "--title=name", "--data.replace=true") == 0
    titles = dict(id_table(Path("out"), "items").select("original", "title").rows())
    assert titles == {1: "T1", 2: "T2", 3: "T3", 4: "T4", 5: "T5", 9: "file"}
    add_items(Path("out"), "new.csv", Path("more"))
    more = dict(id_table(Path("more"), "items").select("original", "title").rows())
    assert more == titles | {10: "file"}


def test_each_kind_becomes_the_numbers_of_its_values(prepare: Prepare) -> None:
    assert prepare(TABLE) == 0
    dataset = open_dataset(Path("out"))
    found = features(dataset)
    # 5 is a test target alone and 9 not in the log: what only they have is unseen, which is value 0.
    genres = {1: ["Action", "Comedy"], 2: ["Comedy"], 3: ["Action", "Drama"], 4: [0], 5: [0], 9: ["Action"]}
    assert {item: row["genre"] for item, row in found.items()} == genres
    brands = {1: ["x"], 2: ["y"], 3: ["x"], 4: ["y"], 5: [0], 9: [0]}
    assert {item: row["brand"] for item, row in found.items()} == brands
    edges = dataset.metadata["item_features"]["price"]["edges"]
    prices = {3: [0], 9: [1 + len(edges)], 2: [1 + sum(edge <= 2.0 for edge in edges)]}
    assert {item: found[item]["price"] for item in prices} == prices
    assert found[1]["stock"] == found[9]["stock"] == ["true"]
    items = id_table(Path("out"), "items")
    assert items.filter(pl.col("count") == 0)["original"].to_list() == [9]
    assert dict(items.select("original", "stock").rows()) == {1: True, 2: False, 3: True, 4: True, 5: False, 9: True}
    numbers = {original: item for item, original in enumerate(dataset.originals(6))}
    assert dataset.features
    categories = dataset.features.categories_of(np.array([numbers[3], numbers[4], numbers[5], numbers[3]]))
    assert categories == {"brand": ["x", "y", "", "x"], "stock": ["true", "true", "false", "true"]}
    assert dataset.metadata["item_features"]["genre"]["coverage"] == pytest.approx(5 / 6)


DAMAGE: dict[str, Callable[[Any], Any]] = {
    "weights": lambda array: array * 2, "values": lambda array: array + 100, "offsets": lambda array: array[:-1],
    "vectors": lambda array: array * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_check_finds_features_that_are_wrong(prepare: Prepare, name: str) -> None:
    table = pl.DataFrame({"item": [1, 2, 3, 4, 5, 9], "kind": [*"ababab"], "image": [[0.6, 0.8]] * 6})
    assert prepare(table, name="items.parquet") == 0
    metadata = check_dataset(Path("out"))
    file = Path("out/item_features") / f"{name}.npy"
    np.save(file, DAMAGE[name](np.load(file)))
    Path("out/metadata.json").unlink()
    write_metadata(Path("out"), {key: value for key, value in metadata.items() if key not in ("files", "fingerprint")})
    with pytest.raises(DataError, match="item_features"):
        check_dataset(Path("out"))


KINDS_OF_TITLES = ("title=words", "image=vector", "year=number")


def test_words_of_two_items_and_vectors_of_length_one(prepare: Prepare) -> None:
    titles = ["The Red Fox", "A red HEN", "the blue fox", "Green fox, red", "lonely"]
    images = [[3.0, 4.0], [0.0, 2.0], None, [1.0, 0.0], [0.0, 0.0]]
    table = pl.DataFrame({"item": [1, 2, 3, 4, 5], "title": titles, "image": images, "year": [None] * 4 + [1.5]})
    assert prepare(table, *(f"--data.item_features.{kind}" for kind in KINDS_OF_TITLES), name="items.parquet") == 0
    found = features(open_dataset(Path("out")))
    (red,), fox_red_the = found[2]["title"], found[1]["title"]
    assert len(fox_red_the) == 3
    assert red in fox_red_the
    assert set(found[3]["title"]) == {*fox_red_the} - {red}
    assert found[5]["title"] == [0]
    vectors = {1: [0.6, 0.8], 2: [0, 1], 3: [0, 0], 4: [1, 0], 5: [0, 0]}
    assert {item: row["image"] for item, row in found.items()} == vectors
    assert [found[item]["year"] for item in (4, 5)] == [[0], [1]]  # no item with training positions has a number


def test_one_json_object_and_lines_of_json_are_read(prepare: Prepare) -> None:
    assert prepare(json.dumps({"1": [7, 8], "2": [7], "3": []}), name="items.json") == 0
    found = features(open_dataset(Path("out")))
    assert {item: row["attributes"] for item, row in found.items()} == {1: ["7", "8"], 2: ["7"], 3: [0], 4: [0], 5: [0]}
    lines = "".join(json.dumps({"item": item, "kind": "ab"[item % 2]}) + "\n" for item in range(1, 6))
    assert prepare(lines, name="items.jsonl") == 0
    assert features(open_dataset(Path("out")))[1] == {"kind": ["b"]}


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


UNITS = {"day": (pl.Date, pl.Datetime("ms")), "at": (pl.Datetime("ns"), pl.Date),
         "took": (pl.Duration, pl.Duration("ms")), "zone": (pl.Datetime("us", "UTC"), pl.Datetime("ms"))}  # fmt: skip


def test_an_extension_may_have_other_columns_empty_ones_and_other_units(prepare: Prepare) -> None:
    days = pl.Series([1, 40, 900, 20_000]) * 86_400_000_000
    times = {
        name: days.cast(pl.Duration if name == "took" else pl.Datetime).cast(types[0]) for name, types in UNITS.items()
    }
    table = pl.DataFrame({"item": [1, 2, 3, 4], **GUESSES, **UNUSED, **times})
    kinds = {kind: kind for kind in GUESSES} | dict.fromkeys(UNITS, "number")
    assert prepare(table, name="items.parquet") == 0
    Path("out").rename("old")
    other = table[:, ::-1].cast({name: types[1] for name, types in UNITS.items()})
    assert prepare(other, "--data.extends=old", name="items.parquet") == 0
    before, after = (open_dataset(Path(name)).metadata["item_features"] for name in ("old", "out"))
    assert {name: feature["kind"] for name, feature in before.items()} == kinds
    assert [*before.items()] == [*after.items()]
    for file in Path("old/item_features").iterdir():
        assert Path("out/item_features", file.name).read_bytes() == file.read_bytes()
    for empty in (None, ""):
        columns = [pl.lit(None if name == "vector" else empty).alias(name) for name in kinds]
        assert prepare(table.with_columns(columns), "--data.extends=old", name="new.parquet") == 0
        found = open_dataset(Path("out")).metadata["item_features"]
        assert {name: (found[name]["kind"], found[name]["coverage"]) for name in found} == {
            name: (kind, 0) for name, kind in kinds.items()
        }
    assert prepare(table.with_columns(vector=pl.lit([1.0])), "--data.extends=old", name="items.parquet") == 2
    Path("config.toml").write_text('[data.item_features]\nprice = "number"\nbrand = "ignore"\n')
    assert prepare(TABLE, "--config=config.toml", "--data.item_features.stock=category", "--data.replace=true") == 0
    assert list(open_dataset(Path("out")).metadata["item_features"]) == ["price", "stock"]


EXTENDS = ("--data.extends=out1",)


def test_the_categories_of_an_extension_are_split_as_before(prepare: Prepare) -> None:
    found = []
    for content, words in (("1,a;b\n2,b\n3,a;b\n4,7;b\n", ()), ("1,a;b\n2,b\n3,a\n4,7\n", EXTENDS), ("4,7\n", EXTENDS)):
        assert prepare(f"item,tags\n{content}", *words, name="items.tsv") == 0
        found.append(features(open_dataset(Path("out"))))
        Path("out").rename(f"out{len(found)}")
    assert found[1][1] == found[0][1]
    assert sorted(found[1][1]["tags"]) == ["a", "b"]
    assert found[2][4] == {"tags": ["7"]}


ITEMS = "item,kind\n1,a\n2,b\n3,a\n4,b\n"
NUMBERS = "item,price\n1,1.5\n2,2.5\n3,3.5\n"
KIND = "--data.item_features.kind"
PRICE = "--data.item_features.price"
TAGS = '{"item": 1, "kind": ["a"]}\n{"item": 2, "kind": ["a", "b"]}\n'

MALFORMED: list[tuple[str | bytes | list[Any], list[str]]] = [
    ("", []), ("\n \n", []), ("item,kind\n", []), ("code2,kind2\nx,y\n", []), ("item,price\nx,1.5\n1,2.5\n", []),
    ("item,price\n1.5,1.5\n1,2.5\n", []), ("item,price\n100,1.5\n101,2.5\n", []), ("item,price\n1,1.5\n1,2.5\n", []),
    ("item,price\n1,1.5\n,2.5\n", []), ("item\n1\n2\n", []), ("item,count\n1,2\n", []), ("item,original\n1,2\n", []),
    ("item,kind,kind\n1,a,b\n", []), (",item,kind\n0,1,a\n", []), ("item,kind,price\n1,a,2\n2,b\n", []),
    ("item,kind\n1,a\n2,b,c\n3,d,e\n", []), ("item,kind\n1,a\n\n2,b\n", []), ("item,kind\n1,a\nitem,kind\n", []),
    ('item,kind\n1,"a\n', []), ("item,kind\n1,a\n2,é\n".encode("latin-1"), []), (ITEMS.encode("utf-16"), []),
    (b"PK\x03\x04rest", []), (b"PAR1rest", []), (b"\x1f\x8b\x08rest", []), ("item,kind\n1,a\n2,a\n", []),
    ("item,kind\n1,a\n2,b\n3,c\n", []), ("item,kind\n1,\n2,\n", []), ("item,price\n1,1.5\n2,inf\n3,2.5\n", []),
    ('item,kind\n1,"[1, 2]"\n2,"[1]"\n', []), ('{"1": [3], "2": 3}', []), ('{"1": {"kind": "a"}}', []), ("[1, 2]", []),
    (f"{TAGS}3\n", []), (TAGS + '{"item": 3,\n', []), (TAGS + '{"item": 3, "kind": [], "kind": []}\n', []),
    ('{"1": [3], "2": [4], "1": [5]}', []), (TAGS + '{"item": 3, "kind": "a"}\n', []), ('{"1": [3, {"a": 1}]}', []),
    (ITEMS, [f"{KIND}s=category"]), (ITEMS, [f"{KIND}=colour"]), (ITEMS, ["--data.item_features.item=category"]),
    (ITEMS, ["--data.item_features=3"]), (ITEMS, [f"{KIND}=ignore"]), ("item,kind\n1,\n2,\n", [f"{KIND}=category"]),
    (ITEMS, [f"{KIND}=number"]), (ITEMS, [f"{KIND}=vector"]), ("item,kind\n1,true\n2,false\n", [f"{KIND}=number"]),
    ("item,kind\n1,true\n2,false\n", [f"{KIND}=words"]), (NUMBERS, [f"{PRICE}=words"]),
    (NUMBERS, [f"{PRICE}=categories"]), ("item,price\n1,1.5\n2,NaN\n3,2.5\n", [f"{PRICE}=number"]),
    ("item,price\n1,1.5\n2,NaN\n3,2.5\n", [f"{PRICE}=category"]), ("item,kind\n1,?\n2,!\n", [f"{KIND}=words"]),
    ('item,kind\n1,"[1, 2]"\n2,"[1]"\n', [f"{KIND}=categories"]),
    ('item,kind\n1,"[1, 2]"\n2,"[1]"\n', [f"{KIND}=category"]),
    ('{"item": 1, "kind": {"a": 1}}\n', [f"{KIND}=category"]),
    *[(column, [f"{KIND}=vector"]) for column in (  # a column of Parquet
        [[1.0, 2.0], [1.0], None], [[1.0, float("nan")], [1.0, 2.0], None], [[1.0, 2.0], [1.0, None], None],
        [[], [1.0], None],
    )],
    *[([["a"], ["b"], None], [f"{KIND}={kind}"]) for kind in ("vector", "category", "number", "words")],
    *[(column, [f"{KIND}=categories"]) for column in ([[[1]], [[2]], None], [{"a": 1}, {"a": 2}, None], [[], [], []])],
    ([b"a", b"b", None], [f"{KIND}=category"]), (ITEMS, ["--items=none.csv"]),
]  # fmt: skip


@pytest.mark.parametrize(("content", "words"), MALFORMED)
def test_what_cannot_be_used_is_one_line(prepare: Prepare, capsys: Capture, content: Any, words: list[str]) -> None:
    table = pl.DataFrame({"item": [1, 2, 3], "kind": content}) if isinstance(content, list) else content
    name = "items.parquet" if isinstance(content, list) else "items.csv"
    assert prepare(table, *words, name=name) == 2
    error = capsys.readouterr().err
    assert (error.startswith("error: "), error.count("\n"), "item" in error or "none.csv" in error) == (True, 1, True)
    assert {path.name for path in Path.cwd().iterdir()} == {"log.csv", name}


VALUES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text": (pl.String, st.sampled_from(["", " ", "a", "b|a", "one two three", "[1, 2]", "?"])),
    "whole": (pl.Int64, st.integers(0, 40)), "real": (pl.Float64, st.floats(width=32)),
    "truth": (pl.Boolean, st.booleans()), "date": (pl.Date, st.dates()), "bytes": (pl.Binary, st.binary(max_size=2)),
    "label": (pl.Categorical(), st.sampled_from("ab")),
    "texts": (pl.List(pl.String), st.lists(st.sampled_from(["", "a", "b"]), max_size=3)),
    "reals": (pl.List(pl.Float64), st.lists(st.floats(width=32), min_size=2, max_size=2)),
    "lists": (pl.List(pl.List(pl.Int64)), st.lists(st.lists(st.integers(0, 2), max_size=2), max_size=2)),
    "object": (pl.Struct({"a": pl.Int64}), st.fixed_dictionaries({"a": st.integers(0, 2)})),
    "nothing": (pl.Null, st.none()),
}  # fmt: skip
KINDS = st.sampled_from(["category", "categories", "number", "words", "vector", "ignore"])


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_each_column_is_used_or_is_named_with_why(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = tmp_path_factory.mktemp("property")
    n = data.draw(st.integers(1, 8))
    names = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, unique=True))
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
