"""Write and read checkpoints with torch.distributed.checkpoint: every rank writes its shards, and any world size reads.

A checkpoint is a folder with the shards, `facts.json` for everything but tensors, and a manifest of all files, written
last. It is written under a temporary name and then renamed. It contains a pickle: load only checkpoints you trust.
"""

import errno
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from bert4rec.checkpoint.run_folder import FACTS_FILE, REPLACED, UNFINISHED
from bert4rec.runtime import files
from bert4rec.runtime.collectives import Group, gather_objects
from bert4rec.runtime.errors import DataError, UserError
from bert4rec.runtime.files import atomic_write, put_back, replace_directory, sync
from bert4rec.sharding.footprint import PIECE_BYTES
from bert4rec.sharding.torchrec_internals import Shard, ShardedTensor, ShardMetadata, sharded_like

Tensors: TypeAlias = Mapping[str, Any]
"""Name → Tensor, the same on every process, or ShardedTensor."""


class SaveError(UserError):
    """A checkpoint could not be written; older checkpoints are unchanged."""

    status = 1


def save(folder: Path, tensors: Tensors, metadata: Mapping[str, Any], *, group: Group = None) -> None:
    """Write a checkpoint to `folder`, which all hosts share; every rank of `group` calls this.

    Raises `SaveError` on all ranks if one cannot write, and removes the unfinished checkpoint.
    """
    unfinished = folder.with_name(folder.name + UNFINISHED)
    try:
        _on_all(lambda: _begin(unfinished), group, first_only=True)
        _write_shards(unfinished, tensors, group)
        described = _on_all(lambda: _describe(unfinished, metadata, group), group)
        _on_all(lambda: _finish(unfinished, folder, described), group, first_only=True)
    except SaveError:
        if dist.get_rank() == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise


def load(folder: Path, tensors: Tensors) -> None:
    """Read a verified checkpoint into `tensors` in place; both sides may be sharded in different ways.

    Raises `DataError`, on every rank, if the checkpoint does not have these tensors.
    """
    try:
        dcp.load(in_pieces(tensors), checkpoint_id=folder)  # the pieces are views
    except CheckpointException as error:
        raise DataError(f"{folder}: cannot be read: {_first_failure(error)}") from None


def verify(folder: Path) -> None:
    """Raise `DataError`, on every rank, for a damaged checkpoint; each rank checks a part of the files."""
    rank, n = dist.get_rank(), dist.get_world_size()
    problems = gather_objects(files.problem_of(folder, looks_at=lambda number: number % n == rank))
    if problem := next(filter(None, problems), ""):
        raise DataError(f"{folder}: this checkpoint is damaged: {problem}")


def in_pieces(tensors: Tensors) -> dict[str, Any]:
    """Return the same tensors with shards cut into small pieces, since each piece is copied when written or read."""
    return {
        name: sharded_like(value, [Shard(*piece) for piece in _own_pieces(value)], list(_all_pieces(value)))
        if isinstance(value, ShardedTensor)
        else value
        for name, value in tensors.items()
    }


