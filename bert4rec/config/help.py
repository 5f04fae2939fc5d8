"""Name the settings, print their help, and format their errors in one line.

An error names the file or option, the key, the value, and what is valid.
"""

import difflib
import json
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from bert4rec.config.addresses import without_secrets
from bert4rec.config.tables import Config
from bert4rec.runtime.errors import did_you_mean

HELP_WIDTH = 110  # characters of a line of `--help-all`
MOST_SUGGESTIONS = 3  # suggestions in a message

# Setting → its names in other programs. Suggestions keep this order.
OTHER_KEYS = {
    "training.learning_rate": "lr rate",
    "parallelism.sparse_learning_rate": "lr rate",
    "training.per_device_train_batch_size": "batch_size batch bs train_batch_size",
    "model.embed_dim": "dim embedding_dim embedding_size emb_dim hidden_size hidden_dim hidden_units d_model",
    "model.n_heads": "heads num_heads num_attention_heads",
    "model.n_layers": "layers num_layers blocks num_blocks n_blocks depth",
    "model.max_len": "maxlen max_length seq_len max_seq_len sequence_length max_seq_length window",
    "training.mask_prob": "mlm_probability mask_probability mask_ratio mlm_prob",
    "training.optimizer": "optim optimiser",
    "parallelism.sparse_optimizer": "optim optimiser",
    "training.weight_decay": "wd l2",
    "training.max_grad_norm": "clip grad_clip clip_grad_norm",
    "training.n_train_negatives": "negatives n_negatives num_negatives",
    "preprocessing.n_eval_negatives": "negatives n_negatives num_negatives",
    "training.precision": "fp16 bf16 tf32 amp dtype",
    "training.patience": "early_stopping",
    "parallelism.device": "gpu gpus cuda accelerator",
    "evaluation.ks": "k topk top_k cutoffs",
    "data.dataset_dir": "dataset out output output_dir out_dir",
    "data.source": "dataset format type",
    "data.path": "dataset file input csv data data_path",
    "data.table": "table_name sheet sheet_name",
    "data.query": "sql select",
    "run.dir": "out output output_dir out_dir",
    "data.replace": "force overwrite",
    "data.user_column": "user user_id user_col",
    "data.item_column": "item item_id item_col",
    "data.time_column": "time timestamp time_col date",
    "data.time_format": "time_unit unit date_format",
    "data.separator": "sep delimiter delim",
    "preprocessing.engine": "backend cluster executor spark dask",
    "preprocessing.workers": "n_workers processes num_processes jobs n_jobs",
    "run.resume": "checkpoint ckpt restore",
    "run.init_from": "checkpoint ckpt restore",
}

# Source → common names of the files that it reads.
OTHER_SOURCES = {
    "table": "csv tsv parquet pq json jsonl ndjson feather arrow ipc file dataframe log tabular",
    "sequences": "txt text sasrec bert4rec pairs",
    "baskets": "basket transactions carts",
    "ml-1m": "movielens ml movielens-1m movielens1m ml1m",
    "ml-32m": "movielens ml ml-latest",
    "ml-latest-small": "movielens ml ml-latest movielens-small",
    "synthetic": "demo generated fake toy",
    "random": "noise uniform",
    "goodreads": "books goodbooks",
}
# Short name on the command line → setting: for all commands, as `train --help` lists them, and for `prepare` only.
SHORT_OPTIONS = {
    "model": "model.kind",
    "embed-dim": "model.embed_dim",
    "max-len": "model.max_len",
    "epochs": "training.n_epochs",
    "minutes": "training.max_minutes",
    "batch-size": "training.per_device_train_batch_size",
    "lr": "training.learning_rate",
    "loss": "training.loss",
    "precision": "training.precision",
    "seed": "training.seed",
    "mode": "parallelism.mode",
    "device": "parallelism.device",
    "out": "run.dir",
    "name": "run.name",
    "resume": "run.resume",
}
DATA_OPTIONS = {
    "source": "data.source",
    "path": "data.path",
    "table": "data.table",
    "query": "data.query",
    "out": "data.dataset_dir",
    "user": "data.user_column",
    "item": "data.item_column",
    "time": "data.time_column",
    "order": "data.order_column",
    "rating": "data.rating_column",
    "title": "data.title_column",
    "items": "data.items_path",
    "extends": "data.extends",
    "min-rating": "preprocessing.min_rating",
    "min-user-interactions": "preprocessing.min_user_interactions",
    "min-item-interactions": "preprocessing.min_item_interactions",
    "split": "preprocessing.split",
    "validation-users": "preprocessing.validation_users",
    "seed": "preprocessing.seed",
}
PREPARE_OPTIONS = SHORT_OPTIONS | DATA_OPTIONS
ALL = "--help-all lists all"
MANY = 4  # from so many choices on, a message also suggests the nearest


def nearest_keys(name: str, keys: Collection[str]) -> list[str]:
    """Return at most three of `keys` ("table.key", or a short option) that `name` may mean, the likeliest first.

    If `name` begins with a table, only keys of that table are returned, if any match.
    """
    table, _, word = name.lower().replace("-", "_").rpartition(".")
    table_keys = [key for key in keys if table and key.startswith(f"{table}.")]
    return (_nearest_keys(word, table_keys) or _nearest_keys(word, keys))[:MOST_SUGGESTIONS]


def nearest_values(value: str, values: Sequence[str], other_names: Mapping[str, str]) -> list[str]:
    """Return at most three of `values` that `value` may mean, by another name or by similar spelling."""
    word = value.lower().replace("_", "-")
    return (_called(word, values, other_names) or difflib.get_close_matches(word, values, n=1))[:MOST_SUGGESTIONS]


