"""Help texts of the settings: the usual ones of a command, or all of them."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from bert4rec.config.setting_errors import all_settings, keys_of, shown
from bert4rec.config.tables import Config

WIDTH = 110  # characters of a line of `--help-all`


def description(setting: Any) -> str:
    """Return the whole description in one line."""
    return " ".join(setting.description.split())


def summary(setting: Any) -> str:
    """Return the first clause of the description, and the choices if it names none of them."""
    clause, names = description(setting).partition("; ")[0], choices(setting)
    is_named = {*names} - {"auto"} & {*re.findall(r"\w+", clause)}
    return clause if is_named or not names else f"{clause}: {', '.join(names)}"


def choices(setting: Any) -> list[str]:
    """Return the words that the setting takes, or none if it takes other values or one word."""
    values = re.findall("'(.*?)'", str(setting.annotation))  # of its Literal
    return values if len(values) > 1 else []


def usual_help(options: Mapping[str, str], prog: str) -> str:
    """Return the end of `--help`: a line for each of the short `options` (name → "table.key")."""
    of = all_settings()
    lines = [(f"--{option}={_plain(of[key].default)}", summary(of[key])) for option, key in options.items()]
    return "\n".join(
        [
            "usual settings, with their defaults:",
            *(f"  {option:<26} {text}" for option, text in lines),
            "",
            f"settings file: --config=FILE; all settings: {prog} --help-all",
        ]
    )


def settings_help() -> str:
    """Return the end of `--help-all`: every setting by table, with its default and description."""
    return "\n".join(_all_lines())


def _all_lines() -> Iterator[str]:
    yield "all settings, with their defaults:"
    for table, field in Config.model_fields.items():
        cls: Any = field.annotation
        yield f"\n[{table}] {cls.__doc__}"
        for key, setting in keys_of(cls).items():
            names = choices(setting)
            yield f"  --{table}.{key}={_plain(setting.default)}" + f"  ({', '.join(names)})" * bool(names)
            yield textwrap.fill(description(setting), WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _plain(value: Any) -> str:
    """Return a default as it is typed, without the quotes of a word."""
    return value if isinstance(value, str) and value else shown(value)
