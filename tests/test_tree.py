"""The package that is installed has all rooms and files."""

import re
import tomllib
from pathlib import Path

import bert4rec
from scripts import architecture

PACKAGE = Path(bert4rec.__path__[0])
TESTS = Path(__file__).parent


def test_every_room_is_a_package_that_is_installed() -> None:
    rooms = {path.parent for path in PACKAGE.rglob("*.py")}
    assert {room for room in rooms if not (room / "__init__.py").exists()} == set()


def test_every_file_that_is_no_module_is_installed_too() -> None:
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["bert4rec"]
    files = {path for path in PACKAGE.rglob("*.*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert files == {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    assert PACKAGE / "report/templates/report.html.j2" in files


def test_the_newest_version_in_the_changelog_is_that_of_the_package() -> None:
    versions = re.findall(r"^## (\S+)", (TESTS.parent / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    citation = (TESTS.parent / "CITATION.cff").read_text(encoding="utf-8")
    assert versions[0] == bert4rec.__version__ == re.findall(r"^version: (.+)$", citation, re.MULTILINE)[0]


def test_the_picture_of_the_rooms_is_that_of_the_imports() -> None:
    """`python -m scripts.architecture` draws it anew."""
    assert architecture.PICTURE.read_text(encoding="utf-8") == architecture.picture()
