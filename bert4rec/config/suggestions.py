"""Suggest the settings or values that are nearest to an unknown name."""

import difflib
from collections.abc import Collection, Mapping, Sequence

MOST = 3  # suggestions

# Setting → what other programs call it. The order is that in which several are suggested.
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
    "run.dir": "out output output_dir out_dir",
    "data.replace": "force overwrite",
    "data.user_column": "user user_id user_col",
    "data.item_column": "item item_id item_col",
    "data.time_column": "time timestamp time_col date",
    "data.separator": "sep delimiter delim",
    "preprocessing.memory_gb": "memory mem",
    "run.resume": "checkpoint ckpt restore",
    "run.init_from": "checkpoint ckpt restore",
}

# Source → what people call the files that it reads.
OTHER_SOURCES = {
    "table": "csv tsv parquet pq json jsonl ndjson feather arrow ipc file dataframe log tabular",
    "sequences": "txt text sasrec bert4rec pairs",
    "ml-1m": "movielens ml movielens-1m movielens1m ml1m",
    "ml-32m": "movielens ml ml-latest",
    "ml-latest-small": "movielens ml ml-latest movielens-small",
    "synthetic": "demo generated fake toy",
    "random": "noise uniform",
    "goodreads": "books goodbooks",
}


def nearest_keys(name: str, keys: Collection[str]) -> list[str]:
    """Return at most three of `keys` ("table.key", or a short option) that `name` may mean, likeliest first.

    Those of the table that `name` begins with come alone where there are any.
    """
    table, _, word = name.lower().replace("-", "_").rpartition(".")
    own = [key for key in keys if table and key.startswith(f"{table}.")]
    return (_nearest_keys(word, own) or _nearest_keys(word, keys))[:MOST]


def nearest_values(value: str, values: Sequence[str], other_names: Mapping[str, str]) -> list[str]:
    """Return at most three of `values` that `value` may mean, by another name or by its letters."""
    word = value.lower().replace("_", "-")
    return (_called(word, values, other_names) or difflib.get_close_matches(word, values, n=1))[:MOST]


def did_you_mean(names: Sequence[str]) -> str:
    """Return the end of a message: `; did you mean a, b or c?`; nothing where there are no names."""
    if not names:
        return ""
    *others, last = names
    return f"; did you mean {', '.join(others)}{' or ' * bool(others)}{last}?"


def _nearest_keys(word: str, keys: Collection[str]) -> list[str]:
    """Return the keys whose last part is `word`, else those that others call so, else those with nearly its letters."""
    last_parts = {key: key.rpartition(".")[2] for key in keys}
    if word not in last_parts.values() and (called := _called(word, keys, OTHER_KEYS)):
        return called
    nearest = difflib.get_close_matches(word, last_parts.values(), n=1)
    return [key for key, last_part in last_parts.items() if last_part in nearest]


def _called(word: str, names: Collection[str], other_names: Mapping[str, str]) -> list[str]:
    return [name for name, others in other_names.items() if word in others.split() and name in names]
