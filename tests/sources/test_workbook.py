"""The sheets of a workbook are one log; other sheets are named."""

import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bert4rec.config.load import load_config
from bert4rec.sources.lake import fetch_workbook
from tests.checks import one_line
from tests.sources.same_rows import made

pytest.importorskip("fastexcel")
xlsxwriter = pytest.importorskip("xlsxwriter")
HEADER = ["user", "item", "at"]
AT = datetime(2024, 1, 1, 10)


def workbook(path: Path, **sheets: list[list[Any]]) -> str:
    with xlsxwriter.Workbook(path, {"default_date_format": "yyyy-mm-dd hh:mm:ss"}) as book:
        for name, rows in sheets.items():
            sheet = book.add_worksheet(name)
            for number, row in enumerate(rows):
                sheet.write_row(number, 0, row)
    return str(path)


def fetched(path: str, folder: Path, table: str = "") -> tuple[list[tuple[Any, ...]], dict[str, Any], list[str]]:
    said: list[str] = []
    version = fetch_workbook(path, table, folder / "copy.parquet", lambda n: None, said.append)
    return pl.read_parquet(folder / "copy.parquet").rows(), version, said


def test_sheets_of_one_header_are_one_log_in_their_order(tmp_path: Path) -> None:
    log = workbook(
        tmp_path / "log.xlsx",
        empty=[], B=[HEADER, [1, 2, AT], [3, 4.0, AT]], notes=[["what"], ["x"]], A=[HEADER, ["ann", 2.5, AT]],
    )  # fmt: skip
    rows = [("1", 2.0, AT), ("3", 4.0, AT), ("ann", 2.5, AT)]
    found, version, said = fetched(log, tmp_path)
    assert (found, version) == (rows, {"sheets": ["B", "A"]})
    assert len(said) == 1
    assert "left out notes" in said[0]
    assert fetched(log, tmp_path, "A") == (rows[2:], {"sheets": ["A"]}, [])


def test_a_workbook_gives_the_dataset_of_the_same_rows_in_a_file(tmp_path: Path) -> None:
    rows = [[f"u{n % 7}", n % 11, AT.replace(day=1 + n % 28)] for n in range(90)]
    pl.DataFrame(rows, HEADER, orient="row").write_parquet(tmp_path / "log.parquet")
    log = workbook(tmp_path / "shop.xlsx", one=[HEADER, *rows[:50]], two=[HEADER, *rows[50:]])
    assert load_config(None, {"data.path": log}).data.folder == Path("data/shop")
    assert made(tmp_path / "a", path=log) == made(tmp_path / "b", path=str(tmp_path / "log.parquet"))


def test_an_open_document_is_a_workbook(tmp_path: Path) -> None:
    cells = [["user", "item"], [1, "a"], [2, "b"]]
    kinds = {str: ' office:value-type="string"', int: ' office:value-type="float" office:value="{}"'}
    cell = "<table:table-cell{}><text:p>{}</text:p></table:table-cell>"
    lines = ["".join(cell.format(kinds[type(value)].format(value), value) for value in row) for row in cells]
    rows = "".join(f"<table:table-row>{line}</table:table-row>" for line in lines)
    space = "urn:oasis:names:tc:opendocument:xmlns"
    names = " ".join(f'xmlns:{name}="{space}:{name}:1.0"' for name in ("office", "table", "text"))
    sheet = f'<office:spreadsheet><table:table table:name="log">{rows}</table:table></office:spreadsheet>'
    body = f"<office:document-content {names}><office:body>{sheet}</office:body></office:document-content>"
    with zipfile.ZipFile(tmp_path / "log.ods", "w") as file:
        file.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        file.writestr("content.xml", body)
        file.writestr("META-INF/manifest.xml", "<manifest/>")
    assert load_config(None, {"data.path": str(tmp_path / "log.ods")}).data.source == "table"
    assert fetched(str(tmp_path / "log.ods"), tmp_path)[:2] == ([(1, "a"), (2, "b")], {"sheets": ["log"]})


REFUSED: list[tuple[bytes, str, list[str]]] = [  # content, table, words of the message
    (b"", "lgo", ['"lgo"', "did you mean log?"]), (b"", "zzz", ["it has log, empty"]), (b"", "empty", ["no rows"]),
    *[(content, "", ["damaged"]) for content in (b"PK\3\4x", b"\n", b"\xd0\xcf\x11\xe0 " + b"x" * 600)],
]  # fmt: skip


@pytest.mark.parametrize(("content", "table", "words"), REFUSED)
def test_what_cannot_be_read_leaves_nothing(tmp_path: Path, content: bytes, table: str, words: list[str]) -> None:
    log = workbook(tmp_path / "log.xlsx", log=[HEADER, [1, 2, AT]], empty=[])
    Path(log).write_bytes(content or Path(log).read_bytes())
    with one_line(f"{log}: ", *words):
        made(tmp_path / "dataset", path=log, table=table)
    assert [*tmp_path.iterdir()] == [Path(log)]
