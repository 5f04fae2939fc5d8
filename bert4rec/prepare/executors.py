"""Run the tasks of a preparation: in this process, in several processes of this machine, or on a Ray cluster.

A task is a function of a module, with arguments that can be pickled. Its output is in files, which are renamed when
they are complete, and it returns little. So it can run again, on any machine that sees the files.
"""

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Literal, TypeAlias

from bert4rec.runtime.errors import RunInterruptedError, SettingsError, UserError, in_one_line, pluralize
from bert4rec.runtime.host import host_memory
from bert4rec.runtime.signals import call_when_ended
from bert4rec.runtime.startup import usable_cores

LARGE_LOG = 1 << 29  # bytes; a smaller one is prepared as fast by one process, which uses several cores, too
WORKER_BYTES = 3 << 29  # that a worker may take
MORE_TRIES = 3  # of a task that failed for a reason outside of it
POLARS_THREADS = "POLARS_MAX_THREADS"
SMALLEST_OBJECT_STORE = 75 << 20  # bytes, the least that Ray allows: tasks pass files to each other, no objects
KILLED_FIRST = "500"  # of 1,000: when memory is short, Linux kills a worker, which is replaced, and not its driver
WORKER = "from bert4rec.prepare.executors import serve; serve({handle}, {driver})"
SECONDS_TO_CONNECT = 10.0
ON_RAY = 'preprocessing.engine = "ray"'

Task: TypeAlias = Callable[..., Any]
logger = logging.getLogger(__name__)


class WorkerDiedError(RunInterruptedError):
    """A process that ended in the middle of a task."""


