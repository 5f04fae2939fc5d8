"""A Delta or Iceberg table is read in its newest state, which the dataset names."""

import json
import shutil
import sys
from pathlib import Path

import polars as pl
import pytest

from bert4rec.config.load import load_config
from tests.checks import Patch, one_line
from tests.sources.same_rows import COLUMNS, ROWS, made
from tests.sources.storage import Storage

TABLE = pl.DataFrame(ROWS, COLUMNS, orient="row")


def delta(place: Path) -> Path:
    """A table of `TABLE`, and of rows that were deleted again: their files are still there."""
    deltalake = pytest.importorskip("deltalake")
    TABLE[:50].write_delta(place)
    TABLE[:5].with_columns(customer=pl.lit("gone")).write_delta(place, mode="append")
    deltalake.DeltaTable(place).delete("customer = 'gone'")
    TABLE[50:].write_delta(place, mode="append")
    return place


def same(folder: Path, path: str) -> dict[str, object]:
    """Where the dataset of the table at `path` is from; it is that of the same rows in a file."""
    TABLE.write_parquet(folder / "log.parquet")
    expected = made(folder / "a", path=str(folder / "log.parquet"), time_column="at")
    found = made(folder / "b", path=path, time_column="at")
    assert found == expected
    origin: dict[str, object] = json.loads((folder / "b/metadata.json").read_text())["created_from"]
    return {name: value for name, value in origin.items() if name not in ("source", "path_sha256")}


def test_a_delta_table_has_the_rows_of_its_newest_version(storage: Storage, tmp_path: Path) -> None:
    path, url = delta(tmp_path / "orders"), "s3://lake/orders/"
    shutil.copytree(path, storage.folder / "lake/orders")
    for number, (place, name) in enumerate(((str(path), "orders"), (url, url))):
        (tmp_path / str(number)).mkdir()
        assert same(tmp_path / str(number), place) == {"name": name, "version": 3}
        assert load_config(None, {"data.path": place}).data.folder == Path("data/orders")
    with one_line("s3://lake/carts/: ", "not a Delta"):
        made(tmp_path / "c", path="s3://lake/carts/")


def test_an_iceberg_table_has_the_rows_of_its_newest_snapshot(tmp_path: Path) -> None:
    memory = pytest.importorskip("pyiceberg.catalog.memory")
    catalog = memory.InMemoryCatalog("c", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", TABLE[:50].to_arrow().schema)
    for rows in (TABLE[:50], TABLE[50:]):
        table.append(rows.to_arrow())
    file, place = table.metadata_location.removeprefix("file://"), str(tmp_path / "lake/shop/orders")
    for number, (path, name) in enumerate(((file, Path(file).name), (place, "orders"))):
        (tmp_path / str(number)).mkdir()
        origin = {"name": name, "snapshot": table.current_snapshot().snapshot_id}
        assert same(tmp_path / str(number), path).items() >= origin.items()
        assert load_config(None, {"data.path": path}).data.folder == Path("data/orders")


@pytest.mark.parametrize(
    ("file", "package"), [("_delta_log/0.json", "deltalake"), ("metadata/v1.metadata.json", "pyiceberg")]
)
def test_a_damaged_table_or_a_missing_package(tmp_path: Path, monkeypatch: Patch, file: str, package: str) -> None:
    place = tmp_path / "orders"
    (place / file).parent.mkdir(parents=True)
    (place / file).write_text("{}")
    pytest.importorskip(package)
    with one_line(f"{place}: ", "damaged"):
        made(tmp_path / "dataset", path=str(place))
    for name in ("deltalake", "pyiceberg.table"):
        monkeypatch.setitem(sys.modules, name, None)
    with one_line(f"{place}: ", f"the package {package} is not installed", "bert4rec-torchrec[lake]"):
        made(tmp_path / "dataset", path=str(place))
    assert [*tmp_path.iterdir()] == [place]
