"""Make torch.cuda of a CPU build a device in host memory: import this module before torch is used.

The number of GPUs is that of the variable `STAND_IN_GPUS`. Kernels, NCCL, Triton, memory and speed are not imitated:
operators run on the CPU, messages between GPUs go through gloo.
"""

import ctypes
import importlib.util
import os
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.stand_in.build import N_GPUS, NAME, UUID, build, torch_folder

LIBRARIES = ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so", "libtorch.so", "libtorch_python.so")
BYTES_OF_GPU = 80 * 10**9


def _load(path: Path) -> Any:
    """Return the compiled module. It is loaded before torch asks for the first time whether there is CUDA."""
    for name in LIBRARIES:
        if (library := torch_folder() / "lib" / name).exists():
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    standard_error, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)  # torch warns there that the kernels of messages are replaced
    try:
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)
        os.close(nowhere)
    import torch  # noqa: F401

    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module
    return module


device = _load(build())

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor  # noqa: E402

device.set_device_count(int(os.environ.get(N_GPUS, "1")))


class Stream(torch.Stream):
    """A stream of `device`, by default the current one."""

    def __new__(cls, device: Any = None, priority: int = 0, **known: Any) -> "Stream":
        if not known:
            made = torch.Stream(torch.device("cuda", _index(device)), priority=priority)
            known = {name: getattr(made, name) for name in ("stream_id", "device_index", "device_type")}
        return super().__new__(cls, **known)

    def record_event(self, event: Any = None) -> "Event":
        """Return `event`, by default a new one, recorded after the work so far."""
        event = event or Event()
        event.record(self)
        return event

    @property
    def cuda_stream(self) -> int:
        """Return what CUDA would take for its handle."""
        return int(self.stream_id)


class Event(torch.Event):
    """An event of the current device."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> "Event":
        return super().__new__(cls, "cuda", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


def _index(gpu: Any = None) -> int:
    """Return the number of a GPU that is given as torch.cuda's functions take it."""
    if gpu is None:
        return int(device.get_device())
    if isinstance(gpu, int):
        return gpu if gpu >= 0 else int(device.get_device())
    index = torch.device(gpu).index
    return int(device.get_device()) if index is None else index


def _exchange_device(index: int) -> int:
    before = int(device.get_device())
    if index >= 0:
        device.set_device(index)
    return before


def _maybe_exchange_device(index: int) -> int:
    return _exchange_device(index)  # another function, since torch.compile has a handler for each


def _properties(gpu: Any = None) -> SimpleNamespace:
    """Return what torch says of a GPU, as of an H100."""
    uuid = f"{os.environ.get(UUID, 'GPU')}-{_index(gpu)}"
    return SimpleNamespace(
        name="a GPU of host memory", total_memory=BYTES_OF_GPU, major=9, minor=0, multi_processor_count=132, uuid=uuid,
        gcnArchName="", warp_size=32,
    )  # fmt: skip


def _install_functions() -> None:
    """Give torch.cuda what its CPU build lacks; its Python is otherwise left as it is."""
    c_functions: dict[str, Any] = {
        "_has_cuda": True,
        "_cuda_init": lambda: None,
        "_cuda_getDeviceCount": device.device_count,
        "_cuda_getDevice": device.get_device,
        "_cuda_setDevice": device.set_device,
        "_cuda_exchangeDevice": _exchange_device,
        "_cuda_maybeExchangeDevice": _maybe_exchange_device,
        "_cuda_canDeviceAccessPeer": lambda one, other: True,
        "_cuda_getCurrentStream": lambda index: (device.get_stream(_index(index)), _index(index), 1),
        "_cuda_getDefaultStream": lambda index: (0, _index(index), 1),
        "_cuda_getCurrentRawStream": lambda index: device.get_stream(_index(index)),
        "_cuda_setStream": lambda stream_id, device_index, device_type: device.set_stream(device_index, stream_id),
        "_cuda_synchronize": lambda: device.synchronize(device.get_device()),
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_emptyCache": lambda: None,
        "_cuda_set_sync_debug_mode": device.set_sync_mode,
        "_cuda_get_sync_debug_mode": device.get_sync_mode,
        "_cuda_resetPeakMemoryStats": lambda index: None,
    }
    for name, function in c_functions.items():
        setattr(torch._C, name, function)
    cuda = torch.cuda
    cuda_functions: dict[str, Any] = {
        "_initialized": True,
        "_lazy_init": lambda: None,
        "_exchange_device": _exchange_device,
        "_maybe_exchange_device": _maybe_exchange_device,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": device.device_count,
        "default_generators": (torch.default_generator,) * 16,
        "get_device_properties": _properties,
        "get_device_capability": lambda gpu=None: (9, 0),
        "get_device_name": lambda gpu=None: _properties().name,
        "mem_get_info": lambda gpu=None: (BYTES_OF_GPU, BYTES_OF_GPU),
        "memory_stats": lambda gpu=None: {},
        "max_memory_allocated": lambda gpu=None: 0,
        "memory_allocated": lambda gpu=None: 0,
        "memory_reserved": lambda gpu=None: 0,
        "reset_peak_memory_stats": lambda gpu=None: None,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_current_stream_capturing": lambda: False,
        "Stream": Stream,
        "Event": Event,
    }
    for name, function in cuda_functions.items():
        setattr(cuda, name, function)
    cuda.streams.Stream, cuda.streams.Event = Stream, Event  # type: ignore[misc]


