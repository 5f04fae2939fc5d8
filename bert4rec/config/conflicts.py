"""Settings that are possible each by itself, but not together."""

from collections.abc import Iterator

from bert4rec.config.abilities import has_kernel, keeps_its_arithmetic
from bert4rec.config.tables import Config
from bert4rec.config.values import instant


def conflicts(config: Config) -> Iterator[str]:
    """A line for each, which begins with the setting that is blamed: `table.key = value: `."""
    yield from _of_the_dataset(config)
    yield from _of_the_model(config)
    yield from _of_the_run(config)


def _of_the_dataset(config: Config) -> Iterator[str]:
    data, settings, max_len = config.data, config.preprocessing, config.model.max_len
    if data.title_column and data.titles_path:
        yield (
            f'data.title_column = "{data.title_column}": titles come from data.titles_path = "{data.titles_path}" '
            "already; leave one of them empty"
        )
    if 0 < settings.max_user_interactions < settings.min_user_interactions:
        yield (
            f"preprocessing.max_user_interactions = {settings.max_user_interactions}: no user can pass with "
            f"min_user_interactions = {settings.min_user_interactions}"
        )
    if settings.time_from and settings.time_until and instant(settings.time_from) >= instant(settings.time_until):
        yield f'preprocessing.time_until = "{settings.time_until}": must be after time_from = "{settings.time_from}"'
    if settings.sliding_step > max_len:
        yield (
            f"preprocessing.sliding_step = {settings.sliding_step}: above model.max_len = {max_len} items between two "
            "windows would never be trained on"
        )


def _of_the_model(config: Config) -> Iterator[str]:
    model, training = config.model, config.training
    if model.embed_dim % model.n_heads:
        divisors = [n for n in range(1, model.embed_dim + 1) if model.embed_dim % n == 0]
        yield f"model.n_heads = {model.n_heads}: must divide model.embed_dim = {model.embed_dim}; valid: {divisors}"
    if training.mask_token_share + training.random_token_share > 1:
        yield (
            f"training.random_token_share = {training.random_token_share}: with mask_token_share = "
            f"{training.mask_token_share} the sum is above 1"
        )


def _of_the_run(config: Config) -> Iterator[str]:
    run, parallelism = config.run, config.parallelism
    mode, device, kernel = parallelism.mode, parallelism.device, parallelism.compute_kernel
    if not has_kernel(kernel, mode, device):
        yield (
            f'parallelism.compute_kernel = "{kernel}": only with mode = "dmp" on CUDA; valid with mode = "{mode}", '
            f'device = "{device}": "fused"'
        )
    if mode == "dmp" and not keeps_its_arithmetic(parallelism.sparse_optimizer, parallelism.sharding_type):
        yield (
            'parallelism.sparse_optimizer = "rowwise_adagrad": is another algorithm when a row is cut column_wise; '
            'valid there: "sgd", "adagrad", on CUDA "adam"'
        )
    if run.resume and run.init_from:
        yield (
            f'run.init_from = "{run.init_from}": with run.resume = "{run.resume}" the weights are there already; '
            "choose one of them"
        )
