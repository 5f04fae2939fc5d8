"""What is no report gets one line."""

import json
from pathlib import Path

import pytest

from bert4rec.report.reading import read_report
from bert4rec.runtime.errors import DataError


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    report = {"dataset": {"fingerprint": "f"}, "test": {"full": {"HR@10": 0.1}}}
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert read_report(tmp_path) == report


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, r"no finished run \(it has no report.json\); name the folder of one"),
        ("{", "cannot be read: "),
        ("[]", "cannot be read: it does not name its dataset"),
        ("{}", "cannot be read: it does not name its dataset"),
    ],
)
def test_what_is_none(tmp_path: Path, content: str | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    with pytest.raises(DataError, match=problem):
        read_report(tmp_path)
