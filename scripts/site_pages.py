"""Add to the site what stands outside docs/: README, CONTRIBUTING, CHANGELOG, the examples, the public Python names."""

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
LINK = re.compile(r"(\]\()(?:\.\./|docs/)(?=[^)]*\))")  # to the same place from the root of the site
FOLDER = re.compile(r"\[([^]]*)\]\(examples/\)")  # a site has no page for a folder
ENTRY = """
::: {path}
    options:
      heading: {heading}
"""
API = "# Python\n\nThe public names of the package: `from bert4rec import load`.\n"


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and the examples, and the page of the public names."""
    for page, place in PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / page)))
    for path in [ROOT / "config.toml", *(path for path in (ROOT / "examples").rglob("*") if path.is_file())]:
        if "__pycache__" not in path.parts:
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    sys.path.insert(0, str(ROOT))
    from bert4rec import _MODULES

    named = {f"bert4rec.{name}": f"{module}.{name}" for name, module in sorted(_MODULES.items())}
    shown = named | {"The model that load returns": "bert4rec.serving.recommender.Recommender"}
    blocks = [ENTRY.format(path=path, heading=heading) for heading, path in shown.items()]
    files.append(File.generated(config, "api.md", content=API + "".join(blocks)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with links that lead to the same files in the site."""
    return FOLDER.sub(r"\1", LINK.sub(r"\1", markdown))