def _nearest_keys(word: str, keys: Collection[str]) -> list[str]:
    """Return the keys whose last part is `word`, else those with that name elsewhere, else similar ones."""
    last_parts = {key: key.rpartition(".")[2] for key in keys}
    if word not in last_parts.values() and (called := _called(word, keys, OTHER_KEYS)):
        return called
    nearest = difflib.get_close_matches(word, last_parts.values(), n=1)
    return [key for key, last_part in last_parts.items() if last_part in nearest]


def _called(word: str, names: Collection[str], other_names: Mapping[str, str]) -> list[str]:
    return [name for name, others in other_names.items() if word in others.split() and name in names]


@dataclass(frozen=True)
class Origins:
    """The origins of settings ("table.key"): `in_file` are set in `file`, `typed` maps to options as typed."""

    file: str = ""
    in_file: frozenset[str] = frozenset()
    typed: Mapping[str, str] = field(default_factory=dict)

    def format_error(self, name: str, value: Any, reason: str) -> str:
        """Return an error line with the option as typed, or with the file if it sets a setting that the line names."""
        if name in self.typed:
            return f"{without_secrets(self.typed[name])}: {reason}"
        line = f"{name} = {shown(without_secrets(value) if isinstance(value, str) else value)}: {reason}"
        is_of_file = any(re.search(rf"\b{re.escape(setting)}\b", line) for setting in self.in_file)
        return f"{self.file}: {line}" if is_of_file else line


NO_ORIGINS = Origins()


def one_line(error: ValidationError, origins: Origins) -> str:
    """Return the first problem in one line: file or option, key, value, what is valid."""
    problem = error.errors()[0]
    keys = [str(part) for part in problem["loc"]]
    name = ".".join(keys[:2])
    if problem["type"] == "extra_forbidden":
        if name in origins.typed:
            return no_such_option(name)
        nearest = did_you_mean(nearest_keys(name, all_settings()))
        place = f"{origins.file}: " if name in origins.in_file else ""
        return f"{place}{name}: no such key{nearest or ';'} {ALL}"
    first, *others = dict.fromkeys(_expected(p) for p in error.errors() if [str(x) for x in p["loc"]][:2] == keys[:2])
    wish = " or ".join([first, *(wish.removeprefix("must be ") for wish in others)])
    return origins.format_error(name, problem["input"], wish)


def no_such_option(name: str, short: Mapping[str, str] = SHORT_OPTIONS) -> str:
    """Return the line for the unknown option --`name` of a command with these `short` names."""
    options = {} if "." in name else {key: option for option, key in short.items()}
    nearest = [options.get(key, key) for key in nearest_keys(name, [*short, *all_settings(), "config"])]
    return f"--{name}: no such option{did_you_mean([f'--{o}' for o in dict.fromkeys(nearest)]) or ';'} {ALL}"


def all_settings() -> dict[str, Any]:
    """Return every setting by "table.key"."""
    tables = Config.model_fields.items()
    return {f"{table}.{key}": setting for table, cls in tables for key, setting in keys_of(cls.annotation).items()}


def keys_of(table: Any) -> dict[str, Any]:
    """Return the settings of a table (a class) by their names in the file; `async` differs, as a keyword of Python."""
    return {setting.alias or name: setting for name, setting in table.model_fields.items()}


def shown(value: Any) -> str:
    """Return a value as it is written in the settings file."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(" = ".join(map(shown, pair)) for pair in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False, default=str)


def _expected(problem: Any) -> str:
    if problem["type"] == "list_type":
        return "must be a list, in quotes for the shell, such as '[\"full\"]' or '[1, 5]'"
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


def description(setting: Any) -> str:
    """Return the whole description in one line."""
    return " ".join(setting.description.split())


def summary(setting: Any) -> str:
    """Return the first clause of the description, and the choices if it names none of them."""
    clause, names = description(setting).partition("; ")[0], choices(setting)
    is_named = {*names} - {"auto"} & {*re.findall(r"\w+", clause)}
    return clause if is_named or not names else f"{clause}: {', '.join(names)}"


def choices(setting: Any) -> list[str]:
    """Return the words that the setting accepts, or none if it accepts other values or only one word."""
    values = re.findall("'(.*?)'", str(setting.annotation))  # the annotation is a Literal
    return values if len(values) > 1 else []


def usual_help(options: Mapping[str, str], prog: str) -> str:
    """Return the end of `--help`: a line for each of the short `options` (name → "table.key")."""
    settings, lines = all_settings(), ["usual settings, with their defaults:"]
    for option, key in options.items():
        lines.append(f"  {f'--{option}={_plain(settings[key].default)}':<26} {summary(settings[key])}")
    return "\n".join([*lines, "", f"settings file: --config=FILE; all settings: {prog} --help-all"])


def settings_help() -> str:
    """Return the end of `--help-all`: every setting by table, with its default and description."""
    lines = ["all settings, with their defaults:"]
    for table, table_field in Config.model_fields.items():
        cls: Any = table_field.annotation
        lines.append(f"\n[{table}] {cls.__doc__}")
        for key, setting in keys_of(cls).items():
            names = choices(setting)
            lines.append(f"  --{table}.{key}={_plain(setting.default)}" + f"  ({', '.join(names)})" * bool(names))
            lines.append(textwrap.indent(textwrap.fill(description(setting), HELP_WIDTH - 6), " " * 6))
    return "\n".join(lines)


def _plain(value: Any) -> str:
    """Return a default as it is typed, without the quotes of a word."""
    return value if isinstance(value, str) and value else shown(value)