class Copies:
    """Copy tensors to the CPU, each time into the same memory, since allocation takes longer than copying.

    GPU tensors go to pinned memory. torch rounds pinned memory up to a power of two, so shards are copied in pieces of
    nearly that size; a larger tensor that is not sharded goes to ordinary memory.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int], torch.Tensor] = {}

    def of(self, tensors: Tensors) -> dict[str, Any]:
        """Return copies of the current tensors, which overwrite those of the previous call."""
        copies = {name: self._copy(name, value) for name, value in tensors.items()}
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        return copies

    def _copy(self, name: str, value: Any) -> Any:
        if not isinstance(value, ShardedTensor):
            return self._part((name, 0), value)
        pieces = enumerate(_own_pieces(value))
        local = [Shard(self._part((name, number), part), _on_host(piece)) for number, (part, piece) in pieces]
        return sharded_like(value, local, list(map(_on_host, _all_pieces(value))))

    def _part(self, key: tuple[str, int], part: torch.Tensor) -> torch.Tensor:
        if key not in self._parts:
            is_pinned = part.is_cuda and part.nbytes <= PIECE_BYTES
            self._parts[key] = torch.empty_like(part, device="cpu", requires_grad=False, pin_memory=is_pinned)
        return self._parts[key].copy_(part.detach(), non_blocking=True)


def _on_host(shard: ShardMetadata) -> ShardMetadata:
    assert shard.placement is not None
    return ShardMetadata(shard.shard_offsets, shard.shard_sizes, f"rank:{shard.placement.rank()}/cpu")


def _begin(unfinished: Path) -> None:
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)


def _write_shards(unfinished: Path, tensors: Tensors, group: Group) -> None:
    try:
        dcp.save(in_pieces(tensors), storage_writer=dcp.FileSystemWriter(unfinished), process_group=group)
    except CheckpointException as error:  # raised on all ranks, with the failure of each
        raise SaveError(f"{unfinished}: {_first_failure(error)}") from None


def _first_failure(error: CheckpointException) -> str:
    rank, (cause, _) = next(iter(error.failures.items()))
    return f"{_reason(cause)} (process {rank})"


def _describe(unfinished: Path, metadata: Mapping[str, Any], group: Group) -> files.Files:
    """Return the sizes and checksums of the files that this rank has written."""
    rank = dist.get_rank(group)
    names = [path.name for path in unfinished.glob(f"__{rank}_*")]
    if rank == 0:
        atomic_write(unfinished / FACTS_FILE, json.dumps(metadata, indent=1) + "\n")
        names += [FACTS_FILE, ".metadata"]
    return files.describe(unfinished, names)


def _finish(unfinished: Path, folder: Path, described: list[files.Files]) -> None:
    manifest = {name: file for part in described for name, file in part.items()}
    if unseen := next((name for name, file in manifest.items() if _size(unfinished / name) != file["bytes"]), ""):
        why = "another process wrote it, but rank zero does not see it: run.dir must be on a disk that all hosts share"
        raise FileNotFoundError(errno.ENOENT, why, unfinished / unseen)
    files.write_manifest(unfinished, manifest)
    sync(unfinished)
    replace_directory(unfinished, folder, replaced=folder.with_name(folder.name + REPLACED))


def tidy(folder: Path) -> None:
    """Remove unfinished checkpoints of a killed process from `folder`; put back a replaced one if needed."""
    for unfinished in folder.glob(f"*{UNFINISHED}"):
        shutil.rmtree(unfinished, ignore_errors=True)
    for replaced in folder.glob(f"*{REPLACED}"):
        put_back(replaced, replaced.with_suffix(""))


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else -1


def _on_all(work: Any, group: Group, *, first_only: bool = False) -> list[Any]:
    """Return the results of `work` on all ranks; raise `SaveError` on all ranks if one fails."""
    result, failure = None, ""
    if dist.get_rank(group) == 0 or not first_only:
        try:
            result = work()
        except OSError as error:
            failure = f"{error.filename or 'checkpoint'}: {_reason(error)}"
    outcomes = gather_objects((result, failure), group)
    if failed := [failure for _, failure in outcomes if failure]:
        raise SaveError(failed[0])
    return [result for result, _ in outcomes]


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = (str(error) or type(error).__name__).splitlines()[0]
    # torch reports this for any failed write when it closes the file.
    return "not all of it could be written, is the disk full?" if "inline_container" in text else text


def _all_pieces(value: ShardedTensor) -> Iterator[ShardMetadata]:
    return (piece for shard in value.metadata().shards_metadata for piece in _pieces(shard, value.dtype))


def _own_pieces(value: ShardedTensor) -> Iterator[tuple[torch.Tensor, ShardMetadata]]:
    """Yield views of this rank's shards, in pieces, and the position of each piece in the whole tensor."""
    for shard in value.local_shards():
        first = shard.metadata.shard_offsets[0]
        for piece in _pieces(shard.metadata, value.dtype):
            start = piece.shard_offsets[0] - first
            yield shard.tensor[start : start + piece.shard_sizes[0]], piece


def _pieces(shard: ShardMetadata, dtype: torch.dtype) -> Iterator[ShardMetadata]:
    """Yield a shard's rows in pieces of up to `PIECE_BYTES`."""
    (first, *rest), (n_rows, *width) = shard.shard_offsets, shard.shard_sizes
    step = max(1, PIECE_BYTES // (dtype.itemsize * max(1, sum(width))))
    for start in range(0, n_rows, step):
        yield ShardMetadata([first + start, *rest], [min(step, n_rows - start), *width], shard.placement)
