"""Print what pyproject.toml requires, a line each: `python scripts/requirements.py [EXTRA …]`.

For pip where the package itself is not to be installed: it takes no dependencies alone.
"""

import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(*extras: str) -> list[str]:
    """Return the requirements of the package, and those of its `extras`."""
    return [*PROJECT["dependencies"], *(text for extra in extras for text in PROJECT["optional-dependencies"][extra])]


if __name__ == "__main__":
    print("\n".join(requirements(*sys.argv[1:])))
