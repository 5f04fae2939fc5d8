"""Where settings come from: the TOML file, the command line, and what is said of one that does not fit.

An unknown key, a wrong type, an impossible value or combination raises `SettingsError` with one line that names the
key, the value and the valid choices.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli
import tomli_w
from pydantic import ValidationError

from bert4rec.config import Config, Table
from bert4rec.errors import SettingsError

SHORT_OPTIONS = {"mode": "parallelism.mode", "resume": "run.resume"}


def load_config(path: str | Path | None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Settings from defaults, then the TOML file at `path`, then `overrides` ("table.key" → value).

    Raises `SettingsError` for a file that is missing or not TOML, and for any setting that does not fit.
    """
    tables = _read_toml(Path(path)) if path is not None else {}
    for name, value in (overrides or {}).items():
        table, key = _split_key(name)
        tables.setdefault(table, {})[key] = value
    for table in tables:
        if table not in Config.model_fields:
            raise SettingsError(f"[{table}]: no such table{_nearest(table, Config.model_fields)}")
    return _checked(tables)


def with_changes(config: Config, table: str, changes: Mapping[str, Any]) -> Config:
    """`config` with other values for some keys of `table`, checked as any other."""
    tables = config.model_dump()
    tables[table] |= changes
    return _checked(tables)


def _checked(tables: Mapping[str, Any]) -> Config:
    try:
        return Config.model_validate(tables)
    except ValidationError as error:
        raise SettingsError(_one_line(error)) from None


def parse_command_line(argv: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """`--config=FILE --table.key=value …` (or with a blank for the sign) → the file and the overrides.

    A value is read as TOML where it is TOML (`3`, `true`, `[1, 5]`), else as plain text, and always so for a setting
    that takes any text. The file is `config.toml` unless named. Raises `SettingsError` for anything else on the line.
    """
    path: str = "config.toml"
    overrides: dict[str, Any] = {}
    for name, text in _options(argv):
        if name == "config":
            path = text
            continue
        if not text and name in SHORT_OPTIONS:
            raise SettingsError(f"--{name}=: a value is missing")
        table, key = _split_key(SHORT_OPTIONS.get(name, name))
        if table not in Config.model_fields:
            raise SettingsError(f"--{name}: no such option{_nearest(name, _all_keys())}; --help lists them")
        overrides[f"{table}.{key}"] = text if _is_text(table, key) else _value(text)
    return path, overrides


def usage(script: str) -> str:
    """The text of `--help`: every key with its default and meaning."""
    lines = [
        f"usage: python {script} [--config=FILE] [--table.key=value …]",
        "",
        "--config=FILE  settings file (default: config.toml)",
        "--mode=…       short for --parallelism.mode",
        "--resume=…     short for --run.resume",
        "--help         this text",
    ]
    for table, field in Config.model_fields.items():
        cls: Any = field.annotation
        lines += ["", f"[{table}] {cls.__doc__}"]
        for key, setting in _keys(cls).items():
            default = tomli_w.dumps({"x": setting.default})[4:].replace("\n", "").replace("    ", " ")
            lines.append(f"  --{table}.{key}={default}".ljust(48) + f"  {setting.description}{_choices(setting)}")
    return "\n".join(lines)


def _choices(setting: Any) -> str:
    values = list(_literals(setting.annotation))
    return f" [{', '.join(values)}]" if len(values) > 1 else ""


def _literals(annotation: Any) -> Iterator[str]:
    for argument in getattr(annotation, "__args__", ()):
        if isinstance(argument, str):
            yield argument
        else:
            yield from _literals(argument)


def _options(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, text) for each `--name=text` or `--name text`."""
    words = iter(argv)
    for word in words:
        if not word.startswith("--") or word == "--":
            raise SettingsError(f'"{word}": options have the form --table.key=value; --help lists them')
        name, sign, text = word[2:].partition("=")
        if not sign:
            following = next(words, None)
            if following is None:
                raise SettingsError(f"--{name}: a value is missing; write --{name}=VALUE")
            text = following
        yield name, text


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        tables = tomli.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot read the settings: {error.strerror}") from None
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from None
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise SettingsError(f"{path}: {name} = {table!r} stands outside the tables{_nearest(name, _all_keys())}")
    return tables


def _is_text(table: str, key: str) -> bool:
    """Whether a setting takes any text, so that `--run.name=7` is not a number."""
    setting = _keys(_table(Config.model_fields[table])).get(key)
    return setting is not None and setting.annotation is str


def _value(text: str) -> Any:
    try:
        return tomli.loads(f"x = {text}")["x"]
    except tomli.TOMLDecodeError:
        return text


def _split_key(name: str) -> tuple[str, str]:
    table, dot, key = name.partition(".")
    if not dot or not key:
        raise SettingsError(f"--{name}: no such option{_nearest(name, _all_keys())}; --help lists them")
    return table, key


def _all_keys() -> list[str]:
    keys = [f"{table}.{key}" for table, field in Config.model_fields.items() for key in _keys(_table(field))]
    return [*keys, *SHORT_OPTIONS, "config"]


def _table(field: Any) -> type[Table]:
    cls: type[Table] = field.annotation
    return cls


def _keys(table: type[Table]) -> dict[str, Any]:
    """The settings of a table by the names that people write: `async` is a word of Python."""
    return {field.alias or name: field for name, field in table.model_fields.items()}


def _nearest(name: str, valid: Any) -> str:
    candidates = {key.rpartition(".")[2]: key for key in valid} | {key: key for key in valid}
    found = difflib.get_close_matches(name, candidates, n=1, cutoff=0.5)
    return f"; did you mean {candidates[found[0]]}?" if found else f"; valid: {', '.join(sorted(valid))}"


def _one_line(error: ValidationError) -> str:
    """The first problem in one line: key, value, what is valid."""
    problem = error.errors()[0]
    keys = [str(part) for part in problem["loc"]]
    name = ".".join(keys[:2])
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    if problem["type"] == "extra_forbidden":
        valid = _keys(_table(Config.model_fields[keys[0]]))
        return f"{name}: no such key{_nearest(keys[1], valid)}"
    value = problem["input"]
    shown = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else value
    wishes = dict.fromkeys(_wish(p) for p in error.errors() if [str(x) for x in p["loc"]][:2] == keys[:2])
    return f"{name} = {shown}: {' or '.join(wishes)}"


def _wish(problem: Any) -> str:
    if problem["type"] == "list_type":
        return "must be a list, in quotes for the shell: '[1, 5]' or '[\"full\"]'"
    if problem["type"] == "too_short":
        return "must not be empty"
    if problem["type"] == "literal_error":
        return f"must be {problem['ctx']['expected'].replace(chr(39), chr(34))}"
    return str(problem["msg"]).replace("Input should be", "must be")