def _install_messages() -> None:
    """Create groups with gloo instead of NCCL."""
    original = dist.init_process_group

    def init_process_group(backend: str | None = None, *args: Any, device_id: Any = None, **keywords: Any) -> None:
        original(backend and backend.replace("nccl", "gloo"), *args, **keywords)

    dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group


def _install_compile() -> None:
    """Compile without Triton: torch.compile traces, and runs what it has traced."""
    original = torch.compile

    def compiled(*args: Any, **keywords: Any) -> Any:
        return original(*args, **{"backend": "eager"} | keywords)

    torch.compile = compiled


class _Lookup(torch.autograd.Function):
    """Rows of fbgemm's tables; backward updates them, like the kernel."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, kernel: Any, indices: Tensor, offsets: Tensor, step: int) -> Tensor:
        ids, bounds = device.host(indices), device.host(offsets)
        n_features = len(kernel.feature_table_map)
        bounds = bounds[:: (len(bounds) - 1) // n_features].tolist()
        weights = kernel.split_embedding_weights()
        parts = [
            (kernel.feature_table_map[number], ids[first:last].long())
            for number, (first, last) in enumerate(pairwise(bounds))
        ]
        rows = [device.host(weights[table].detach()).index_select(0, part) for table, part in parts]
        device.use("the lookup", [indices, offsets, *weights], [])
        ctx.kernel, ctx.parts, ctx.step = kernel, parts, step
        return device.device(torch.cat(rows).to(torch.float32), _index(indices.device))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        weights = ctx.kernel.split_embedding_weights()
        states = ctx.kernel.split_optimizer_states() or [[] for _ in weights]
        device.use("the update", [gradient], [*weights, *(state for table_states in states for state in table_states)])
        parts = device.host(gradient).float().split([len(ids) for _, ids in ctx.parts])
        for table, weight in enumerate(weights):
            own = [(ids, part) for (number, ids), part in zip(ctx.parts, parts, strict=True) if number == table]
            if not own:
                continue
            ids, places = torch.cat([ids for ids, _ in own]).unique(return_inverse=True)
            total = torch.zeros(len(ids), gradient.shape[1]).index_add_(0, places, torch.cat([part for _, part in own]))
            moments = [device.host(state) for state in states[table]]
            _update(ctx.kernel, device.host(weight.detach()), moments, ids, total, ctx.step)
        return None, None, None, None, None


def _update(kernel: Any, weight: Tensor, states: list[Tensor], ids: Tensor, gradient: Tensor, step: int) -> None:
    """Change the rows `ids` of `weight` and of the optimizer's `states` as fbgemm's exact optimizers do."""
    name, settings, rate = kernel.optimizer.value, kernel.optimizer_args, float(kernel.get_learning_rate())
    if name == "exact_sgd":
        change = gradient
    elif name in ("exact_adagrad", "exact_row_wise_adagrad"):
        squares = gradient.square() if name == "exact_adagrad" else gradient.square().mean(1)
        moments = states[0].view(len(weight), -1) if name == "exact_adagrad" else states[0].view(-1)
        moments.index_add_(0, ids, squares)
        scale = moments[ids].sqrt() + settings.eps
        change = gradient / (scale if scale.dim() > 1 else scale[:, None])
    elif name == "adam":
        first, second = (state.view(len(weight), -1) for state in states[:2])
        first[ids] = settings.beta1 * first[ids] + (1 - settings.beta1) * gradient
        second[ids] = settings.beta2 * second[ids] + (1 - settings.beta2) * gradient.square()
        mean = first[ids] / (1 - settings.beta1**step)
        change = mean / ((second[ids] / (1 - settings.beta2**step)).sqrt() + settings.eps)
    else:
        raise NotImplementedError(f"the stand-in has no update of {name}")
    weight[ids] = (weight[ids].float() - rate * change).to(weight.dtype)


def _install_lookups() -> None:
    """Look up and update rows of fbgemm's tables on a GPU by torch: its CUDA kernels are not in the CPU build."""
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen as Kernel

    forward, flush = Kernel.forward, Kernel.flush

    def look_up(self: Any, indices: Tensor, offsets: Tensor, *args: Any, **keywords: Any) -> Tensor:
        if self.use_cpu:
            return forward(self, indices, offsets, *args, **keywords)
        for name, tensor in (("ids", indices), ("offsets", offsets)):
            if not tensor.is_cuda:
                raise RuntimeError(f"the {name} of a lookup on a GPU are on the CPU")
        step = 0
        if self.optimizer.value not in ("exact_sgd", "exact_adagrad"):
            if int(self.iter_cpu) == 0:
                self.iter_cpu.fill_(self.iter.cpu().item())
            step = int(self.iter_cpu.add_(1))
            self.iter.add_(1)
        return _Lookup.apply(self.placeholder_autograd_tensor, self, indices, offsets, step)  # type: ignore[no-any-return,no-untyped-call]

    Kernel.forward = look_up
    Kernel.flush = lambda self: flush(self) if self.use_cpu else None  # nothing is cached


_install_functions()
_install_messages()
_install_compile()
_install_lookups()


def see_gpus(n: int, name: str) -> None:
    """Let this process see `n` GPUs, whose UUIDs begin with `name`."""
    device.set_device_count(n)
    device.set_device(0)
    os.environ[UUID] = name
