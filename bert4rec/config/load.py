"""Load settings from the TOML file, and the command line or a mapping over it.

An unknown key, a wrong type, an impossible value or combination raises `SettingsError` with one line that names the
file or the option, the key, the value and the valid choices.
"""

import os
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import tomli
from pydantic import ValidationError

from bert4rec.config.addresses import without_secrets
from bert4rec.config.conflicts import conflicts
from bert4rec.config.help import (
    ALL,
    NO_ORIGINS,
    SHORT_OPTIONS,
    Origins,
    all_settings,
    keys_of,
    nearest_keys,
    nearest_values,
    no_such_option,
    one_line,
    shown,
)
from bert4rec.config.recognition import DetectedSource, recognize
from bert4rec.config.sources import GENERATED
from bert4rec.config.tables import Config, expand_user
from bert4rec.runtime.errors import SettingsError, did_you_mean

USUAL_FILE = "config.toml"
NO_FILE = f"no {USUAL_FILE} here: all settings have their defaults"
DATASET_ALONE = (
    "; correct data.path; if only the dataset folder is on this machine, add --data.source=… or give "
    "--data.dataset_dir=… instead"
)


class Overrides(dict[str, Any]):
    """Settings of the command line, "table.key" → value; `typed` maps the same keys to the options as typed.

    Settings from Python have no `typed`.
    """

    def __init__(self, values: Mapping[str, Any] | None = None, typed: Mapping[str, str] | None = None) -> None:
        super().__init__(values or {})
        self.typed: dict[str, str] = dict(typed or {})

    @property
    def options(self) -> list[str]:
        """Return all overrides as words of a command line."""
        words = {name: value if isinstance(value, str) else shown(value) for name, value in self.items()}
        return [self.typed.get(name) or f"--{name}={word}" for name, word in words.items()]


