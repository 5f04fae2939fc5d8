"""The tree: every module has its test where its name says, no room is a heap."""

import tomllib
from pathlib import Path

import bert4rec

PACKAGE = Path(bert4rec.__path__[0])
TESTS = Path(__file__).parent
MOST_MODULES = 11  # in a room


def test_every_module_has_its_test_where_its_name_says() -> None:
    """`a/b.py` in `tests/a/test_b.py`; what needs much room besides in `tests/a/test_b_….py`."""
    modules = [path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py") if path.stem != "__init__"]
    untested = [
        module.as_posix()
        for module in modules
        if not list((TESTS / module.parent).glob(f"test_{module.name.strip('_')}.py"))
    ]
    assert untested == []


def test_every_room_is_a_package_that_is_installed() -> None:
    rooms = {path.parent for path in PACKAGE.rglob("*.py")}
    assert {room.relative_to(PACKAGE).as_posix() for room in rooms if not (room / "__init__.py").exists()} == set()
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["packages"]["find"]["include"] == ["bert4rec", "bert4rec.*"]
    assert (PACKAGE / "py.typed").exists()


def test_every_file_that_is_no_module_is_installed_too() -> None:
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["bert4rec"]
    files = {path for path in PACKAGE.rglob("*.*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert files == {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    assert PACKAGE / "report/html/report.html.j2" in files


def test_no_room_is_a_heap() -> None:
    rooms = {path.parent for path in PACKAGE.rglob("*.py")}
    sizes = {room.relative_to(PACKAGE).as_posix(): len(list(room.glob("*.py"))) - 1 for room in rooms}
    assert {room: size for room, size in sizes.items() if size > MOST_MODULES} == {}
