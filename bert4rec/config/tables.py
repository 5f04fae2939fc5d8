"""Every setting of the project as typed, validated tables with their defaults.

The text below a setting is its description: a short clause, which is all that `config.toml` and `--help` show, then
"; " and details, which `docs/settings.md` and `--help-all` show too (`config/help.py`).

The tables are strict (pydantic). Neither torch nor Polars is imported here, so that a typing error is reported at once.
"""

import os
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

import tomli_w
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from bert4rec.config.addresses import ICEBERG, check_dataset_address, check_url, is_url, without_secrets
from bert4rec.config.kinds import KINDS, KindName, UntrainedName
from bert4rec.config.recognition import FETCHED_ENDINGS, PACKED, SUFFIXES
from bert4rec.config.sources import GENERATED, OWN_DATA, SOURCES
from bert4rec.config.stored import dataset_folder
from bert4rec.runtime.storage import is_stored

# Pydantic reads the valid names from `SOURCES`; a type checker cannot.
if TYPE_CHECKING:
    Source: TypeAlias = str
else:
    Source = Literal[(*GENERATED, *SOURCES)]

FeatureKind: TypeAlias = Literal["category", "categories", "number", "words", "vector", "ignore"]

# Above, baselines are no longer a matter of seconds beside the test of a model.
ALL_BASELINES_UP_TO = 5_000_000  # training positions
ALL_BASELINES_UP_TO_SCORES = 1_000_000_000  # of all test users for all items
ALL_PAIRS_UP_TO = 5000  # items
PRIOR_UP_TO = 20_000_000  # training positions; above, counting takes more than some minutes
PRIOR_UP_TO_ITEMS = 1_000_000  # above, it takes more than 1.5 GB of memory

WINDOW_LENGTHS = (50, 100, 200)  # items, of which preparation chooses; the papers' models have no longer ones
FULL_SOFTMAX_UP_TO = 100_000  # items; above, the exact softmax takes most of a step

