"""Write `config.toml` and `docs/settings.md` from the settings' tables: `python -m scripts.settings`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli

from bert4rec.config.help import (
    DATA_OPTIONS,
    SHORT_OPTIONS,
    all_settings,
    choices,
    description,
    keys_of,
    shown,
    summary,
)
from bert4rec.config.tables import COMMON, Config

ROOT = Path(__file__).parents[1]
FILE, PAGE = ROOT / "config.toml", ROOT / "docs/settings.md"
REASONS = Path(__file__).with_name("setting_reasons.toml")  # of defaults: "table.key" → sentences for the page
WIDTH = 120  # of config.toml

FILE_HEAD = """\
# The most common settings. Their defaults train a demo on synthetic data. All settings are in docs/settings.md and in
# `bert4rec train --help-all`. Override a setting here or on the command line: `--table.key=value`. `--config=FILE`
# names another file. This file is written by `python -m scripts.settings`.
"""
PAGE_HEAD = f"""\
# Settings

Set a setting on the command line, `--table.key=value`, or in a settings file: `--config=FILE` names one; without it
`config.toml` in the current folder is read, if it exists. The command line overrides the file, and the file overrides
the defaults below. The most common settings are in [config.toml](../config.toml); `bert4rec train --help-all` prints
this list.

Short names on the command line:

- all commands: {", ".join(f"`--{option}`" for option in SHORT_OPTIONS)};
- `bert4rec prepare` also: {", ".join(f"`--{option}`" for option in DATA_OPTIONS)}. There `--out` and `--seed` are those
  of the dataset.

This page is written by `python -m scripts.settings` from `bert4rec/config/tables.py` and
`scripts/setting_reasons.toml`.
"""


def file() -> str:
    """Return the text of `config.toml`."""
    settings, lines = all_settings(), [FILE_HEAD]
    for table in Config.model_fields:
        rows = {
            f"{key} = {shown(settings[f'{table}.{key}'].default)}": settings[f"{table}.{key}"]
            for key in (name.partition(".")[2] for name in COMMON if name.startswith(f"{table}."))
        }
        if rows:
            width = max(map(len, rows))
            lines += [f"[{table}]", *(_line(row.ljust(width), setting) for row, setting in rows.items()), ""]
    return "\n".join(lines)


def page() -> str:
    """Return the text of the page."""
    return "\n".join([PAGE_HEAD, *_tables()])


def _line(row: str, setting: Any) -> str:
    """Return a line of the file, with the choices if they fit."""
    line = f"{row}  # {summary(setting)}"
    return line if len(line) <= WIDTH else f"{row}  # {description(setting).partition('; ')[0]}"


def _tables() -> Iterator[str]:
    reasons = tomli.loads(REASONS.read_text(encoding="utf-8"))
    short = {key: option for option, key in (DATA_OPTIONS | SHORT_OPTIONS).items()}
    short |= {DATA_OPTIONS[option]: option for option in ("out", "seed")}
    for table, field in Config.model_fields.items():
        cls: Any = field.annotation
        yield f"## `[{table}]`\n\n{cls.__doc__}\n\n| key | default | meaning |\n|---|---|---|"
        for key, setting in keys_of(cls).items():
            name = f"{table}.{key}"
            names = f"`{key}`, `--{short[name]}`" if name in short else f"`{key}`"
            values = f" (one of {', '.join(f'`{value}`' for value in choices(setting))})" * bool(choices(setting))
            reason = f". {reasons[name]}" if name in reasons else ""
            text = description(setting).replace("<", "&lt;")
            yield f"| {names} | `{shown(setting.default)}` | {text}{values}{reason} |"
        yield ""


if __name__ == "__main__":
    FILE.write_text(file(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
