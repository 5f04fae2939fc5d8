"""New items of a file join a dataset folder: it is the one that a preparation with these items makes."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from bert4rec.dataset.check import check_dataset
from bert4rec.dataset.reader import open_dataset
from bert4rec.prepare.new_items import AddedItems, add_items
from tests.checks import one_line
from tests.folders import files_of, id_table
from tests.preparation import metadata_of, prepared

NEW = pl.DataFrame(
    {
        "item": [40, 3, 31, 35, 27],
        "image": [[1.0, 2.0, 2.0], [9.0, 9.0, 9.0], None, [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]],  # in another order
        "brand": ["c", "b", "a", None, "b"],
        "price": [9e9, 1.0, None, -1.0, 2.0],
        "tags": [["t1", "unseen"], ["t2"], [], ["t0"], ["t3"]],
    }
)
N_NEW = 3  # 40, 31 and 35: the dataset has 3 and 27


def features_of(folder: Path) -> dict[Any, list[Any]]:
    """Original id → the numbers of the values, their weights and the vector."""
    dataset = open_dataset(folder)
    assert dataset.features is not None
    rows = [dataset.features.read(np.array([item])) for item in range(dataset.n_items)]
    return dict(
        zip(dataset.originals(dataset.n_items), [[part.tolist() for part in each] for each in rows], strict=True)
    )


@pytest.fixture
def added(featured_folder: Path, tmp_path: Path) -> Path:
    NEW.write_parquet(tmp_path / "new.parquet")
    counts = add_items(featured_folder, str(tmp_path / "new.parquet"), tmp_path / "added")
    assert counts == AddedItems(new=N_NEW, known=2)
    return tmp_path / "added"


def test_it_is_what_a_preparation_with_these_items_makes(featured_folder: Path, added: Path, tmp_path: Path) -> None:
    old = pl.read_parquet(featured_folder.parent / "items.parquet")
    new = NEW.filter(~pl.col("item").is_in(old["item"].implode())).select(old.columns).cast(dict(old.schema))
    pl.concat([old, new]).write_parquet(tmp_path / "all.parquet")
    log, settings = pl.read_csv(featured_folder.parent / "log.csv"), ["n_eval_negatives=10", "validation_users=20"]
    options = [f"--data.items_path={tmp_path / 'all.parquet'}", *(f"--preprocessing.{each}" for each in settings)]
    same = prepared(tmp_path, *options, f"--data.extends={featured_folder}", table=log)
    for name in ("items", "users"):
        assert id_table(added, name).equals(id_table(same, name)), name
    for name in ("histories", "item_features"):
        contents = [{file.name: file.read_bytes() for file in (folder / name).iterdir()} for folder in (added, same)]
        assert contents[0] == contents[1], name
    ours, theirs = map(metadata_of, (added, same))
    for name in ("created_at", "created_from", "fingerprint", "files"):
        del ours[name], theirs[name]
    assert ours.pop("negative_items") == ours["items"] - N_NEW
    for name, feature in ours["item_features"].items():
        assert feature.pop("coverage") == pytest.approx(theirs["item_features"][name].pop("coverage"))
    assert ours == theirs
    anew = prepared(tmp_path, *options, table=log, name="anew")  # a catalogue that had the items from the start
    assert features_of(added) == features_of(anew)


def test_histories_are_the_same_files_and_all_is_checked(featured_folder: Path, added: Path, tmp_path: Path) -> None:
    for folder in ("histories", "negatives", "users", "items"):
        for file in (featured_folder / folder).iterdir():
            assert file.samefile(added / folder / file.name)
    assert check_dataset(added)["items"] == 28 + N_NEW
    more = {"item": [50], "brand": "a", "tags": [["t1"]], "price": 1.0, "image": [[1.0, 0.0, 0.0]]}
    pl.DataFrame(more).write_ndjson(tmp_path / "more.jsonl")
    assert add_items(added, str(tmp_path / "more.jsonl"), tmp_path / "twice") == AddedItems(new=1, known=0)
    metadata = check_dataset(tmp_path / "twice")
    assert (metadata["items"], metadata["negative_items"]) == (29 + N_NEW, 28)


def grown(place: Path, n_items: int, items: str, new: str) -> tuple[Path, Path]:
    """The folder of three users who have the first `n_items`, and the one with the `new` items."""
    log = pl.DataFrame([(user, item) for user in "abc" for item in range(n_items)], ["user", "item"], orient="row")
    (place / "items.csv").write_text(items)
    (place / "new.csv").write_text(new)
    options = [f"--items={place / 'items.csv'}", "--preprocessing.n_eval_negatives=2"]
    old = prepared(place, *options, table=log, name="old")
    add_items(old, str(place / "new.csv"), place / "new")
    return old, place / "new"


def test_users_without_negatives_stay_without(tmp_path: Path) -> None:
    """Each of three users has seen three of four items: two negatives are possible only after items are added."""
    _, new = grown(tmp_path, 3, "item,kind\n0,x\n1,y\n2,x\n3,y\n", "item,kind\n4,x\n5,y\n")
    assert check_dataset(new)["left_out"]["test"] == {"users": 3, "of": 3}


def test_texts_that_look_like_numbers_stay_texts(tmp_path: Path) -> None:
    """A file whose only brand is 007 means the known brand 007, not 7."""
    items = "item,brand,size\n0,007,1\n1,x,2\n2,007,3\n3,x,\n"
    old, new = grown(tmp_path, 4, items, "item,brand,size,colour\n4,007,,red\n5,7,,red\n")
    features, before = features_of(new), features_of(old)
    assert {item: features[item] for item in before} == before
    first, missing = metadata_of(old)["item_features"]["size"]["first"], 0
    assert features[4][0] == [features[0][0][0], first]
    assert features[5][0] == [missing, first]
    assert sorted(id_table(new, "items")["brand"][-2:]) == ["007", "7"]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("item,brand,tags,price\n31,a,t1,2\n", "item_features.image"),
        ('{"item": 31, "brand": "a", "tags": "t1", "price": 1.0, "image": [1.0]}', "image"),
        ('{"item": "x", "brand": "a", "tags": "t1", "price": 1.0, "image": null}', 'item "x"'),
        ('{"item": 31, "brand": "a", "tags": "t1", "price": 1.0, "image": null}', "tags"),
        ('{"item": 3, "brand": "a", "tags": ["t1"], "price": 1.0, "image": null}', "new.jsonl"), ("", "new.jsonl"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_line_and_leaves_nothing(
    featured_folder: Path, tmp_path: Path, content: str, named: str
) -> None:
    file, before = tmp_path / ("new.csv" if content.startswith("item") else "new.jsonl"), files_of(featured_folder)
    file.write_text(content)
    with one_line("", named):
        add_items(featured_folder, str(file), tmp_path / "added")
    assert [*tmp_path.iterdir()] == [file]
    assert files_of(featured_folder) == before
