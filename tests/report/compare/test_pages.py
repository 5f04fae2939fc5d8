"""The same comparison as text and as one HTML file."""

import tomllib
from pathlib import Path

from bert4rec.report.compare import pages
from bert4rec.report.compare.contents import Comparison, compare
from bert4rec.report.compare.pages import html_page, text_page
from bert4rec.report.compare.runs import read_run
from tests.report.compare.run_folders import make_run

ROOT = Path(__file__).parents[3]


def comparison(tmp_path: Path) -> Comparison:
    evil = {"model.kind": "<script>alert(1)</script> | &"}
    folders = make_run(tmp_path / "a", [1, 9]), make_run(tmp_path / "b", [1, 11], settings=evil, model="<b>x</b>")
    return compare([read_run(folder) for folder in folders])


def test_text_is_aligned_and_markdown(tmp_path: Path) -> None:
    text = text_page(comparison(tmp_path), picture="c.png")
    assert text.startswith("- B and A do not clearly differ in NDCG@10 (full catalogue): -0.1505 (95 % interval ")
    assert "\n| model.kind | – | <script>alert(1)</script> \\| & |\n" in text
    lines = text.partition("## Runs\n\n")[2].partition("\n\n")[0].splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1].strip("|-") == ""
    assert "\n![Validation NDCG@10 by epoch](c.png)\n" in text
    assert text.rstrip().splitlines()[-1].startswith("- Differences: ")


def test_one_file_that_needs_no_other_and_escapes_all_text(tmp_path: Path) -> None:
    page = html_page(comparison(tmp_path))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; | &amp;" in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert page.count("<svg") == 1
    assert "prefers-color-scheme: dark" in page
    assert not any(word in page for word in (" src=", "<link", "@import", "url(http", 'href="http'))
    assert len(page) < 10**6


def test_the_template_goes_into_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    package = ROOT / "bert4rec"
    included = {
        path for glob in project["tool"]["setuptools"]["package-data"]["bert4rec"] for path in package.glob(glob)
    }
    assert Path(pages.__file__).with_name(pages.TEMPLATE) in included
