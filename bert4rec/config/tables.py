"""Every setting of the project as typed, validated tables with their defaults.

The tables are strict (pydantic). Neither torch nor Polars is imported here, so that a typing error is reported at once.
"""

from pathlib import Path
from typing import Any, Literal, TypeAlias

import tomli_w
from pydantic import BaseModel, ConfigDict, Field

from bert4rec.config.kinds import KINDS, KindName, UntrainedName
from bert4rec.config.values import (
    Age,
    Count,
    DataPath,
    Dropout,
    MaxLen,
    Positive,
    Seed,
    Share,
    ShareOrTime,
    Time,
    UserPath,
    Whole,
    name_of_path,
)

Source: TypeAlias = Literal[
    "synthetic", "random", "ml-100k", "ml-1m", "ml-20m", "ml-25m", "ml-32m", "ml-latest-small",
    "goodreads", "sequences", "table",
]  # fmt: skip

GENERATED: tuple[Source, ...] = ("synthetic", "random")  # they read no file
OWN_DATA: tuple[Source, ...] = ("table", "sequences")  # a format of many data sets; the others are one each

# Above, baselines are no longer a matter of seconds beside the test of a model.
ALL_BASELINES_UP_TO = 5_000_000  # training positions
ALL_BASELINES_UP_TO_SCORES = 1_000_000_000  # of all test users for all items
COUNTING = {"recent_share", "n_last_items", "decay", "smoothing"}  # settings of models that are not trained

WINDOW_LENGTHS = (50, 100, 200)  # items, of which preparation chooses; the papers' models have no longer ones
FULL_SOFTMAX_UP_TO = 100_000  # items; above, the exact softmax takes most of a step


