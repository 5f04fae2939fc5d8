"""The page of all settings, from their tables: `python -m scripts.settings_page` writes docs/settings.md."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

from bert4rec.config.setting_errors import keys_of
from bert4rec.config.tables import Config

PAGE = Path(__file__).parents[1] / "docs/settings.md"
HEAD = """# Settings

Every key of `config.toml` and of the command line: `--table.key=value`, `--mode` for `--parallelism.mode`, `--resume`
for `--run.resume`. The command line counts more than the file that `--config` names (default: `config.toml` in the
current folder, where there is one), and that more than the defaults below. `config.toml` has the reasons. Made by
`python -m scripts.settings_page` from `bert4rec/config/tables.py`.
"""


def page() -> str:
    """The text of the page."""
    return "\n".join([HEAD, *_tables()])


def _tables() -> Iterator[str]:
    for table, field in Config.model_fields.items():
        cls: Any = field.annotation
        yield f"## `[{table}]`\n\n{cls.__doc__}\n\n| key | default | meaning |\n|---|---|---|"
        for key, setting in keys_of(cls).items():
            default = tomli_w.dumps({"x": setting.default})[4:].replace("\n", "").replace("    ", " ")
            values = re.findall("'(.*?)'", str(setting.annotation))  # of its Literal
            choices = f" (one of {', '.join(f'`{value}`' for value in values)})" if len(values) > 1 else ""
            yield f"| `{key}` | `{default}` | {setting.description}{choices} |".replace("[,", "[").replace(",]", "]")
        yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
