"""Global state of a process, restored after a training in somebody else's program."""

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def preserved() -> Iterator[None]:
    """Restore random states, torch's threads and algorithms after the block, and leave no new process group.

    The random states of GPUs are restored for those that were in use before.
    """
    import numpy as np
    import torch
    import torch.distributed as dist

    of_python, of_numpy, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    n_threads, has_mkldnn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    of_products = torch.get_float32_matmul_precision()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    has_group = dist.is_initialized()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
        if of_gpus:
            torch.cuda.set_rng_state_all(of_gpus)
        torch.set_num_threads(n_threads)
        torch.backends.mkldnn.enabled = has_mkldnn
        torch.set_float32_matmul_precision(of_products)
        torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)
        if dist.is_initialized() and not has_group and dist.get_world_size() == 1:
            gc.collect()  # of a run that has failed; where there are other processes they may be waiting in it
            dist.destroy_process_group()
