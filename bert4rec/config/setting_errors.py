"""Errors of settings, in one line: the file or option, the key, the value, and what is valid."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from bert4rec.config.suggestions import OTHER_SOURCES, did_you_mean, nearest_keys, nearest_values
from bert4rec.config.tables import Config
from bert4rec.config.urls import without_secrets

SHORT_OPTIONS = {"mode": "parallelism.mode", "resume": "run.resume"}
ALL = "--help lists all"
MANY = 4  # choices of which the nearest is named, too


@dataclass(frozen=True)
class Origins:
    """Hold the origin of each setting ("table.key"): `in_file`, those of the `file`; `typed`, the options."""

    file: str = ""
    in_file: frozenset[str] = frozenset()
    typed: Mapping[str, str] = field(default_factory=dict)

    def blame(self, name: str, value: Any, reason: str) -> str:
        """Return a line about a setting as typed, or else prefixed by the file that has it or the reason."""
        if name in self.typed:
            return f"{without_secrets(self.typed[name])}: {reason}"
        line = f"{name} = {shown(without_secrets(value) if isinstance(value, str) else value)}: {reason}"
        is_of_file = any(re.search(rf"\b{re.escape(setting)}\b", line) for setting in self.in_file)
        return f"{self.file}: {line}" if is_of_file else line


NOWHERE = Origins()


def one_line(error: ValidationError, origins: Origins) -> str:
    """Return the first problem in one line: where it stands, key, value, what is valid."""
    problem = error.errors()[0]
    keys = [str(part) for part in problem["loc"]]
    name = ".".join(keys[:2])
    if problem["type"] == "extra_forbidden":
        if name in origins.typed:
            return no_such_option(name)
        nearest = did_you_mean(nearest_keys(name, all_keys()))
        place = f"{origins.file}: " if name in origins.in_file else ""
        return f"{place}{name}: no such key{nearest or ';'} {ALL}"
    first, *others = dict.fromkeys(_wish(p) for p in error.errors() if [str(x) for x in p["loc"]][:2] == keys[:2])
    wish = " or ".join([first, *(wish.removeprefix("must be ") for wish in others)])
    return origins.blame(name, problem["input"], wish)


def no_such_option(name: str) -> str:
    """Return the line for the unknown option --`name`."""
    short = {key: option for option, key in SHORT_OPTIONS.items()}
    options = [short.get(key, key) for key in all_keys()]
    nearest = did_you_mean([f"--{option}" for option in nearest_keys(name, [*options, "config"])])
    return f"--{name}: no such option{nearest or ';'} {ALL}"


def all_keys() -> list[str]:
    """Return every setting as "table.key"."""
    return [f"{table}.{key}" for table, cls in Config.model_fields.items() for key in keys_of(cls.annotation)]


def keys_of(table: Any) -> dict[str, Any]:
    """Return the settings of a table (a class) by the names that people write: `async` is a word of Python."""
    return {setting.alias or name: setting for name, setting in table.model_fields.items()}


def shown(value: Any) -> str:
    """Return a value as it would stand in the file."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _wish(problem: Any) -> str:
    if problem["type"] == "list_type":
        return "must be a list, in quotes for the shell: '[1, 5]' or '[\"full\"]'"
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    if problem["type"] == "too_short":
        return "must not be empty"
    if problem["type"] == "literal_error":
        return f"must be {problem['ctx']['expected'].replace(chr(39), chr(34))}{_nearest_choice(problem)}"
    return str(problem["msg"]).replace("Input should be", "must be")


def _nearest_choice(problem: Any) -> str:
    choices = re.findall("'(.*?)'", problem["ctx"]["expected"])
    if len(choices) < MANY or not isinstance(problem["input"], str):
        return ""
    other_names = OTHER_SOURCES if problem["loc"][-1] == "source" else {}
    return did_you_mean([f'"{value}"' for value in nearest_values(problem["input"], choices, other_names)])