class Table(BaseModel):
    """A table of `config.toml`: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, serialize_by_alias=True)


class Data(Table):
    """Where the interactions come from and where the dataset folder stands."""

    source: Source = Field(
        "synthetic", description="format of the interactions; where only data.path is given it is recognized"
    )
    path: DataPath = Field(
        "",
        description="file, folder or pattern of the interactions, or an address: s3://, gs://, hf://, https://; "
        "synthetic, random: none",
    )
    dataset_dir: UserPath = Field(
        "",
        description='dataset folder; "" = data/<name of the file or folder> for table, sequences, else data/<source>',
    )
    replace: bool = Field(False, description="replace a dataset that another input made, where one stands there")
    titles_path: DataPath = Field(
        "", description='file with item titles, or its address; "" = beside MovieLens data, if it is there'
    )
    user_column: str = Field("user", description="table: column of the user ids")
    item_column: str = Field("item", description="table: column of the item ids")
    time_column: str = Field("", description='table: times as numbers, dates or ISO 8601; "" = none, file order counts')
    rating_column: str = Field("", description='table: column of the ratings; "" = none')
    title_column: str = Field("", description="table: column of the items' titles; the first of an item counts")
    separator: str = Field("auto", description='table: what stands between two fields; auto = "\\t", "::", ";" or ","')
    has_header: bool = Field(True, description="table: false = the columns of a text file are named 1, 2, …")
    time_unit: Literal["auto", "s", "ms", "us", "ns"] = Field(
        "auto", description="of times that are numbers; auto = by the size of the first ones"
    )
    time_format: str = Field("", description='table: strptime form of times in text, UTC without %z; "" = ISO 8601')
    extends: UserPath = Field("", description='dataset folder whose ids are kept (path: old and new files); "" = none')
    n_users: Count = Field(3000, description="synthetic, random: number of users")
    n_items: int = Field(2000, ge=20, description="synthetic, random: number of items")
    n_rows: Count = Field(120_000, description="synthetic, random: about how many rows, 5 to n_items/2 per user")

    @property
    def folder(self) -> Path:
        """Return the dataset folder: by the settings alone, since training may not have the file."""
        name = name_of_path(self.path) if self.source in OWN_DATA else ""
        return Path(self.dataset_dir or f"data/{name or self.source}")


class Preprocessing(Table):
    """Filters, split and evaluation negatives."""

    min_rating: float = Field(0.0, description="rows rated lower are dropped; 0 = keep all")
    only_read: bool = Field(False, description="goodreads: only rows whose is_read is 1")
    time_from: Time = Field("", description='ISO 8601 or seconds; earlier rows are dropped; "" = no limit')
    time_until: Time = Field("", description='ISO 8601 or seconds; rows from then on are dropped; "" = no limit')
    drop_consecutive_duplicates: bool = Field(False, description="of an item several times in a row the first stays")
    min_user_interactions: Count = Field(1, description="interactions; users with fewer are dropped")
    max_user_interactions: Whole = Field(0, description="interactions; users with more are dropped; 0 = no limit")
    min_item_interactions: Count = Field(1, description="interactions; items with fewer are dropped, before users")
    k_core: bool = Field(True, description="repeat the limits of items and users until all of them hold")
    repeats: Literal["keep", "first", "last"] = Field("keep", description="which of a user's repeats of an item stay")
    reverse_file_order: bool | Literal["auto"] = Field(
        "auto", description="a source without times stands newest first; auto = true for goodreads"
    )
    split: Literal["leave_one_out", "time", "none"] = Field(
        "leave_one_out", description="the test: the last item, the first after split_at, or no test"
    )
    split_at: ShareOrTime = Field(
        0.1, description="time: last share of rows (below 1), or an instant: ISO 8601, seconds"
    )
    validation_users: Count | Literal["all"] = Field(1024, description='users in the validation split, or "all"')
    n_eval_negatives: Count = Field(
        100, description="negatives per user and sampled protocol; none for a user with fewer unseen items"
    )
    max_bad_rows: Share = Field(0.001, description="share of rows that may be unusable before the run stops; 0 = none")
    few_bad_rows: Whole = Field(
        10, description="unusable rows that never stop a run, up to a tenth of all, unless max_bad_rows is 0"
    )
    memory_gb: float = Field(4.0, ge=1, description="GB that preprocessing may take, whatever the size of the data")
    seed: Seed = Field(1, description="of the item ids, validation users, negatives, synthetic data")

    @property
    def recipe(self) -> dict[str, Any]:
        """Return the settings that the dataset depends on: a folder made with others is another dataset."""
        return self.model_dump(mode="json", exclude={"max_bad_rows", "few_bad_rows", "memory_gb"})


class Model(Table):
    """The kind of model, the shape of the network, and what the kinds without training count."""

    kind: KindName = Field(
        "bert4rec",
        description="bert4rec = bidirectional, masked positions; sasrec = causal, each next item; matrix_factorization "
        "= a vector a user, one an item; the others only count, without training",
    )
    form: Literal["dot", "bias", "neural"] = Field(
        "bias",
        description="matrix_factorization: product of the vectors; the same with biases; an MLP over both (mlp_layers)",
    )
    mlp_layers: list[Count] = Field([64, 32], min_length=1, description="form neural: widths of the hidden layers")
    embed_dim: int = Field(64, ge=4, multiple_of=4, description="width of the item vectors and of the blocks")
    n_heads: Count = Field(2, description="attention heads; must divide embed_dim")
    n_layers: Count = Field(2, description="transformer blocks")
    ffn_dim: Count = Field(256, description="width of the feed-forward layer")
    max_len: MaxLen | Literal["auto"] = Field(
        "auto",
        description="items; the longest sequence that the model sees; auto = 50, 100 or 200, the least that three "
        "quarters of the histories fit into",
    )
    positions: Literal["rotary", "learned"] = Field(
        "rotary",
        description="how attention knows the order: by turning queries and keys, so that it sees how far apart two "
        "items are, wherever they stand; learned = a vector for each place from the end",
    )
    input_norm: bool | Literal["auto"] = Field(
        "auto",
        description="what enters the first block is normalised, so that no item is lost beside what blocks add; auto = "
        "for sasrec, which predicts from the last item; bert4rec does from its mask token",
    )
    times: Literal["none", "history", "target"] = Field(
        "none",
        description="what the model knows of time: nothing; when items were taken; that, and the "
        "instant for which it predicts, in evaluation that of the target: another task",
    )
    dropout: Dropout | Literal["auto"] = Field(
        "auto",
        description="share of activations dropped in training; auto = the more, the fewer interactions an item has: "
        "0.1 from 100 on; else 0.2, of sasrec 0.3 from 30 on, else 0.5",
    )
    head: Literal["tied", "linear"] = Field(
        "tied", description="tied = scores through the item table; linear = a layer of its own (small catalogues)"
    )
    output_bias: bool = Field(True, description="a learned bias per item in the scores")
    recent_share: float = Field(
        0.1, gt=0, le=1, description="recent_popularity: newest share of the training interactions, which counts"
    )
    n_last_items: Count = Field(
        10, description="transition_graph: items, of the history that are looked at, and places between two that count"
    )
    decay: float = Field(
        0.7, gt=0, le=1, description="transition_graph: by how much one place further away counts less"
    )
    smoothing: Positive = Field(
        100.0, description="markov, transition_graph: transitions by popularity that each item has beside its own"
    )

    @property
    def knows_times(self) -> bool:
        """Return whether the model uses timestamps."""
        return KINDS[self.kind].is_transformer and self.times != "none"

    @property
    def counting(self) -> dict[str, Any]:
        """Return the settings of the kinds without training."""
        return self.model_dump(include=COUNTING)


class Training(Table):
    """The loop: how long, how fast, what is masked (bert4rec)."""

    n_epochs: Count = Field(200, description="passes over the training windows, at most")
    sliding_step: Whole = Field(0, description="items between the ends of two windows of a history; 0 = model.max_len")
    max_minutes: float = Field(0.0, ge=0, description="minutes of training and validation, at most; 0 = no limit")
    per_device_train_batch_size: Count | Literal["auto"] = Field(
        "auto",
        description="windows per process and step; auto = so many that an epoch has 64 steps, a power of two up to 64, "
        "on all processes together not below 16 (bert4rec: 64) as long as 16 steps are left",
    )
    learning_rate: Positive = Field(1e-3, description="of the dense part")
    optimizer: Literal["adamw", "sgd"] = Field("adamw", description="of the dense part, in both modes")
    weight_decay: float = Field(0.0, ge=0, description="decoupled, dense matrices only, not the tables")
    lr_schedule: Literal["constant", "linear", "cosine", "one_cycle"] = Field(
        "constant",
        description="over n_epochs, dense part and tables: decay to 0; one_cycle = up from 1/25 for 0.3 of them, then "
        "down to nothing",
    )
    warmup_steps: Whole = Field(0, description="steps of linear warm-up")
    average_age: Age | Literal["auto"] = Field(
        "auto",
        description="the model that is validated, tested and saved is a mean of recent weights, on average this share "
        "of all steps old; 0 = the weights of the last step; auto = 0.1, but 0 where the learning rate falls or fbgemm "
        "updates a table",
    )
    max_grad_norm: float = Field(1.0, ge=0, description="clips the gradient of the dense part; 0 = no clipping")
    mask_prob: float = Field(0.2, gt=0, lt=1, description="bert4rec: share of a window's positions to predict")
    last_item_mask_prob: Share = Field(0.1, description="bert4rec: share of windows with only the last item masked")
    mask_token_share: Share = Field(1.0, description="bert4rec: share of masked positions that show the mask")
    random_token_share: Share = Field(
        0.0, description="bert4rec: share of masked positions that show a random item; the rest show themselves"
    )
    loss: Literal["auto", "softmax", "sampled_softmax", "gbce", "bpr", "mse"] = Field(
        "auto",
        description="softmax = exact, over the whole catalogue; mse = of ratings (matrix_factorization); the others "
        f"against n_train_negatives; auto = softmax up to {FULL_SOFTMAX_UP_TO:,} items, else sampled_softmax",
    )
    rating_range: list[float] = Field(
        [], description="mse: predictions are a sigmoid from the first number to the second; [] = without limits"
    )
    rating_holdout: float = Field(
        0.1, ge=0, lt=1, description="mse: share of the training's pairs held out for RMSE and MAE in the report"
    )
    rating_validation: float = Field(
        0.05, ge=0, lt=1, description="mse: share held out to choose the best epoch by; 0 = the last weights are tested"
    )
    n_train_negatives: Count = Field(256, description="items; drawn for each step, shared by its positions")
    negatives_shared_by: Count | Literal["all"] = Field(
        "all", description="processes that share a draw: 1 = each has its own, 8 = each eight consecutive ones have one"
    )
    negatives_power: Share = Field(0.0, description="items are drawn by their popularity to this power; 0 = uniformly")
    gbce_calibration: Share = Field(0.75, description="gbce: share of overconfidence to undo (gSASRec's t); 0 = BCE")
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32",
        description="of products; tf32 = of numbers rounded to 10 bits, on CUDA; bf16 = autocast; weights stay fp32",
    )
    compile: bool = Field(False, description="torch.compile the transformer blocks (needs a C++ compiler)")
    num_workers: Whole = Field(0, description="loader processes per training process; 0 = in the process itself")
    eval_every_n_epochs: Count = Field(2, description="epochs between two validations")
    patience: Whole | Literal["auto"] = Field(
        "auto",
        description="validations without a better full NDCG@10 (mse: RMSE) to stop; auto = 5, if the best is two "
        "fifths of all epochs ago, after 2,000 steps; 0 = never",
    )
    max_skipped_steps: Whole = Field(0, description="steps that may be skipped since a loss or gradient is not finite")
    deterministic: bool = Field(False, description="deterministic algorithms only (slower on CUDA)")
    seed: Seed = Field(1, description="of the initial weights, the order, the masks and dropout")

    @property
    def per_device(self) -> int:
        """Return per_device_train_batch_size, when it is decided."""
        assert self.per_device_train_batch_size != "auto", "the settings are resolved"
        return self.per_device_train_batch_size


class Parallelism(Table):
    """Who holds what: the tables and the dense part over the processes."""

    mode: Literal["dmp", "ddp"] = Field("dmp", description="dmp = item table sharded by TorchRec; ddp = replicated")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto = CUDA with a GPU for every process")
    sharding_type: Literal["row_wise", "table_wise", "column_wise", "auto"] = Field(
        "row_wise", description="dmp: how the item table is cut; auto = TorchRec's planner decides"
    )
    sparse_optimizer: Literal["auto", "sgd", "adagrad", "rowwise_adagrad", "adam"] = Field(
        "auto", description="of the item table; auto = adam; where fbgemm updates the table on CPU, rowwise_adagrad"
    )
    sparse_learning_rate: Positive | Literal["auto"] = Field(
        "auto", description="of the item table; auto = 0.02 for the adagrads, else training.learning_rate"
    )
    compute_kernel: Literal["fused", "fused_uvm", "fused_uvm_caching"] = Field(
        "fused",
        description="dmp on CUDA: where the item table stands; uvm = in host memory; caching = the GPU caches it",
    )
    sparse_weight_decay: float = Field(
        0.0, ge=0, description="of the tables, decoupled (AdamW), at each step of every row; 0 = none"
    )
    table_precision: Literal["fp32", "fp16"] = Field(
        "fp32", description="dmp: of the tables' rows, where fbgemm updates them; their optimizer state stays fp32"
    )
    messages: Literal["fp32", "fp16", "bf16"] = Field(
        "fp32", description="dmp: of vectors between processes; unless fp32, their gradients travel as bf16"
    )
    sharding_group_size: Whole = Field(
        0, description="dmp: processes that share one copy of the tables, a host's for instance; 0 = all of them"
    )
    sync_every_n_steps: Count = Field(
        1, description="groups: steps between two averages of their copies; 1 = every step by all groups' gradients"
    )
    cache_load_factor: float = Field(0.2, gt=0, lt=1, description="fused_uvm_caching: share of the rows on the GPU")
    timeout_minutes: Positive = Field(30.0, description="a run ends when another process has not answered so long")


class Evaluation(Table):
    """What the reports measure."""

    ks: list[Count] = Field([1, 5, 10], min_length=1, description="cut-offs of HR@k and NDCG@k; 10 is always added")
    per_device_eval_batch_size: Count = Field(128, description="users per process and step")
    protocols: list[Literal["full", "popular", "uniform"]] = Field(
        ["full", "popular", "uniform"], min_length=1, description="rank among all items, or among sampled negatives"
    )
    seen_items: Literal["auto", "keep", "leave_out"] = Field(
        "auto",
        description="items of the user's own history, in `full`, in the choice of the best epoch and in recommend: "
        "keep = ranked like all others; leave_out = never recommended; auto = keep where users return to items",
    )
    baselines: Literal["auto"] | list[UntrainedName] = Field(
        "auto",
        description="kinds without training beside a trained one, on the test; popularity is always there; "
        f"auto = all four up to {ALL_BASELINES_UP_TO:,} training positions and test users × items = "
        f"{ALL_BASELINES_UP_TO_SCORES:,}",
    )


class Checkpoint(Table):
    """What an interrupted run is resumed from; there is one at the end of every epoch, too."""

    every_steps: Whole = Field(0, description="steps between two checkpoints; 0 = at the ends of epochs only")
    every_minutes: float = Field(10.0, ge=0, description="minutes between two checkpoints; 0 = as every_steps says")
    keep: Count = Field(2, description="the last ones that stay; the best on validation is kept as well")
    async_: bool | Literal["auto"] = Field(
        "auto", alias="async", description="write beside the training, from a copy; auto = where memory has room for it"
    )
    on_error: Literal["continue", "stop"] = Field(
        "continue", description="where the disk is full; the last good checkpoint stays in any case"
    )
    seconds_on_signal: float = Field(8.0, ge=0, description="for a save on a signal, at most; torchx kills after 10")


class Run(Table):
    """Where the results go, and what to resume or to start from."""

    dir: UserPath = Field("runs", description="folder of the run folders")
    name: str = Field(
        "",
        description='name of the run folder; "" = <source>-<mode>, <source>-sasrec-<mode>, <source>-markov; a finished '
        "run gets -2, -3",
    )
    resume: UserPath = Field(
        "",
        description="resume a run, with its own config.toml and the command line over that: its folder, a checkpoint "
        'in it, or "auto" = the newest unfinished one of that name, or a new one',
    )
    init_from: UserPath = Field("", description="folder of a run whose best weights this one starts from")
    reset_optimizer: bool = Field(False, description="when resuming: forget the optimizers' state, e.g. for others")
    trackers: list[Literal["tensorboard", "mlflow", "wandb"]] = Field(
        ["tensorboard"],
        description="programs that get the run's numbers; mlflow, wandb: offline, extras to install",
    )


class Config(Table):
    """All tables."""

    data: Data = Field(default_factory=Data)
    preprocessing: Preprocessing = Field(default_factory=Preprocessing)
    model: Model = Field(default_factory=Model)
    training: Training = Field(default_factory=Training)
    parallelism: Parallelism = Field(default_factory=Parallelism)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    run: Run = Field(default_factory=Run)

    @property
    def window_step(self) -> int:
        """Return items between the ends of two training windows."""
        return self.training.sliding_step or self.max_len

    @property
    def max_len(self) -> int:
        """Return model.max_len, when it is decided."""
        assert self.model.max_len != "auto", "the settings are resolved"
        return self.model.max_len

    @property
    def shortest_window(self) -> int:
        """Return the least that model.max_len may be beside the other settings."""
        return max(2, self.training.sliding_step)

    @property
    def run_name(self) -> str:
        """Return the run folder's name before a number is added."""
        if self.run.name:
            return self.run.name
        kind = KINDS[self.model.kind]
        words = [kind.name] * kind.is_in_run_names + [self.parallelism.mode] * kind.is_trained
        return "-".join([self.data.source, *words])

    def to_toml(self) -> str:
        """Return the resolved settings as TOML; `load.load_config` reads them back to an equal `Config`."""
        return tomli_w.dumps(self.model_dump(mode="json"))