def load_config(path: str | Path | None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Return settings from defaults, then the TOML file at `path`, then `overrides` ("table.key" → value).

    Raises `SettingsError` for a file that is missing or not TOML, and for an invalid setting; `DataError` if there is
    no source and `data.path` is missing or not recognized.
    """
    return load_and_recognize(path, overrides)[0]


def load_and_recognize(
    path: str | Path | None, overrides: Mapping[str, Any] | None = None
) -> tuple[Config, DetectedSource | None]:
    """Return the settings and the source recognized at `data.path`; None if the settings name it or read no file."""
    overrides = overrides or {}
    tables, origins = _read(path, overrides)
    config = _checked(tables, origins)
    if config.data.source not in GENERATED or not config.data.path:
        return config, None
    _refuse_two_inputs(config, origins, is_chosen="data.source" in overrides)
    recognized = recognize(config.data.path, advice="" if "data.path" in overrides else DATASET_ALONE)
    return with_changes(config, "data", {"source": recognized.source}), recognized


def load_settings(path: str | Path | None, overrides: Mapping[str, Any]) -> Config:
    """Return the settings as they are set: `data.path` is not looked at, and they may conflict with each other."""
    return _valid(*_read(path, overrides))


def _read(path: str | Path | None, overrides: Mapping[str, Any]) -> tuple[dict[str, Any], Origins]:
    tables = _read_toml(path) if path is not None else {}
    in_file = {f"{table}.{key}" for table, keys in tables.items() for key in keys}
    for name, value in overrides.items():
        table, _, key = name.partition(".")
        key, _, entry = key.partition(".")
        place = tables.setdefault(table, {})
        if entry:
            place = place.setdefault(key, {})
        place[entry or key] = value
    typed = overrides.typed if isinstance(overrides, Overrides) else {}
    origins = Origins(str(path or ""), frozenset(in_file - overrides.keys()), typed)
    return tables, origins


def with_changes(config: Config, table: str, changes: Mapping[str, Any]) -> Config:
    """Return `config` with `changes` to keys of `table`, checked like any settings."""
    tables = config.model_dump()
    tables[table] |= changes
    return _checked(tables)


def _valid(tables: Mapping[str, Any], origins: Origins) -> Config:
    try:
        return Config.model_validate(tables)
    except ValidationError as error:
        raise SettingsError(one_line(error, origins)) from None


def _checked(tables: Mapping[str, Any], origins: Origins = NO_ORIGINS) -> Config:
    config = _valid(tables, origins)
    for name, reason in conflicts(config):
        table, key = name.split(".")
        raise SettingsError(origins.format_error(name, getattr(getattr(config, table), key), reason))
    return config


def _refuse_two_inputs(config: Config, origins: Origins, *, is_chosen: bool) -> None:
    """Raise `SettingsError` for a generated source with a path, if the command line or the file chose the source."""
    if is_chosen:
        clear = " (--data.path= clears the one in the file)" if "data.path" in origins.in_file else ""
        advice = f"remove one of them{clear}"
    elif {"data.path", "data.source"} <= origins.in_file:
        advice = "set data.source to what the file is (table, ml-1m, …), or remove it so that the file is recognized"
    else:
        return
    reason = f'reads no file, but data.path = "{without_secrets(config.data.path)}"; {advice}'
    raise SettingsError(origins.format_error("data.source", config.data.source, reason))


def settings_file(named: str | None) -> str | None:
    """Return the `named` file, or else the default file if it exists in the current folder; else None."""
    return named if named is not None or not Path(USUAL_FILE).exists() else USUAL_FILE


def parse_mapping(settings: Mapping[str, Any], short: Mapping[str, str] = SHORT_OPTIONS) -> Overrides:
    """Return overrides for settings from Python: "table.key", or a `short` name of the command line, → value.

    A short name may have "_" for "-". Paths become text and tuples become lists. Raises `SettingsError` for an unknown
    setting.
    """
    known, overrides = all_settings(), Overrides()
    for name, value in settings.items():
        key = short.get(str(name).replace("_", "-"), name)
        if key not in known:
            nearest = did_you_mean(nearest_keys(str(name), known))
            raise SettingsError(f"{name}: no such setting{nearest or ';'} `bert4rec train --help-all` lists all")
        plain = list(value) if isinstance(value, tuple) else value
        overrides[key] = os.fspath(plain) if isinstance(plain, os.PathLike) else plain
    return overrides


def parse_command_line(argv: Sequence[str], short: Mapping[str, str] = SHORT_OPTIONS) -> tuple[str | None, Overrides]:
    """Return the settings file, or None, and the overrides of `--config=FILE --table.key=value …`.

    `--table.key value` is valid too. `short` maps names without a table to "table.key". A value is read as TOML if it
    is TOML (`3`, `true`, `[1, 5]`), else as text; the value of a text setting is always text. Raises `SettingsError`
    for any other word.
    """
    path, overrides, words = None, Overrides(), iter(argv)
    for word in words:
        if not word.startswith("--") or word == "--":
            raise SettingsError(f'"{word}": options have the form --table.key=value; {ALL}')
        name, sign, text = word[2:].partition("=")
        if not sign and not (following := [*islice(words, 1)]):
            is_known = name == "config" or short.get(name, name) in all_settings()
            wish = f"--{name}: a value is missing; write --{name}=VALUE"
            raise SettingsError(wish if is_known else no_such_option(name, short))
        text = text if sign else following[0]
        if name == "config":
            path = text
            continue
        if not text and name == "resume":
            raise SettingsError(f"--{name}=: a value is missing")
        table, _, key = short.get(name, name).partition(".")
        if not key or table not in Config.model_fields:
            raise SettingsError(no_such_option(name, short))
        overrides[f"{table}.{key}"] = text if _is_text(table, key) else _value(text)
        overrides.typed[f"{table}.{key}"] = f"--{name}={text}"
    return path, overrides


def take_positional(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Return the first word that is neither an option nor its value, or "", and all other words.

    >>> take_positional(["--model.max_len", "50", "data/log", "--mode=ddp"])
    ('data/log', ['--model.max_len', '50', '--mode=ddp'])
    """
    words, others, positional = iter(argv), list[str](), ""
    for word in words:
        if not word.startswith("--") and not positional:
            positional = word
            continue
        others.append(word)
        if word.startswith("--") and "=" not in word:
            others += islice(words, 1)
    return positional, others


def flat(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return settings by "table.key"."""
    return {f"{table}.{key}": value for table, keys in tables.items() for key, value in keys.items()}


def _read_toml(name: str | Path) -> dict[str, Any]:
    try:
        path = Path(expand_user(str(name)))
    except ValueError as error:
        raise SettingsError(f"--config={name}: {error}") from None
    try:
        tables = tomli.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot read the settings: {error.strerror}") from None
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from None
    for name, table in tables.items():
        if not isinstance(table, dict):
            nearest = did_you_mean(nearest_keys(name, all_settings()))
            raise SettingsError(f"{path}: {name} = {shown(table)} is outside of the tables{nearest}")
        if name not in Config.model_fields:
            nearest = did_you_mean([f"[{table}]" for table in nearest_values(name, [*Config.model_fields], {})])
            valid = f"; valid: {', '.join(Config.model_fields)}"
            raise SettingsError(f"{path}: [{name}]: no such table{nearest or valid}")
    return tables


def _is_text(table: str, key: str) -> bool:
    """Return whether a setting accepts any text, so that `--run.name=7` is not a number."""
    setting = keys_of(Config.model_fields[table].annotation).get(key)
    return setting is not None and setting.annotation is str


def _value(text: str) -> Any:
    if re.fullmatch(r"[+-]?(\.\d+|\d+\.)", text):  # as people write numbers, and TOML does not
        return float(text)
    try:
        return tomli.loads(f"x = {text}")["x"]
    except tomli.TOMLDecodeError:
        return text


def is_of_dataset(name: str) -> bool:
    """Return whether a setting is part of a prepared dataset, and not of a training.

    >>> is_of_dataset("data.path"), is_of_dataset("data.parts_by_host"), is_of_dataset("model.kind")
    (True, False, False)
    """
    return name.partition(".")[0] in ("data", "preprocessing") and name != "data.parts_by_host"
