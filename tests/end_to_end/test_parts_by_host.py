"""Two hosts that have different parts of a dataset train, go on and are judged together: two nodes of this machine."""

import json
import os
import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest
import torch
import torch.distributed as dist
from safetensors.numpy import load_file

import preprocessing
from bert4rec.checkpoint.run_folder import found
from bert4rec.config.kinds import KINDS
from bert4rec.config.load import load_config
from bert4rec.dataset.format import FOLDERS, part_starts
from bert4rec.dataset.histories import Rows
from bert4rec.dataset.placement import Placement
from bert4rec.dataset.reader import Dataset, of_parts, open_dataset
from bert4rec.feed.batch import Batch
from bert4rec.feed.masking import Masking
from bert4rec.models.again import comes_again, missed_by_item
from bert4rec.models.baselines import recent_counts
from bert4rec.models.prior import PRIOR_SOURCES
from bert4rec.models.transitions import TrainingHistories
from bert4rec.prepare import writer
from bert4rec.runtime.arrays import Int64s
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import UserError
from bert4rec.runtime.processes import Processes
from bert4rec.runtime.seeded import Permutation
from bert4rec.training.build import facts_of_dataset, resolved, training_batches
from bert4rec.training.by_host import keep_own_parts
from bert4rec.training.prior import count_prior
from tests.launch import BIN, Launched, report_of, start
from tests.processes.pool import ProcessPool

pytestmark = pytest.mark.timeout(900)

