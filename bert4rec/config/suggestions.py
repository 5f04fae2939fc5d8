"""What was probably meant: the settings, or the values of one, that are nearest to a name that does not exist."""

import difflib
from collections.abc import Collection, Mapping, Sequence

MOST = 3  # suggestions
CLOSE = 0.6  # of 1, as difflib measures how much of two names is the same
NEARLY_AS_CLOSE = 0.1  # below the nearest: what is farther is left out

# What other programs call a setting, in small letters, and what it is called here.
KEY_ALIASES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("lr", "rate"), ("training.learning_rate", "parallelism.sparse_learning_rate")),
    **dict.fromkeys(("batch_size", "batch", "bs", "train_batch_size"), ("training.per_device_train_batch_size",)),
    "eval_batch_size": ("evaluation.per_device_eval_batch_size",),
    **dict.fromkeys(("epochs", "epoch", "num_epochs", "max_epochs", "num_train_epochs"), ("training.n_epochs",)),
    **dict.fromkeys(
        ("dim", "embedding_dim", "embedding_size", "emb_dim", "hidden_size", "hidden_dim", "hidden_units", "d_model"),
        ("model.embed_dim",),
    ),
    **dict.fromkeys(("heads", "num_heads", "num_attention_heads"), ("model.n_heads",)),
    **dict.fromkeys(("layers", "num_layers", "blocks", "num_blocks", "n_blocks", "depth"), ("model.n_layers",)),
    **dict.fromkeys(
        ("maxlen", "max_length", "seq_len", "max_seq_len", "sequence_length", "max_seq_length", "window"),
        ("model.max_len",),
    ),
    **dict.fromkeys(("mlm_probability", "mask_probability", "mask_ratio", "mlm_prob"), ("training.mask_prob",)),
    **dict.fromkeys(("optim", "optimiser"), ("training.optimizer", "parallelism.sparse_optimizer")),
    **dict.fromkeys(("wd", "l2"), ("training.weight_decay",)),
    **dict.fromkeys(("scheduler", "schedule"), ("training.lr_schedule",)),
    "warmup": ("training.warmup_steps",),
    **dict.fromkeys(("clip", "grad_clip", "clip_grad_norm"), ("training.max_grad_norm",)),
    **dict.fromkeys(("negatives", "n_negatives", "num_negatives"),
                    ("training.n_train_negatives", "preprocessing.n_eval_negatives")),
    **dict.fromkeys(("fp16", "bf16", "amp", "dtype"), ("training.precision",)),
    "workers": ("training.num_workers",),
    "early_stopping": ("training.patience",),
    **dict.fromkeys(("gpu", "gpus", "cuda", "accelerator"), ("parallelism.device",)),
    "sharding": ("parallelism.sharding_type",),
    **dict.fromkeys(("k", "topk", "top_k", "cutoffs"), ("evaluation.ks",)),
    **dict.fromkeys(("file", "input", "csv", "data", "data_path"), ("data.path",)),
    "dataset": ("data.dataset_dir", "data.source", "data.path"),
    **dict.fromkeys(("out", "output", "output_dir", "out_dir"), ("data.dataset_dir", "run.dir")),
    **dict.fromkeys(("force", "overwrite"), ("data.replace",)),
    **dict.fromkeys(("format", "type"), ("data.source",)),
    **dict.fromkeys(("user", "user_id", "user_col"), ("data.user_column",)),
    **dict.fromkeys(("item", "item_id", "item_col"), ("data.item_column",)),
    **dict.fromkeys(("time", "timestamp", "time_col", "date"), ("data.time_column",)),
    **dict.fromkeys(("sep", "delimiter", "delim"), ("data.separator",)),
    "header": ("data.has_header",),
    **dict.fromkeys(("memory", "mem"), ("preprocessing.memory_gb",)),
    **dict.fromkeys(("checkpoint", "ckpt", "restore"), ("run.resume", "run.init_from")),
}  # fmt: skip

# What people call the format of a file, and the source that reads it.
SOURCE_ALIASES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(
        ("csv", "tsv", "parquet", "pq", "json", "jsonl", "ndjson", "feather", "arrow", "ipc", "file", "dataframe",
         "log", "tabular"),
        ("table",),
    ),
    **dict.fromkeys(("txt", "text", "sasrec", "bert4rec", "pairs"), ("sequences",)),
    **dict.fromkeys(("movielens", "ml"), ("ml-1m", "ml-32m", "ml-latest-small")),
    **dict.fromkeys(("ml-latest", "movielens-small"), ("ml-latest-small", "ml-32m")),
    **dict.fromkeys(("movielens-1m", "movielens1m", "ml1m"), ("ml-1m",)),
    **dict.fromkeys(("demo", "generated", "fake", "toy"), ("synthetic",)),
    **dict.fromkeys(("noise", "uniform"), ("random",)),
    **dict.fromkeys(("books", "goodbooks"), ("goodreads",)),
}  # fmt: skip


def nearest_keys(name: str, keys: Collection[str]) -> list[str]:
    """At most three of `keys` ("table.key", or a short option) that `name` may stand for, the likeliest first.

    Those of the table that `name` begins with come alone where there are any.
    """
    table, _, word = name.lower().replace("-", "_").rpartition(".")
    own = [key for key in keys if table and key.startswith(f"{table}.")]
    for candidates in (own, keys):
        if found := _named(word, candidates) or _close(word, candidates):
            return found[:MOST]
    return []


def nearest_values(value: str, values: Sequence[str], aliases: Mapping[str, Sequence[str]]) -> list[str]:
    """At most three of `values` that `value` may stand for, by another name (`aliases`) or by its letters."""
    word = value.lower().replace("_", "-")
    named = [other for other in aliases.get(word, ()) if other in values]
    return (named or difflib.get_close_matches(word, values, n=1, cutoff=CLOSE))[:MOST]


def did_you_mean(names: Sequence[str]) -> str:
    """The end of a message: `; did you mean a, b or c?`; nothing where there are no names."""
    if not names:
        return ""
    *others, last = names
    return f"; did you mean {', '.join(others)}{' or ' * bool(others)}{last}?"


def _named(word: str, keys: Collection[str]) -> list[str]:
    """The keys that are called so behind their table, or are what other programs call so."""
    same = [key for key in keys if key.rpartition(".")[2] == word]
    return same or [key for key in KEY_ALIASES.get(word, ()) if key in keys]


def _close(word: str, keys: Collection[str]) -> list[str]:
    """The keys whose last part has nearly the letters of `word`, the nearest first."""
    closeness = {
        key: difflib.SequenceMatcher(None, word, key.rpartition(".")[2], autojunk=False).ratio() for key in keys
    }
    least = max(CLOSE, max(closeness.values(), default=0.0) - NEARLY_AS_CLOSE)
    return sorted((key for key in keys if closeness[key] >= least), key=lambda key: -closeness[key])
