"""Find settings that are each valid, but conflict with each other."""

from collections.abc import Iterator

from bert4rec.config.kinds import KINDS, can_be_dense, has_kernel, supports_column_sharding
from bert4rec.config.tables import Config, instant
from bert4rec.runtime.storage import is_stored


def conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the setting ("table.key") of each conflict, and the reason."""
    yield from _dataset_conflicts(config)
    yield from _model_conflicts(config)
    yield from _run_conflicts(config)


def _dataset_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    data, settings = config.data, config.preprocessing
    if data.title_column not in ("", "auto") and data.titles_path:
        reason = f'titles come from data.titles_path = "{data.titles_path}" already; leave one of them empty'
        yield "data.title_column", reason
    if data.parts_by_host and is_stored(data.place):
        yield "data.parts_by_host", f"each host fetches the whole of {data.place}; set it to false"
    if 0 < settings.max_user_interactions < settings.min_user_interactions:
        reason = f"no user can pass with min_user_interactions = {settings.min_user_interactions}"
        yield "preprocessing.max_user_interactions", reason
    if settings.time_from and settings.time_until and instant(settings.time_from) >= instant(settings.time_until):
        yield "preprocessing.time_until", f'must be after time_from = "{settings.time_from}"'
    if settings.hide_before_target != "nothing" and not settings.target_events:
        reason = "hides what comes before a target event; name their kinds with preprocessing.target_events"
        yield "preprocessing.hide_before_target", reason


def _model_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    model, training, loss = config.model, config.training, config.training.loss
    traits, kind = KINDS[model.kind], f'model.kind = "{model.kind}"'
    if traits.is_transformer and model.embed_dim % model.n_heads:
        divisors = [n for n in range(1, model.embed_dim + 1) if model.embed_dim % n == 0]
        yield "model.n_heads", f"must divide model.embed_dim = {model.embed_dim}; valid: {divisors}"
    if traits.is_transformer and model.positions == "rotary" and model.embed_dim % (2 * model.n_heads):
        reason = f"needs an even number of values in each head, not {model.embed_dim} / {model.n_heads}"
        yield "model.positions", f'"rotary" {reason}; change model.n_heads, or choose "learned"'
    if traits.learns_pairs and model.head != "tied":
        yield "model.head", f'only a transformer can have a separate output layer; valid with {kind}: "tied"'
    if traits.learns_pairs and training.compile:
        yield "training.compile", f"compiles the blocks of a transformer, but {kind} has none; set it to false"
    if loss == "mse" and not traits.learns_pairs:
        reason = '"mse" is for ratings of pairs, with model.kind = "matrix_factorization"'
        yield "training.loss", f"{reason}; not for {kind}"
    if traits.learns_pairs and loss == "softmax" and not traits.has_products(model.form):
        reason = f'"softmax" scores the whole catalogue by products, which model.form = "{model.form}" does not have'
        yield "training.loss", f'{reason}; valid: "sampled_softmax", "gbce", "bpr", "mse"'
    if traits.is_causal and model.times == "target" and config.preprocessing.hide_before_target != "nothing":
        reason = "is the time of the next event, which preprocessing.hide_before_target may hide"
        yield "model.times", f'"target" {reason}; valid with {kind}: "none", "history"'
    if len(training.rating_range) not in (0, 2) or training.rating_range != sorted(set(training.rating_range)):
        yield "training.rating_range", "must be two ascending numbers, such as [0, 5.5], or [] for no limits"


def _run_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    training, run, parallelism = config.training, config.run, config.parallelism
    mode, device, optimizer = parallelism.mode, parallelism.device, parallelism.sparse_optimizer
    if config.model.max_len != "auto" and training.sliding_step > config.model.max_len:
        reason = f"is above model.max_len = {config.model.max_len}; items between two windows would never be trained on"
        yield "training.sliding_step", reason
    if training.lr_schedule == "one_cycle" and training.warmup_steps:
        yield "training.warmup_steps", 'lr_schedule = "one_cycle" has a warm-up of its own; set it to 0'
    if training.mask_token_share + training.random_token_share > 1:
        reason = f"with mask_token_share = {training.mask_token_share} the sum is above 1"
        yield "training.random_token_share", reason
    if training.average_age not in (0, "auto") and parallelism.table_precision != "fp32":
        reason = f'in table_precision = "{parallelism.table_precision}" most of what goes into a mean is rounded away'
        yield "training.average_age", f"{reason}; set it to 0"
    if training.average_age not in (0, "auto") and parallelism.compute_kernel != "fused":
        reason = f'compute_kernel = "{parallelism.compute_kernel}" is for tables that do not fit twice'
        yield "training.average_age", f"{reason}; set it to 0"
    if training.precision == "tf32" and device == "cpu":
        yield "training.precision", '"tf32" is an arithmetic of NVIDIA GPUs; valid on CPU: "fp32", "bf16"'
    if not has_kernel(parallelism.compute_kernel, mode, device):
        valid = f'valid with mode = "{mode}", device = "{device}": "fused"'
        yield "parallelism.compute_kernel", f'only with mode = "dmp" on CUDA; {valid}'
    if mode == "dmp" and not supports_column_sharding(optimizer, parallelism.sharding_type):
        valid = 'valid there: "sgd", "adagrad", on CUDA "adam"'
        yield "parallelism.sparse_optimizer", f"computes other updates if rows are split column_wise; {valid}"
    for name in ("table_precision", "messages") if mode == "ddp" else ():
        if getattr(parallelism, name) != "fp32":
            yield f"parallelism.{name}", 'only for tables in shards, with mode = "dmp"; valid with mode = "ddp": "fp32"'
    if run.init_from and not KINDS[config.model.kind].is_trained:
        yield "run.init_from", f'model.kind = "{config.model.kind}" is not trained: it has no weights'
    is_dense = mode == "ddp" or can_be_dense(parallelism.sharding_type, parallelism.compute_kernel)
    if parallelism.sparse_weight_decay and not is_dense:
        reason = "fbgemm's fused updates reach only rows that a step looks up, and decay is for all of them"
        valid = 'sharding_type = "row_wise" with compute_kernel = "fused", or --mode=ddp'
        yield "parallelism.sparse_weight_decay", f"{reason}; set it to 0, or use {valid}"
    if parallelism.sharding_group_size and mode == "ddp":
        reason = 'with mode = "ddp" every process has a copy of the tables'
        yield "parallelism.sharding_group_size", f"{reason}; set it to 0, or choose --mode=dmp"
    if parallelism.sharding_group_size and parallelism.compute_kernel != "fused":
        kernel = parallelism.compute_kernel
        reason = f'compute_kernel = "{kernel}" keeps the tables in host memory, where copies are not kept in step'
        yield "parallelism.sharding_group_size", f'{reason}; set it to 0, or compute_kernel to "fused"'
    if run.resume and run.init_from:
        reason = f'run.resume = "{run.resume}" already loads the weights of a run; remove one of the two'
        yield "run.init_from", reason