N_USERS, MOST_ROWS, EASE_STEP = 120, 250, 2.0**-20
SETTINGS: dict[str, object] = {
    "model.max_len": 12, "model.embed_dim": 16, "model.ffn_dim": 32, "training.n_epochs": 2,
    "model.prior": json.dumps([*PRIOR_SOURCES]),
    "training.per_device_train_batch_size": 8, "training.average_age": 0, "evaluation.per_device_eval_batch_size": 16,
    "checkpoint.every_steps": 10, "checkpoint.keep": 99, "data.parts_by_host": "true",
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in several parts, with times, and views besides the purchases to predict."""
    place, draw = tmp_path_factory.mktemp("whole"), np.random.default_rng(5)
    rows = [
        (user, int(draw.integers(40)), 1_600_000_000 + 60 * at, "view" if draw.random() < 0.5 else "purchase")
        for user in range(N_USERS)
        for at in range(draw.integers(3, 30))
    ]
    pl.DataFrame(rows, schema=["user", "item", "time", "event"], orient="row").write_csv(place / "log.csv")
    settings = [
        f"--data.dataset_dir={place / 'data'}", "--data.event_column=event",
        '--preprocessing.target_events=["purchase"]', "--preprocessing.n_eval_negatives=5",
        "--preprocessing.validation_users=50",
    ]  # fmt: skip
    with patch.object(writer, "part_starts", partial(part_starts, most_rows=MOST_ROWS)):
        assert preprocessing.main(["--config=/dev/null", str(place / "log.csv"), *settings]) == 0
    return place / "data"


def parts_of(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "histories").glob("*.arrow"))


def copies(whole: Path, place: Path, *parts: Sequence[str]) -> list[Path]:
    """The folders in which hosts work, each with a copy of the dataset that has only these parts."""
    hosts = []
    for number, own in enumerate(parts):
        hosts.append(place / f"host-{number}")
        shutil.copytree(whole, hosts[-1] / "data")
        for name in set(parts_of(whole)) - set(own):
            for folder in FOLDERS:
                (hosts[-1] / "data" / folder / name).unlink()
    return hosts


def shared(whole: Path, place: Path) -> list[Path]:
    """Two hosts with every third part, and with all others and one of the first's."""
    parts = parts_of(whole)
    assert len(parts) > 4
    return copies(whole, place, parts[::3], [part for part in parts if part not in parts[3::3]])


def on_hosts(hosts: Sequence[Path], command: Sequence[str], *, n_processes: int = 1) -> list[Launched]:
    """Run a command of `bert4rec` to its end on nodes with these working folders."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launched = []
    for number, folder in enumerate(hosts):
        node = [f"--nnodes={len(hosts)}", f"--node-rank={number}", f"--nproc-per-node={n_processes}"]
        place = ["--master-addr=127.0.0.1", f"--master-port={port}"]
        in_folder = ["env", f"--chdir={folder}", "torchrun"]
        launched.append(Launched([*in_folder, *node, *place, "-m", "bert4rec", *command]))
    for each in launched:
        each.end(400)
    return launched


def train(hosts: Sequence[Path], *options: str, n_processes: int = 1) -> list[Launched]:
    settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
    return on_hosts(hosts, ["train", "data", *settings, *options], n_processes=n_processes)


def ended(launched: Sequence[Launched]) -> list[int]:
    return [each.process.returncode for each in launched]


@pytest.fixture(scope="module")
def trained(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path]:
    """The hosts, and the folder of their run."""
    place = tmp_path_factory.mktemp("trained")
    hosts = shared(whole, place)
    launched = train(hosts, f"--run.dir={place / 'runs'}", "--run.name=parts")
    assert ended(launched) == [0, 0], launched[0].output + launched[1].output
    return hosts, place / "runs" / "parts"


def judged(run: Path, whole: Path, output: Path) -> dict[str, Any]:
    """The report of one process on a run, with the whole dataset."""
    command = [str(BIN / "bert4rec"), "evaluate", str(run), str(whole), "--data.parts_by_host=false"]
    alone = start([*command, f"--output={output}"])
    assert alone.returncode == 0, alone.stderr
    return read_report(output)


def read_report(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def assert_same_figures(report: dict[str, Any], alone: dict[str, Any]) -> None:
    names = alone.keys() - {"world_size", "evaluation"}
    assert {name: report[name] for name in names} == {name: alone[name] for name in names}


@pytest.mark.long
def test_all_users_are_judged_as_on_the_whole_dataset(
    whole: Path, trained: tuple[list[Path], Path], tmp_path: Path
) -> None:
    run = trained[1]
    alone = judged(run, whole, tmp_path)
    assert_same_figures(read_report(run), alone)
    for split in ("test", "validation"):
        ranks = [pl.read_parquet(folder / f"ranks-{split}.parquet") for folder in (run, tmp_path)]
        assert len(ranks[0]) == alone[split]["full"]["users"]
        assert ranks[0].equals(ranks[1])


@pytest.mark.long
def test_a_command_judges_them_alike_on_hosts_of_several_processes(
    whole: Path, trained: tuple[list[Path], Path], tmp_path: Path
) -> None:
    hosts, run = trained
    evaluate = ["evaluate", str(run), "data", f"--output={tmp_path / 'by-host'}", "--lists=parquet"]
    assert ended(on_hosts(hosts, evaluate, n_processes=2)) == [0, 0]
    alone = judged(run, whole, tmp_path / "alone")
    assert_same_figures(read_report(tmp_path / "by-host"), alone)
    assert len(pl.read_parquet(tmp_path / "by-host" / "lists-test.parquet")) == alone["test"]["full"]["users"]


def counted(folders: Sequence[Path], store: Path, run: Path) -> dict[str, Any]:
    """The counts of a dataset, or of the parts that two hosts have; the prior, with a sparse EASE, goes to `run`."""
    dataset = open_dataset(folders[dist.get_rank()] / "data", parts_by_host=len(folders) > 1)
    if len(folders) > 1:
        dataset = in_place(dataset, store)
    kinds = {"ease": replace(KINDS["ease"], most_items=10)}
    with patch.dict(KINDS, kinds), patch("bert4rec.models.prior_rows.COUNTED_AT_ONCE", 4000):
        count_prior(run, [*PRIOR_SOURCES], dataset, Partition(dist.get_rank(), len(folders)))
    histories = TrainingHistories(dataset)
    return {
        "again": comes_again(histories).tolist(), "missed": missed_by_item(dataset),
        "recent": recent_counts(histories, 0.1).tolist(), "positions": histories.n_positions,
        "facts": facts_of_dataset(load_config(None, {}), dataset),
    }  # fmt: skip


def assert_same_prior(run: Path, other: Path) -> None:
    one, two = (load_file(folder / "prior.safetensors") for folder in (run, other))
    assert one.keys() == two.keys()
    for name, values in one.items():  # a matrix is inverted with other roundings on other numbers of threads
        assert np.abs(values - two[name]).max() <= (2 * EASE_STEP if name == "ease.values" else 0)


def test_what_is_counted_is_that_of_the_whole_dataset(
    whole: Path, pools: Callable[[int], ProcessPool], tmp_path: Path, group_of_one: None
) -> None:
    runs = [tmp_path / name for name in ("alone", "by-host")]
    for run in runs:
        run.mkdir()
    alone = counted([whole.parent], tmp_path, runs[0])
    by_process = pools(2).run(counted, shared(whole, tmp_path), tmp_path / "store", runs[1])
    assert by_process == [alone, alone]
    assert_same_prior(*runs)


@pytest.mark.long
def test_a_run_has_the_prior_of_the_whole_dataset(
    whole: Path, trained: tuple[list[Path], Path], tmp_path: Path, group_of_one: None
) -> None:
    count_prior(tmp_path, [*PRIOR_SOURCES], open_dataset(whole), Partition())
    assert_same_prior(tmp_path, trained[1])


@pytest.mark.long
def test_a_resumed_training_ends_as_an_unbroken_one(trained: tuple[list[Path], Path], tmp_path: Path) -> None:
    hosts, run = trained
    state = json.loads((run / "checkpoints" / "step-000000010" / "facts.json").read_text())["state"]
    assert state["sequences"]  # within an epoch
    again = Path(shutil.copytree(run, tmp_path / "again", symlinks=True))
    resume = f"--resume={again / 'checkpoints' / 'step-000000010'}"
    refused = train(hosts[::-1], resume)
    assert ended(refused) == [1, 1]
    assert [len(each.errors) for each in refused] == [1, 1]
    assert "data.parts_by_host" in refused[0].errors[0]
    resumed = train(hosts, resume)
    assert ended(resumed) == [0, 0], resumed[0].output
    assert report_of(again) == report_of(run)
    last = found(run / "checkpoints")[-1]
    shards = sorted(last.glob("*.distcp"))
    assert len(shards) == 2
    for shard in shards:
        assert shard.read_bytes() == (again / "checkpoints" / last.name / shard.name).read_bytes()


def refused(folders: Sequence[Path], store: Path) -> str:
    """The line of a process of a pool for which a part is missing."""
    with pytest.raises(UserError) as error:
        in_place(open_dataset(folders[dist.get_rank()] / "data", parts_by_host=True), store)
    return str(error.value)


def test_a_part_that_no_host_has_is_said_in_one_line(
    whole: Path, pools: Callable[[int], ProcessPool], tmp_path: Path
) -> None:
    parts = parts_of(whole)
    first, second = pools(2).run(refused, copies(whole, tmp_path, parts[1:3], parts[3:]), tmp_path / "store")
    assert first == second
    assert [name for name in FOLDERS if f"{name}/{parts[0]}" not in first] == []
    assert parts[1] not in first
    assert "\n" not in first


def here() -> Processes:
    """This process of a pool, alone on its host."""
    return Processes(dist.get_rank(), 0, dist.get_world_size(), 1, torch.device("cpu"))


def in_place(dataset: Dataset, store: Path) -> Dataset:
    """The dataset of a process of a pool whose hosts have different parts."""
    with patch.dict(os.environ, GROUP_RANK=str(dist.get_rank())):
        return keep_own_parts(dataset, here(), dist.FileStore(str(store), dist.get_world_size()))


def compare_with(whole: Path, folders: Sequence[Path], store: Path) -> None:
    """Each process is told the same of any held-out users as by the whole dataset."""
    opened = open_dataset(folders[dist.get_rank()] / "data", parts_by_host=True, with_times=True)
    dataset, expected = in_place(opened, store), open_dataset(whole, with_times=True)
    draw = np.random.default_rng(dist.get_rank())
    for name, split in dataset.splits.items():
        assert len(split) == len(expected.splits[name])
        for n in (0, 1, 7, 40):
            indices = draw.integers(0, len(split), n)
            for method in ("users_at", "lengths", "targets", "read"):
                told, right = (getattr(each, method)(indices) for each in (split, expected.splits[name]))
                np.testing.assert_equal(
                    vars(told) if method == "read" else told, vars(right) if method == "read" else right
                )
        split.load()
        if dist.get_rank() == 0:
            for fact in ("users", "n_rows", "last_items", "last_times", "are_tied", "copies"):
                np.testing.assert_equal(getattr(split.everything, fact), getattr(expected.splits[name], fact))


@pytest.mark.parametrize("n_of_first", [1, 4])
def test_every_process_can_ask_for_any_held_out_user(
    whole: Path, pools: Callable[[int], ProcessPool], tmp_path: Path, n_of_first: int
) -> None:
    parts = parts_of(whole)
    hosts = copies(whole, tmp_path, parts[:n_of_first], parts[n_of_first:])
    pools(2).run(compare_with, whole, hosts, tmp_path / "store")


DRAWN = {"model.max_len": 12, "training.n_epochs": 1, "training.per_device_train_batch_size": 8}


def drawn(folders: Sequence[Path], store: Path) -> list[dict[int, list[int]]]:
    """The windows by their numbers that a process, alone on its host, draws in each step of an epoch."""
    rank, steps, make = dist.get_rank(), list[dict[int, list[int]]](), Masking.__call__
    world = here()

    def recorded(masking: Masking, rows: Rows, numbers: Int64s, epoch: int) -> Batch:
        items = np.split(rows.items, rows.lengths.cumsum()[:-1])
        steps.append(dict(zip(numbers.tolist(), (window.tolist() for window in items), strict=True)))
        return make(masking, rows, numbers, epoch)

    dataset = in_place(open_dataset(folders[rank] / "data", parts_by_host=True), store)
    config = resolved(load_config(None, DRAWN), world, dataset)
    with patch.object(Masking, "__call__", recorded):
        for _ in training_batches(config, world, dataset).batches():
            pass
    return steps


def test_each_process_draws_the_windows_of_its_host_in_the_documented_order(
    whole: Path, pools: Callable[[int], ProcessPool], tmp_path: Path
) -> None:
    by_process = pools(2).run(drawn, shared(whole, tmp_path), tmp_path / "store")
    parts, config = parts_of(whole), load_config(None, DRAWN)
    own = [parts[::3], [part for part in parts if part not in parts[::3]]]
    of_hosts = [_opened_parts(whole, names).windows(max_len=12, step=12) for names in own]
    n_drawn, n_before = max(map(len, of_hosts)), 0
    for steps, windows in zip(by_process, of_hosts, strict=True):
        order = Permutation(len(windows), (config.training.seed, 0)).at(np.arange(n_drawn) % len(windows))
        expected = []
        for first in range(0, n_drawn, 8):
            rows = windows.read(order[first : first + 8])
            items = [window.tolist() for window in np.split(rows.items, rows.lengths.cumsum()[:-1])]
            expected.append(dict(zip((n_before + order[first : first + 8]).tolist(), items, strict=True)))
        assert steps == expected
        assert {n for step in steps for n in step} == {*range(n_before, n_before + len(windows))}
        n_before += len(windows)
    assert n_before == len(open_dataset(whole).windows(max_len=12, step=12))


def _opened_parts(whole: Path, parts: Sequence[str]) -> Dataset:
    opened = open_dataset(whole)
    owners = dict.fromkeys(parts, 0)
    return of_parts(opened, Placement(0, ((0,),), owners, {}))