INPUT_ENDINGS = (*SUFFIXES, *FETCHED_ENDINGS, *PACKED, ".txt", ".json", ".dat", ".data")  # of names of input files
Count: TypeAlias = Annotated[int, Field(ge=1)]
Whole: TypeAlias = Annotated[int, Field(ge=0)]
Positive: TypeAlias = Annotated[float, Field(gt=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Seed: TypeAlias = Annotated[int, Field(ge=0, lt=2**32)]
COMMON = (  # the settings in `config.toml`
    "data.source", "data.path", "data.dataset_dir", "data.user_column", "data.item_column", "data.time_column",
    "data.rating_column", "data.title_column",
    "preprocessing.min_rating", "preprocessing.min_user_interactions", "preprocessing.min_item_interactions",
    "preprocessing.repeats", "preprocessing.split", "preprocessing.split_at", "preprocessing.validation_users",
    "model.kind", "model.embed_dim", "model.n_heads", "model.n_layers", "model.max_len", "model.dropout",
    "training.n_epochs", "training.max_minutes", "training.per_device_train_batch_size", "training.learning_rate",
    "training.loss", "training.n_train_negatives", "training.precision", "training.eval_every_n_epochs",
    "training.patience", "training.seed",
    "parallelism.mode", "parallelism.device", "parallelism.sharding_type", "parallelism.sparse_optimizer",
    "parallelism.sparse_learning_rate",
    "evaluation.ks", "evaluation.protocols", "evaluation.seen_items",
    "checkpoint.every_minutes", "checkpoint.keep",
    "run.dir", "run.name", "run.trackers",
)  # fmt: skip


def instant(text: str) -> int:
    """Return seconds since 1970 of ISO 8601 text (UTC by default) or of seconds; raise `ValueError` otherwise."""
    try:
        return int(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def expand_user(path: str) -> str:
    """Return `path` with `~` or `~user` at its beginning as that home folder; `ValueError` where that is missing."""
    whole = os.path.expanduser(path)
    if path.startswith("~") and whole == path:
        raise ValueError(f"there is no home folder {path.partition('/')[0]} on this machine; write the whole path")
    return whole


def name_of_path(path: str) -> str:
    """Return the name of a file, folder or pattern without endings: "logs" of `logs/*.csv`, "" of nothing."""
    whole = without_secrets(path) if is_url(path) else os.path.abspath(path)
    whole = re.sub(rf"/metadata/[^/]*{re.escape(ICEBERG)}$", "", whole)
    parts = whole.split(os.sep) if path else []
    return next((name for part in reversed(parts) if (name := _plain_name(part))), "")


def _plain_name(part: str) -> str:
    """Return one part of a path without its endings and the wildcards of a pattern."""
    while (stem := os.path.splitext(part)[0]) != part and part.lower().endswith(INPUT_ENDINGS):
        part = stem
    plain = re.sub(r"\[[^]]*\]|[*?]", "", part)
    return part if plain == part else plain.strip(" .-_")


def _on_this_machine(path: str) -> str:
    if is_url(path):
        raise ValueError(
            "must be a path of this machine; only data.path, data.titles_path, data.items_path, data.dataset_dir and "
            "data.extends may be addresses"
        )
    return path


def _as_text(value: Any) -> Any:
    """Return dates and integers as text: TOML has types of its own for them."""
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _share_or_time(value: float | str) -> float | str:
    if isinstance(value, str):
        try:
            instant(value)
        except ValueError:
            raise ValueError("must be a time: 2019-03-01, 2019-03-01T12:00:00 or seconds") from None
    elif not 0 < value < 1:
        raise ValueError('a share must be between 0 and 1; a time must be in quotes: "2019-03-01"')
    return value


UserPath: TypeAlias = Annotated[str, AfterValidator(expand_user), AfterValidator(_on_this_machine)]
DatasetPlace: TypeAlias = Annotated[str, AfterValidator(expand_user), AfterValidator(check_dataset_address)]
DataPath: TypeAlias = Annotated[  # what is saved of a run is often shown to others
    str, AfterValidator(expand_user), AfterValidator(check_url), PlainSerializer(without_secrets, when_used="json")
]
Time: TypeAlias = Annotated[str, BeforeValidator(_as_text), AfterValidator(lambda text: text and _share_or_time(text))]
ShareOrTime: TypeAlias = Annotated[float | str, BeforeValidator(_as_text), AfterValidator(_share_or_time)]


class Table(BaseModel):
    """A table of `config.toml`: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, serialize_by_alias=True,
        use_attribute_docstrings=True,
    )  # fmt: skip

    @classmethod
    def from_saved(cls, values: Mapping[str, Any]) -> Self:
        """Return the table of saved settings, without those that this version does not have."""
        return cls(**{key: value for key, value in values.items() if key in cls.model_fields})


class Data(Table):
    """Input data and the dataset folder."""

    source: Source = "synthetic"
    """input format: table (CSV, Parquet, JSON lines), sequences, ml-1m, …; detected if only data.path is set; table =
    CSV, Parquet, JSON lines, Feather, a database, a Delta or Iceberg table, or a workbook; sequences = text lines of
    one user and one item, or of a user and all its items; baskets = text lines of items alone, each line a user of its
    own; synthetic and random are generated"""
    path: DataPath = ""
    """file, folder, glob pattern or URL of the interactions; s3://, gs://, hf:// or https://; postgresql://host/shop or
    another database; not for synthetic and random"""
    table: str = ""
    """table of the database, or sheet of the workbook, in data.path; "" = its only table, or all sheets with the header
    of the first"""
    query: str = ""
    """SELECT for the rows of the database in data.path, "" = data.table"""
    dataset_dir: DatasetPlace = ""
    """dataset folder, "" = data/<name>; written by `prepare`, the default of `train`; <name> = name of data.path for
    table, sequences and baskets, else the source; or s3://bucket/name or gs://bucket/name: training hosts fetch it"""
    parts_by_host: bool = False
    """each host has only some of the Arrow files of `histories/` and `negatives/` of the dataset folder, and trains on
    these; the hosts together have them all"""
    replace: bool = False
    """overwrite a dataset that runs were trained on, or of another input; any other one is always overwritten"""
    titles_path: DataPath = ""
    """file or URL with the item titles; "" = movies.dat, movies.csv or u.item next to MovieLens data, if present"""
    items_path: DataPath = ""
    """file or URL with a row for each item, "" = none; its columns are features of the items; CSV, Parquet, JSON lines;
    items that the log does not have become cold items of the catalogue"""
    item_features: dict[str, FeatureKind] = {}
    """column of data.items_path or of the log → its kind; {} = all of data.items_path that can be told; category = one
    value; categories = a list or a text with a separator; number = 16 quantiles; words = of a text, hashed; vector
    = ready-made numbers; ignore = for rules alone"""
    user_column: str = "auto"
    """column of the user ids (table); auto = recognized, as are the other columns"""
    item_column: str = "auto"
    """column of the item ids (table)"""
    time_column: str = "auto"
    """column of the timestamps (table), "" = none; numbers, dates or ISO 8601 text; without them rows are in
    file order"""
    rating_column: str = "auto"
    """column of the ratings (table), "" = none"""
    order_column: str = ""
    """column that orders rows with equal times (table), "" = none; numbers, times of day or text, such as a line
    number; a missing value comes first; without times it orders all rows of a user"""
    event_column: str = ""
    """column of the kinds of events (table), "" = none; such as view, cart, purchase: at most 100 kinds; the model
    knows the kind of each interaction of a history"""
    title_column: str = "auto"
    """column of the item titles (table), "" = none; the first title of each item is used"""
    separator: str = "auto"
    """field separator (table, baskets); auto = tab, "::", ";", "|", "," or blanks: the one that gives the first lines
    the same number of fields; " " = one blank or several; of baskets, auto = the first of ";", "," and "|" that most
    lines have, or blanks"""
    has_header: bool = True
    """the first line of a text file has the column names (table); false = columns are named 1, 2, …"""
    time_format: str = ""
    """format of the timestamps, "" = recognized by the values; s, ms, us, ns = numbers in that unit, excel = days as
    spreadsheets count them; or a strptime format of text (table), UTC unless it has %z"""
    extends: DatasetPlace = ""
    """older dataset that grows, a folder or an address, "" = none; data.path then names the old and the new files; ids,
    table, columns, time format, filters, split and validation users stay, unless they are set"""
    accept_lost_rows: bool = False
    """accept that most users of data.extends have lost most of their rows; their histories are then those in
    data.path"""
    n_users: Count = 3000
    """number of users (synthetic, random)"""
    n_items: int = Field(2000, ge=20)
    """number of items (synthetic, random)"""
    n_rows: Count = 120_000
    """approximate number of interactions (synthetic, random); 5 to n_items / 2 per user"""

    @property
    def place(self) -> str:
        """Return the dataset folder, or its address: by the settings alone, since training may not have the file."""
        name = (self.table.rpartition(".")[2] or name_of_path(self.path)) if self.source in OWN_DATA else ""
        place = self.dataset_dir or f"data/{name or self.source}"
        return place if is_stored(place) else str(Path(place))

    @property
    def folder(self) -> Path:
        """Return the dataset folder on this host; one in object storage is fetched first. Raises `DataError`."""
        return dataset_folder(self.place)


class Preprocessing(Table):
    """Filters, split and evaluation negatives."""

    min_rating: float = 0.0
    """drop rows with a lower rating, 0 = keep all"""
    only_read: bool = False
    """drop rows whose is_read is not 1 (goodreads)"""
    time_from: Time = ""
    """drop rows before this time; ISO 8601, such as 2018-01-01, or seconds since 1970; "" = no limit"""
    time_until: Time = ""
    """drop rows at or after this time; ISO 8601 or seconds since 1970; "" = no limit"""
    min_user_interactions: Count = 1
    """drop users with fewer interactions; the limits for users and items are repeated until all hold"""
    max_user_interactions: Whole = 0
    """drop users with more interactions; 0 = no limit"""
    min_item_interactions: Count = 1
    """drop items with fewer interactions; counted before users are dropped"""
    repeats: Literal["keep", "first", "last", "first_in_a_row"] = "keep"
    """interactions that stay if a user repeats an item; keep = all of them; first_in_a_row = the first of those with
    no other item between them; with data.event_column, a repeat is of the same kind of event"""
    reverse_file_order: bool | Literal["auto"] = "auto"
    """take rows without times, or of one time, last row first; auto = for goodreads, and for a table whose first rows
    descend in time; of several files, the last file comes first, too"""
    ties: Literal["file", "shuffle"] = "file"
    """order of a user's rows with equal times; file = as in the file; shuffle = random, by the seed"""
    split: Literal["leave_one_out", "leave_last_basket", "time", "none"] = "leave_one_out"
    """held-out test targets; leave_one_out = the last item of each user, and the item before it for validation;
    leave_last_basket = a random item of the user's last time, and of the time before for validation; time = the first
    item after split_at; none = train on all"""
    split_at: ShareOrTime = 0.1
    """start of the test period (split = time), as share of rows or time; a number below 1 = that last share of the
    rows; else ISO 8601 or seconds since 1970"""
    target_events: list[str] = []
    """kinds of events to hold out and to predict, [] = all; such as ["purchase"]; all interactions are read as input;
    needs data.event_column"""
    hide_before_target: Count | Literal["nothing", "visit", "last_target"] = "nothing"
    """events before a target that are no input for its prediction; visit = those of the same visit, without a pause of
    30 minutes; a number = those of the last minutes; last_target = those since the last target; for logs in which a
    view comes before each purchase; needs preprocessing.target_events and times"""
    validation_users: Count | Literal["all"] = 1024
    """number of users in the validation split, or "all" """
    test_users: Count | Literal["all"] = "all"
    """number of users in the test split, or "all"; with leave_one_out all items of the others are for training, and
    they are not validated"""
    n_eval_negatives: Whole = 100
    """negatives per user for the sampled protocols; users with fewer unseen items are left out of these protocols; 0 =
    none: there are no such protocols"""
    max_bad_rows: Share = 0.001
    """largest share of unusable rows before preparation fails; ten rows are accepted whatever their share, up to a
    tenth of all rows; 0 = none"""
    max_guests: Share = 0.5
    """largest share of rows without a user before preparation fails; they are left out, since they are part of no
    history; 0 = none"""
    engine: Literal["local", "ray"] = "local"
    """what runs the preparation; local = this machine; ray = the Ray cluster of RAY_ADDRESS, or a Ray on this machine;
    ray is an extra of the package to install, and all machines must see the same files"""
    workers: Count | Literal["auto"] = "auto"
    """number of workers that prepare at a time, with the same result; auto = one for each CPU of the cluster (ray), for
    each core and 1.5 GB of free memory if the log has 0.5 GB or more (local), else 1, which is this process alone"""
    seed: Seed = 1
    """seed of item ids, samples of users, negatives and synthetic data"""

    @property
    def recipe(self) -> dict[str, Any]:
        """Return the settings that the dataset depends on: a folder made with others is another dataset."""
        optional, default = ("target_events", "hide_before_target", "test_users", "ties"), Preprocessing()
        unused = {name for name in optional if getattr(self, name) == getattr(default, name)}
        unused |= {"max_bad_rows", "max_guests", "engine", "workers"}
        return self.model_dump(mode="json", exclude=unused)


class Model(Table):
    """Model and its sizes."""

    kind: KindName = "bert4rec"
    """kind of model: bert4rec, sasrec, matrix_factorization, popularity, …; bert4rec = bidirectional, trained on masked
    items; sasrec = causal, trained on each next item; matrix_factorization = one vector per user and per item; the
    other kinds are baselines that only count"""
    form: Literal["dot", "bias", "neural"] = "bias"
    """score of a user and an item (matrix_factorization); dot = dot product; bias = dot product plus biases of user and
    item; neural = MLP on both vectors, with hidden layers of 64 and 32"""
    embed_dim: int = Field(64, ge=4, multiple_of=4)
    """size of the item embeddings and hidden states; a multiple of 4"""
    n_heads: Count = 2
    """attention heads; their number must divide embed_dim"""
    n_layers: Count = 2
    """transformer blocks"""
    ffn_dim: Count = 256
    """width of the feed-forward layers"""
    max_len: Annotated[int, Field(ge=2)] | Literal["auto"] = "auto"
    """longest input sequence, in items; auto = 50, 100 or 200: the smallest that three quarters of the histories fit
    into, at most 200"""
    positions: Literal["rotary", "learned"] = "rotary"
    """position encoding; rotary = queries and keys are rotated, so attention sees the distance between items; learned =
    one embedding per position, counted from the end"""
    input_norm: bool | Literal["auto"] = "auto"
    """LayerNorm on the input of the first block; auto = true for sasrec, false for bert4rec"""
    times: Literal["auto", "none", "history", "target"] = "auto"
    """timestamps that the model uses; history = those of past items; target = also the time of the prediction, in
    evaluation that of the target, which makes it another task; auto = history if shares of the rows have moved by 15
    points or more in the last weeks of a log of less than a year (`bert4rec describe`), else none"""
    dropout: Annotated[float, Field(ge=0, lt=1)] | Literal["auto"] = "auto"
    """dropout rate; auto = by the mean interactions per item: 0.1 from 100 on; below, bert4rec 0.2, sasrec 0.3 from 30
    on, else 0.5"""
    head: Literal["tied", "linear"] = "tied"
    """output layer; tied = scores by the item embeddings; linear = a separate layer on each process, for small
    catalogues"""

    prior: Literal["auto", "none"] | list[Literal["transitions", "neighbours", "ease"]] = "auto"
    """what is counted and added to the scores of a transformer, with weights that are chosen by NDCG@10 of the
    validation users; transitions = what follows the last items; neighbours = what the same users have near; ease =
    EASE, above 20,000 items with a neighbourhood of each; auto = all of these, ease up to 5,000 items, if together
    they pay, up to 20,000,000 training positions and 1,000,000 items"""

    item_features: bool = True
    """use the item features that the dataset has; false = ids alone"""
    id_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """share of the items whose id is hidden in a training step; an item is then understood by its features, as a new
    one must be; only with item features"""
    feature_tables_from: Count = 1_000_000
    """values of an item feature from which it has its own table; it is sharded like that of the items (dmp); the
    vectors of the values of other features are copied to every process"""

    @property
    def knows_times(self) -> bool:
        """Return whether the model uses timestamps; "auto" must be resolved before."""
        return KINDS[self.kind].is_transformer and self.times not in ("none", "auto")


class Training(Table):
    """Duration, batches, optimizer, loss, masking and early stopping."""

    n_epochs: Count = 200
    """maximum number of epochs"""
    sliding_step: Whole = 0
    """items between the ends of two training windows of a history; 0 = model.max_len, so windows do not overlap"""
    max_minutes: float = Field(0.0, ge=0)
    """maximum minutes of training and validation, 0 = no limit"""
    per_device_train_batch_size: Count | Literal["auto"] = "auto"
    """training batch size per process, in windows; auto = a power of two up to 64 that gives an epoch about 64 steps,
    but at least 64 windows over all processes (sasrec: 16) if that leaves 16 steps"""
    learning_rate: Positive | Literal["auto"] = "auto"
    """learning rate of the dense parameters; auto = 0.001, with muon in proportion to the windows of a step: 0.008
    for 64, at most 0.012; that of the embedding tables is parallelism.sparse_learning_rate"""
    optimizer: Literal["auto", "adamw", "muon", "sgd"] = "auto"
    """optimizer of the dense parameters; muon = Muon for the matrices of the transformer blocks, adamw for the rest;
    auto = muon for transformers, else adamw"""
    weight_decay: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"
    """decoupled weight decay of the dense matrices; auto = 0.1 with muon, else 0; that of the embedding tables is
    parallelism.sparse_weight_decay"""
    lr_schedule: Literal["constant", "linear", "cosine", "one_cycle"] = "constant"
    """learning-rate schedule over n_epochs, for all parameters; linear, cosine = decay to 0; one_cycle = up from 1/25
    for 30 % of the steps, then down to almost 0"""
    warmup_steps: Whole = 0
    """steps of linear learning-rate warm-up"""
    average_age: Annotated[float, Field(ge=0, lt=0.5)] | Literal["auto"] = "auto"
    """moving average of the weights: its mean age, as a share of all steps; the average is validated, tested and saved;
    0 = no average; auto = 0.1, but 0 with a decaying learning rate, or if fbgemm updates a table"""
    max_grad_norm: float = Field(1.0, ge=0)
    """largest gradient norm of the dense parameters; 0 = no clipping"""
    mask_prob: float = Field(0.2, gt=0, lt=1)
    """share of positions to mask and predict (bert4rec)"""
    last_item_mask_prob: Share = 0.1
    """share of windows with only the last item masked (bert4rec)"""
    mask_token_share: Share = 1.0
    """share of masked positions that show the mask token (bert4rec)"""
    random_token_share: Share = 0.0
    """share of masked positions that show a random item (bert4rec); the rest show their own item"""
    loss: Literal["auto", "softmax", "sampled_softmax", "gbce", "bpr", "mse"] = "auto"
    """training loss; softmax = exact, over the whole catalogue; sampled_softmax, gbce, bpr = against n_train_negatives;
    mse = ratings (matrix_factorization); auto = softmax up to 100,000 items, above and for form = neural
    sampled_softmax"""
    rating_range: list[float] = []
    """range of predicted ratings (mse), such as [0, 5.5]; a sigmoid is scaled to it; [] = no limits"""
    rating_validation: float = Field(0.05, ge=0, lt=0.9)
    """share of training pairs held out to choose the best epoch (mse); 0 = the last weights are tested; another tenth
    is always held out for RMSE and MAE in the report"""
    event_weights: dict[str, Annotated[float, Field(ge=0)]] = {}
    """kind of event → weight of its positions in the loss, {} = all 1; the loss is the weighted mean of the global
    batch; a kind that is not named has weight 1; needs data.event_column"""
    n_train_negatives: Count | Literal["auto"] = "auto"
    """negatives per draw for the sampled losses; auto = a quarter of the positions to predict in the largest batch of a
    process, rounded up to a power of two, at least 256"""
    negatives_shared_by: Count | Literal["auto", "all"] = "auto"
    """number of processes that share a draw of negatives, or "all"; 1 = each process draws its own; 8 = each eight
    consecutive processes share a draw; auto = all, but 1 if n_train_negatives is auto and more than four positions
    would share a negative"""
    negatives_power: Share = 0.0
    """exponent of popularity for drawing negatives; 0 = uniform, 1 = by popularity"""
    gbce_calibration: Share = 0.75
    """calibration of gbce (t of gSASRec), from 0 to 1; 0 = plain binary cross-entropy"""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """precision of matrix products; tf32 = rounded to 10 bits, on CUDA; bf16 = autocast; weights stay fp32"""
    compile: bool = False
    """compile the transformer blocks with torch.compile; needs a C++ compiler"""
    num_workers: Whole = 0
    """data-loader workers per training process; 0 = load in the process itself"""
    eval_every_n_epochs: Count = 2
    """epochs between two validations"""
    patience: Whole | Literal["auto"] = "auto"
    """validations without improvement before early stopping; measured by full NDCG@10 (mse: RMSE); 0 = never; auto = 5,
    the best two fifths of all epochs ago, and at least 2,000 steps"""
    deterministic: bool = False
    """use deterministic algorithms only; slower on CUDA"""
    seed: Seed = 1
    """seed of initial weights, batch order, masks and dropout"""

    @property
    def per_device(self) -> int:
        """Return per_device_train_batch_size, when it is decided."""
        assert self.per_device_train_batch_size != "auto", "the settings are resolved"
        return self.per_device_train_batch_size

    @property
    def rate(self) -> float:
        """Return learning_rate, when it is decided."""
        assert self.learning_rate != "auto", "the settings are resolved"
        return self.learning_rate

    @property
    def n_negatives(self) -> int:
        """Return n_train_negatives, when it is decided."""
        assert self.n_train_negatives != "auto", "the settings are resolved"
        return self.n_train_negatives


class Parallelism(Table):
    """Devices, and how tables and dense parameters are distributed over the processes."""

    mode: Literal["dmp", "ddp"] = "dmp"
    """dmp = item table sharded by TorchRec, ddp = a copy on each process"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """device of all processes; auto = cuda if there is a GPU for each process"""
    sharding_type: Literal["row_wise", "table_wise", "column_wise", "auto"] = "row_wise"
    """how the item table is sharded (dmp); auto = TorchRec's planner decides"""
    sparse_optimizer: Literal["auto", "sgd", "adagrad", "rowwise_adagrad", "adam"] = "auto"
    """optimizer of the embedding tables; auto = adam; rowwise_adagrad where fbgemm updates a table on CPU,
    adagrad if the table is column_wise there"""
    sparse_learning_rate: Positive | Literal["auto"] = "auto"
    """learning rate of the embedding tables; auto = 0.02 for adagrad and rowwise_adagrad; for the others 0.001
    beside muon, else training.learning_rate"""
    compute_kernel: Literal["fused", "fused_uvm", "fused_uvm_caching"] = "fused"
    """memory of the item table (dmp on CUDA); fused = GPU; fused_uvm = host; fused_uvm_caching = host, with a fifth
    of the rows cached on the GPU"""
    sparse_weight_decay: float = Field(0.0, ge=0)
    """decoupled weight decay of the embedding tables; applied to all rows at each step; 0 = none"""
    table_precision: Literal["fp32", "fp16"] = "fp32"
    """precision of table rows that fbgemm updates (dmp); the optimizer state stays fp32"""
    messages: Literal["fp32", "fp16", "bf16"] = "fp32"
    """precision of embeddings sent between processes (dmp); with fp16 and bf16 their gradients are sent as bf16"""
    sharding_group_size: Whole = 0
    """processes that share one copy of the tables (dmp); for example the number of GPUs of a host; 0 = all processes"""
    timeout_minutes: Positive = 10.0
    """minutes to wait for another process before the run ends"""


class Evaluation(Table):
    """Metrics, candidates and baselines of the reports."""

    ks: list[Count] = Field([1, 5, 10], min_length=1)
    """cut-offs k of HR@k and NDCG@k; 10 is always added"""
    per_device_eval_batch_size: Count = 128
    """evaluation batch size per process, in users"""
    protocols: list[Literal["full", "popular", "uniform"]] = Field(["full", "popular", "uniform"], min_length=1)
    """candidates: full = all items, popular and uniform = sampled negatives"""
    seen_items: Literal["auto", "keep", "leave_out", "by_item"] = "auto"
    """rank items of the user's own history (keep), or not (leave_out), or only those that people take again (by_item);
    holds for the full protocol, the choice of the best epoch and recommend; auto = leave_out if at most 5 % of
    held-out targets are repeats, else by_item if that misses at most 1 % of the validation targets, else keep"""
    baselines: Literal["auto"] | list[UntrainedName] = "auto"
    """baselines to evaluate on the test split; popularity is always evaluated; auto = all up to 5,000,000 training
    positions and test users × items = 1,000,000,000, ease up to 5,000 items (20,000 if named);
    content_neighbours needs item features"""
    feature_ablation: bool | Literal["auto"] = "auto"
    """repeat the test without each item feature; this measures what each of them gives; auto = up to features × test
    users × items = 1,000,000,000"""


class Checkpoint(Table):
    """Checkpoints to resume from; one is also written at the end of each epoch."""

    every_steps: Whole = 0
    """steps between two checkpoints; 0 = not by steps"""
    every_minutes: float = Field(10.0, ge=0)
    """minutes between two checkpoints; 0 = not by time"""
    keep: Count = 2
    """number of latest checkpoints to keep; the best on validation is kept as well"""
    async_: bool | Literal["auto"] = Field("auto", alias="async")
    """write checkpoints in the background, from a copy; auto = if memory has room for the copy"""
    seconds_on_signal: float = Field(8.0, ge=0)
    """maximum seconds for a checkpoint on a signal; none is written if it would take longer; torchx kills after 10"""


class Run(Table):
    """Run folder, resuming, initial weights and trackers."""

    dir: UserPath = "runs"
    """parent folder of the run folders"""
    name: str = ""
    """name of the run folder, "" = <dataset>, or <dataset>-sasrec, …; with the kind of model unless it is Bert4Rec; -2,
    -3, … is appended if a finished run has the name"""
    resume: UserPath = ""
    """run folder or checkpoint to resume, or "auto"; auto = the newest unfinished run of that name, else a new run; the
    settings are those of the resumed run, then the command line"""
    init_from: UserPath = ""
    """run folder whose best weights are the initial weights"""
    trackers: list[Literal["tensorboard", "mlflow", "wandb"]] = ["tensorboard"]
    """experiment trackers; mlflow and wandb work offline and are extras of the package to install"""


class Update(Table):
    """Training with new rows by `bert4rec update`, and the judgement of the result."""

    minutes: float = Field(10.0, gt=0)
    """longest training of an update, in minutes"""
    replay: float = Field(0.5, ge=0, lt=1)
    """share of the training windows that are drawn from older ones, so that what was learnt is not lost"""
    tail: float = Field(0.25, gt=0, lt=1)
    """share of the new rows, the last ones, that are not trained on but judge the new model"""
    margin: float = Field(0.02, gt=0, lt=1)
    """loss of NDCG@10 that does not count, as a share of that of the current model"""
    overlap_hours: float = Field(24.0, ge=0)
    """hours before the last known row from which {since} in a query asks again, for rows that come late; those that
    are there already are counted, not doubled"""


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
    update: Update = Field(default_factory=Update)

    @property
    def max_len(self) -> int:
        """Return model.max_len, when it is decided."""
        assert self.model.max_len != "auto", "the settings are resolved"
        return self.model.max_len

    @property
    def shortest_window(self) -> int:
        """Return the smallest model.max_len that the other settings allow."""
        return max(2, self.training.sliding_step)

    @property
    def run_name(self) -> str:
        """Return the run folder's name before a number: that of the dataset, then of the kind unless it is Bert4Rec."""
        kind = KINDS[self.model.kind]
        return self.run.name or "-".join([Path(self.data.place).absolute().name, *[kind.name] * kind.is_in_run_names])

    def to_toml(self) -> str:
        """Return the resolved settings as TOML; `load.load_config` reads them back to an equal `Config`."""
        return tomli_w.dumps(self.model_dump(mode="json"))
