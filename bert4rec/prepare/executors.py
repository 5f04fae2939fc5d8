"""stub"""

from concurrent.futures import Executor, Future
from contextlib import contextmanager


class Here(Executor):
    """Run each task in this process when it is submitted."""

    def submit(self, function, *arguments):
        future = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def open_executor(engine, n_workers, memory=0):
    if n_workers == 1:
        yield Here()
    else:
        import multiprocessing
        import os
        from concurrent.futures import ProcessPoolExecutor

        os.environ["POLARS_MAX_THREADS"] = "1"
        with ProcessPoolExecutor(n_workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool
