"""Settings that are possible each by itself, but not together."""

from collections.abc import Iterator

from bert4rec.config.abilities import has_kernel, is_trained, keeps_its_arithmetic
from bert4rec.config.tables import Config
from bert4rec.config.values import instant


def conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """For each the setting ("table.key") that is blamed, and why."""
    yield from _of_the_dataset(config)
    yield from _of_the_run(config)


def _of_the_dataset(config: Config) -> Iterator[tuple[str, str]]:
    data, settings, max_len = config.data, config.preprocessing, config.model.max_len
    if data.title_column and data.titles_path:
        reason = f'titles come from data.titles_path = "{data.titles_path}" already; leave one of them empty'
        yield "data.title_column", reason
    if 0 < settings.max_user_interactions < settings.min_user_interactions:
        reason = f"no user can pass with min_user_interactions = {settings.min_user_interactions}"
        yield "preprocessing.max_user_interactions", reason
    if settings.time_from and settings.time_until and instant(settings.time_from) >= instant(settings.time_until):
        yield "preprocessing.time_until", f'must be after time_from = "{settings.time_from}"'
    if settings.sliding_step > max_len:
        reason = f"above model.max_len = {max_len} items between two windows would never be trained on"
        yield "preprocessing.sliding_step", reason


def _of_the_run(config: Config) -> Iterator[tuple[str, str]]:
    model, training, run, parallelism = config.model, config.training, config.run, config.parallelism
    mode, device, optimizer = parallelism.mode, parallelism.device, parallelism.sparse_optimizer
    if model.embed_dim % model.n_heads:
        divisors = [n for n in range(1, model.embed_dim + 1) if model.embed_dim % n == 0]
        yield "model.n_heads", f"must divide model.embed_dim = {model.embed_dim}; valid: {divisors}"
    if training.mask_token_share + training.random_token_share > 1:
        reason = f"with mask_token_share = {training.mask_token_share} the sum is above 1"
        yield "training.random_token_share", reason
    if not has_kernel(parallelism.compute_kernel, mode, device):
        valid = f'valid with mode = "{mode}", device = "{device}": "fused"'
        yield "parallelism.compute_kernel", f'only with mode = "dmp" on CUDA; {valid}'
    if mode == "dmp" and not keeps_its_arithmetic(optimizer, parallelism.sharding_type):
        valid = 'valid there: "sgd", "adagrad", on CUDA "adam"'
        yield "parallelism.sparse_optimizer", f"is another algorithm when a row is cut column_wise; {valid}"
    if run.init_from and not is_trained(model.kind):
        yield "run.init_from", f'model.kind = "{model.kind}" is not trained: it has no weights'
    if run.resume and run.init_from:
        reason = f'with run.resume = "{run.resume}" the weights are there already; choose one of them'
        yield "run.init_from", reason
