"""What lies elsewhere becomes files of this machine; what is said of them keeps their addresses."""

from pathlib import Path

import pytest

from bert4rec.config.tables import Data
from bert4rec.prepare.progress import Progress
from bert4rec.prepare.stages.local_files import local_files
from bert4rec.runtime.errors import DataError
from tests.prepare.storage import Storage

TABLE = b"user,item\na,1\nb,2\n"


def test_what_lies_here_stays_as_it_is(tmp_path: Path) -> None:
    data = Data(source="table", path="log.csv", titles_path="titles.csv")
    with local_files(data, tmp_path / "copies", Progress()) as local:
        assert (local.data, local.names, local.named("log.csv, line 2")) == (data, {}, "log.csv, line 2")
    assert not (tmp_path / "copies").exists()


def test_data_and_titles_are_copied_and_named_by_their_addresses(
    storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage.write("here/log.csv", TABLE)
    storage.write("here/titles.csv", b"item,title\n1,x\n")
    titles = f"{storage.http}/here/titles.csv"
    data = Data(source="table", path="s3://here/log.csv", titles_path=f"{titles}?sig=5ec2e7", item_column="item")
    with local_files(data, tmp_path / "copies", Progress()) as local:
        copies = [tmp_path / "copies/path/000000-log.csv", tmp_path / "copies/titles_path/000000-titles.csv"]
        assert [local.data.path, local.data.titles_path] == [str(path) for path in copies]
        assert [path.read_bytes() for path in copies] == [TABLE, b"item,title\n1,x\n"]
        assert local.named(f"{copies[0]}, line 2; {copies[1]}") == f"s3://here/log.csv, line 2; {titles}"
    assert [line.split()[3:6] for line in capsys.readouterr().out.splitlines()] == [
        ["fetch", "3", "rows"],
        ["fetch", "2", "rows"],
    ]


def test_a_pattern_becomes_a_pattern_of_the_copies_alone(storage: Storage, tmp_path: Path) -> None:
    for name in ("b", "a"):
        storage.write(f"here/part-{name}.csv", TABLE)
    folder = tmp_path / "[1]*"
    folder.mkdir()
    (folder / "000002-other.csv").touch()
    with local_files(Data(source="table", path="s3://here/part-*.csv"), folder / "copies", Progress()) as local:
        assert local.data.path == f"{tmp_path}/[[]1][*]/copies/path/*"
        assert local.named(f"{local.data.path}: empty") == "s3://here/part-*.csv: empty"
        assert [*local.names.values()][:2] == ["s3://here/part-a.csv", "s3://here/part-b.csv"]


def test_an_error_in_the_block_names_the_address(storage: Storage, tmp_path: Path) -> None:
    storage.write("here/log.csv", TABLE)
    data = Data(source="table", path="s3://here/log.csv")
    with (
        pytest.raises(DataError, match=r"^s3://here/log\.csv, line 3: is bad$"),
        local_files(data, tmp_path / "copies", Progress()) as local,
    ):
        raise DataError(f"{local.data.path}, line 3: is bad")


def test_columns_that_cannot_be_meant_are_refused_before_anything_travels(tmp_path: Path) -> None:
    data = Data(source="table", path="s3://nowhere/log.csv", user_column="item")
    with (
        pytest.raises(DataError, match="one column is named twice"),
        local_files(data, tmp_path / "copies", Progress()),
    ):
        pass