@contextmanager
def open_executor(
    engine: Literal["local", "ray"], n_workers: int | Literal["auto"], *, n_bytes: int = 0, memory: int
) -> Iterator["TaskExecutor"]:
    """Yield what runs tasks; if the block ends with an error, all workers end at once.

    A single local worker is this process, which runs a task in `submit`. "auto": a worker for each CPU of the cluster;
    or for a log of `n_bytes`, if it is large, one for each core of this machine that has enough memory. A task on Ray
    gets `memory` bytes. A task that raises an `OSError`, or whose worker dies, runs again. Raises `SettingsError`
    without Ray; a future raises what its task raised, or `WorkerDiedError`.
    """
    signal.siginterrupt(signal.SIGINT, True)  # Polars undoes it: a wait for a task would go on after Ctrl-C
    if engine == "local" and n_workers == "auto":
        most = min(usable_cores(), host_memory() // WORKER_BYTES)
        n_workers = max(1, most) if n_bytes >= LARGE_LOG else 1
    if engine == "local" and n_workers == 1:
        yield ThisProcess()
        return
    workers = _RayWorkers(n_workers, memory) if n_workers == "auto" or engine == "ray" else _Processes(n_workers)
    try:
        yield workers
        workers.shutdown()
    finally:
        workers.end()


def serve(handle: int, driver: int) -> None:
    """Run the tasks that come through the pipe `handle`, until the process `driver` closes it or ends."""
    call_when_ended([driver], lambda: os._exit(1))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(KILLED_FIRST)
    with Connection(handle) as pipe, suppress(EOFError, ConnectionError):
        while True:
            pipe.send(_outcome(*pipe.recv()))


def _outcome_in(folder: str, task: Task, arguments: Sequence[Any]) -> tuple[bool, Any]:
    """Return the outcome of a task with relative paths from `folder`."""
    with suppress(OSError):  # absolute paths do not need it
        os.chdir(folder)
    return _outcome(task, arguments)


def _outcome(task: Task, arguments: Sequence[Any]) -> tuple[bool, Any]:
    """Return True and what the task returns; or False and what it raises, with the place unless a user can solve it."""
    try:
        return True, task(*arguments)
    except Exception as error:
        if not isinstance(error, UserError):
            error.add_note(f"In a worker:\n{traceback.format_exc()}")
        with suppress(Exception):
            return False, pickle.loads(pickle.dumps(error))
        return False, RuntimeError(traceback.format_exc())  # exceptions of some libraries cannot be pickled


class TaskExecutor(Executor):
    """Run tasks, and repeat those that failed for a reason outside of them: `n_repeats` in all."""

    n_repeats = 0
    _counting = threading.Lock()

    def _try_again(self, attempt: Callable[[int], Any]) -> Any:
        """Return the result of `attempt(0)`; after an `OSError` or a dead worker that of `attempt(1)`, and so on."""
        for number in range(MORE_TRIES):
            with suppress(OSError, WorkerDiedError):
                return attempt(number)
            with self._counting:
                self.n_repeats += 1
        return attempt(MORE_TRIES)


class ThisProcess(TaskExecutor):
    """Run a task in this process with all its threads: in `submit`, except within `threads`."""

    _pool: ThreadPoolExecutor | None = None

    def submit(self, task: Task, /, *arguments: Any, **_: Any) -> Future[Any]:
        """Return a future with the outcome of `task`."""
        if self._pool:
            return self._pool.submit(self._try_again, lambda _: task(*arguments))
        future = Future[Any]()
        try:
            future.set_result(self._try_again(lambda _: task(*arguments)))
        except Exception as error:
            future.set_exception(error)
        return future

    @contextmanager
    def threads(self, n: int) -> Iterator[None]:
        """Run up to `n` tasks at a time; if the block ends with an error, those that have not begun never run."""
        with ThreadPoolExecutor(n, "task") as self._pool:
            try:
                yield
            finally:
                self._pool.shutdown(cancel_futures=True)
                self._pool = None


class _Workers(TaskExecutor, ThreadPoolExecutor):
    """A thread for each task that runs in another process: it waits for the task, and tries again."""

    def __init__(self, n_workers: int) -> None:
        super().__init__(n_workers, "task")
        self._n_workers, self._is_ended, self._lock = n_workers, False, threading.Lock()

    def submit(self, task: Task, /, *arguments: Any, **_: Any) -> Future[Any]:
        return super().submit(self._try_again, partial(self._attempt, task, arguments))

    def _attempt(self, task: Task, arguments: Sequence[Any], number: int) -> Any:
        """Return the result of the task. Raises what it raises, or `WorkerDiedError`."""
        is_done, outcome = self._run(task, arguments, number)
        if is_done:
            return outcome
        raise outcome

    def _run(self, task: Task, arguments: Sequence[Any], number: int) -> tuple[bool, Any]:
        raise NotImplementedError

    def _kill(self) -> None:
        raise NotImplementedError

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Hold the lock while something starts that `end` must kill. Raises `CancelledError` after `end`."""
        with self._lock:
            if self._is_ended:
                raise CancelledError
            yield

    def end(self) -> None:
        """Kill what runs, and wait for the threads."""
        with self._lock:
            self._is_ended = True
        self._kill()
        self.shutdown(cancel_futures=True)

    def _died(self, task: Task, reason: str) -> WorkerDiedError:
        n_fewer = self._n_workers // 2
        advice = f"type --preprocessing.workers={n_fewer}" if n_fewer else "use machines with more memory"
        times = pluralize(MORE_TRIES + 1, "time")
        return WorkerDiedError(
            f"preparation: the worker of {task.__name__} died {times} ({reason}), probably for lack of memory; {advice}"
        )


class _Processes(_Workers):
    """Workers that are processes of this machine; one that died is replaced when its task is tried again."""

    def __init__(self, n_workers: int) -> None:
        super().__init__(n_workers)
        self._idle, self._all = list[_Process](), list[_Process]()

    def _run(self, task: Task, arguments: Sequence[Any], number: int) -> tuple[bool, Any]:
        with self._starting():
            if not self._idle:
                self._all.append(_Process(max(1, usable_cores() // self._n_workers)))
            worker = self._idle.pop() if self._idle else self._all[-1]
        try:
            outcome = worker.run(task, arguments)
        except (EOFError, ConnectionError):
            raise self._died(task, worker.end()) from None
        self._idle.append(worker)
        return outcome

    def _kill(self) -> None:
        for worker in self._all:
            worker.end()


class _Process:
    """A process that runs one task after another. It ends with this process, however that ends.

    It is a new Python, since a fork would lack the threads of Polars. It has a process group of its own, since Ctrl-C
    goes to a whole group: this process ends it then.
    """

    def __init__(self, n_threads: int) -> None:
        self._pipe, theirs = Pipe()
        command = WORKER.format(handle=theirs.fileno(), driver=os.getpid())
        path = os.pathsep.join(map(os.path.abspath, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-c", command], env=os.environ | {POLARS_THREADS: str(n_threads), "PYTHONPATH": path},
            stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0,
        )  # fmt: skip
        theirs.close()

    def run(self, task: Task, arguments: Sequence[Any]) -> tuple[bool, Any]:
        """Return the outcome of a task. Raises `EOFError` or `ConnectionError` if the process dies."""
        self._pipe.send((task, arguments))
        return self._pipe.recv()

    def end(self) -> str:
        """Kill the process, unless it has ended; return how it ended."""
        self._process.kill()
        status = self._process.wait()
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"


class _RayWorkers(_Workers):
    """Workers that are processes of a Ray cluster: that of RAY_ADDRESS, or one on this machine.

    Ray itself tries nothing again (`max_retries`): it would repeat a task that was killed for memory for ever.
    """

    def __init__(self, n_workers: int | Literal["auto"], memory: int) -> None:
        self._ray, self._disconnect = _connect(n_workers)
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        n_cpus = int(sum(node["CPU"] for node in nodes)) or 1
        super().__init__(n_cpus if n_workers == "auto" else n_workers)
        self._most_memory = max((int(node.get("memory", 0)) for node in nodes), default=0)
        self._memory, self._running = memory, set[Any]()
        self._remote = self._ray.remote(
            num_cpus=1, max_retries=0, scheduling_strategy="SPREAD", runtime_env={"env_vars": {POLARS_THREADS: "1"}}
        )(_outcome_in)
        place = f"{pluralize(n_cpus, 'CPU')} on {pluralize(len(nodes), 'node')}"
        logger.info(f"tasks run on Ray, {self._n_workers} at a time: {place}")

    def _run(self, task: Task, arguments: Sequence[Any], number: int) -> tuple[bool, Any]:
        errors = self._ray.exceptions
        # Twice as much each time, so that fewer tasks run beside it. What no node has would be waited for, for ever.
        memory = min(self._memory << number, self._most_memory)
        with self._starting():
            running = self._remote.options(memory=memory).remote(os.getcwd(), task, arguments)
            self._running.add(running)
        try:
            return self._ray.get(running)
        except errors.RayTaskError as error:  # before the task began: what it raises is its outcome
            reason = str(error).strip().splitlines()[-1]
            raise SettingsError(f"{ON_RAY}: {reason}; install this version of the package on every node") from None
        except errors.RayError as error:
            raise self._died(task, in_one_line(error).partition(". ")[0]) from None  # a page may follow
        finally:
            self._running.discard(running)

    def _kill(self) -> None:
        for running in [*self._running]:
            self._ray.cancel(running, force=True)

    def end(self) -> None:
        super().end()
        self._disconnect()


def _connect(n_workers: int | Literal["auto"]) -> tuple[Any, Callable[[], None]]:
    """Return the module `ray`, connected to a cluster, and what disconnects it. Raises `SettingsError`."""
    try:
        import ray
    except ModuleNotFoundError:
        advice = 'type pip install "bert4rec-torchrec[ray]"'
        raise SettingsError(f"{ON_RAY}: the package ray is not installed; {advice}") from None
    if ray.is_initialized():
        return ray, lambda: None
    address, before = os.environ.get("RAY_ADDRESS"), signal.getsignal(signal.SIGTERM)
    n_cpus = usable_cores() if n_workers == "auto" else n_workers
    size = {"num_cpus": n_cpus, "object_store_memory": SMALLEST_OBJECT_STORE, "include_dashboard": False}

    def on_sigterm(handler: Any) -> None:
        if threading.current_thread() is threading.main_thread():  # no other thread may set it, and Ray does not
            signal.signal(signal.SIGTERM, handler)

    def disconnect() -> None:
        ray.shutdown()
        on_sigterm(before)

    try:
        host, _, port = (address or "").rpartition(":")
        if port.isdecimal():  # Ray itself would try for ten minutes
            socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT).close()
        ray.init(address or "local", logging_level=logging.ERROR, log_to_driver=False, **({} if address else size))
    except SystemExit:  # SIGTERM while it starts: its handler ends the program with 15
        disconnect()
        sys.exit(128 + signal.SIGTERM)
    except Exception as error:  # no narrower one: a Ray that takes too long to start raises this class
        disconnect()
        place = f"RAY_ADDRESS={address}" if address else "it does not start on this machine"
        advice = "start this version of Ray there, set RAY_AUTH_MODE=token if it has a token, or remove the variable"
        advice = advice if address else "try again when the machine is less busy, or type --preprocessing.engine=local"
        raise SettingsError(f"{ON_RAY}: {place}: {in_one_line(error)}; {advice}") from None
    # Killed by SIGTERM, this process would leave processes of Ray behind, for seconds.
    on_sigterm((lambda number, _: sys.exit(128 + number)) if before == signal.SIG_DFL else before)
    return ray, disconnect
