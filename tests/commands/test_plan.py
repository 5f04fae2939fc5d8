"""`bert4rec plan`: its arguments, what it prints, its exit status."""

import json
import re
import shutil
from pathlib import Path

import pytest

from bert4rec.__main__ import main
from bert4rec.runtime.host import host_memory
from tests.fixture_types import Capture

ASKED = ["--world-size=4", "--device=cuda", "--items=1000"]


def plan(*arguments: str) -> int:
    return main(["plan", *arguments])


def test_a_billion_items_on_a_thousand_gpus(capsys: Capture) -> None:
    asked = ["--world-size=1024", "--device=cuda", "--items=1_000_000_000", "--model.embed_dim=128"]
    assert plan(*asked, "--training.loss=softmax") == 0
    lines = capsys.readouterr().out.splitlines()
    tokens = ["1024 x cuda", "[976,051 x 132 … 976,563 x 132]", "table optimizer state 1.03 GB", "3,169 files"]
    assert [token for token in tokens if not any(token in line for line in lines)] == []
    assert lines[-1] == "it fits"


@pytest.mark.parametrize(
    ("option", "has_share"), [("compute_kernel=fused_uvm", True), ("sharding_type=column_wise", False)]
)
def test_a_share_of_the_catalogue_is_scored_without_messages_by_rows_alone(
    capsys: Capture, option: str, has_share: bool
) -> None:
    assert plan(*ASKED, f"--parallelism.{option}") == 0
    assert ("share of the catalogue" in capsys.readouterr().out) == has_share


def test_few_negatives_for_the_positions_that_share_them_are_warned_of(capsys: Capture) -> None:
    asked = ["--world-size=64", "--device=cuda", "--items=10000000"]
    assert plan(*asked) == 0
    assert "warning" not in capsys.readouterr().out
    assert plan(*asked, "--training.n_train_negatives=256", "--training.negatives_shared_by=all") == 0
    *_, warning, verdict = capsys.readouterr().out.splitlines()
    assert verdict == "it fits"
    first, _ = warning.partition("better: ")[2].split(" or ")
    assert plan(*asked, *first.split()) == 0
    assert "warning" not in capsys.readouterr().out


def test_what_does_not_fit_is_status_1_and_an_advice_fits_when_it_is_typed(capsys: Capture) -> None:
    """Each kind of advice is tested in tests/sharding/test_advice.py."""
    asked = ["--world-size=2", "--device=cpu", "--host-memory-gb=24", "--items=20000000"]
    assert plan(*asked, "--mode=ddp", "--parallelism.sparse_optimizer=adam") == 1
    out = capsys.readouterr().out
    assert ("12 GB available" in out, "no estimate for ddp" in out) == (True, True)
    typed = re.search(r"it fits with (--\S+(?: --\S+)*)", out)
    assert typed is not None
    assert plan(*asked, "--parallelism.sparse_optimizer=adam", *typed[1].split()) == 0


def test_the_memory_is_this_hosts_on_cpu_and_with_uvm_that_of_all_its_processes(capsys: Capture) -> None:
    assert plan("--world-size=2", "--device=cpu", "--items=100") == 0
    found = re.search(r"host memory: \S+ MB of (\S+) GB", capsys.readouterr().out)
    assert found is not None
    assert float(found[1]) == pytest.approx(host_memory() / 2e9, rel=0.1)
    how = ["--parallelism.compute_kernel=fused_uvm_caching", "--host-memory-gb=1000", "--memory-gb=40"]
    assert plan("--world-size=8", "--device=cuda", "--items=100000000", *how) == 0
    out = capsys.readouterr().out
    assert re.search(r"GPU memory: \S+ GB of 40 GB at most", out)
    assert re.search(r"host memory: \S+ GB of 125 GB at most \(process 0\): table weights 3.4 GB", out)


def test_features_with_many_values_have_tables_of_their_own(featured_folder: Path, capsys: Capture) -> None:
    asked = ["--world-size=64", "--device=cuda", "--items=10000000", "--model.feature_tables_from=5000"]
    assert plan(*asked, "--features=100000,50000,1000,5000,20000") == 0
    tables = re.findall(r"^  (\w+): ([\d,]+) x (\d+)", capsys.readouterr().out, re.MULTILINE)
    feature_rows = [(f"feature_{i}_{n}", f"{n:,}", "64") for i, n in enumerate([100_000, 50_000, 1000, 5000, 20_000])]
    assert tables == [("item", "10,000,000", "68"), *(table for table in feature_rows if table[1] != "1,000")]

    dataset_rows = [("feature_1_tags", "6", "64"), ("feature_2_price", "17", "64")]
    for options, n_items in ([], "28"), (["--items=900"], "900"):  # the dataset gives what is not given here
        assert plan(str(featured_folder), "--model.feature_tables_from=4", "--host-memory-gb=9", *options) == 0
        tables = re.findall(r"^  (\w+): ([\d,]+) x (\d+)", capsys.readouterr().out, re.MULTILINE)
        assert tables == [("item", n_items, "68"), *dataset_rows]


def test_a_prior_is_part_of_the_plan_where_it_is_counted(small_folder: Path, capsys: Capture) -> None:
    def planned(*arguments: str) -> bool:
        assert plan(*arguments, "--host-memory-gb=90") == 0
        return "counted prior" in capsys.readouterr().out

    assert planned("--items=500000")
    assert planned(str(small_folder))
    assert not planned("--items=500000", "--model.prior=none")
    assert not planned(str(small_folder), "--model.kind=matrix_factorization")
    assert not planned("--items=5000000")
    assert planned("--items=5000000", "--model.prior=['neighbours']")


def test_popular_items_make_a_step_longer(small_folder: Path, capsys: Capture) -> None:
    batches = "--training.per_device_train_batch_size=64"

    def milliseconds(*arguments: str) -> tuple[float, float]:
        assert plan(*ASKED[:2], batches, f"--data.dataset_dir={small_folder}", *arguments) == 0
        out = capsys.readouterr().out
        uneven, time = re.search(r"busiest \D+(\S+?)(?:×| times) the mean", out), re.search(r"time: (\S+) ms", out)
        assert time is not None
        return float(time[1]), float(uneven[1]) if uneven else 1.0

    n_items = json.loads((small_folder / "metadata.json").read_text())["items"]
    (even, _), (found, uneven) = milliseconds(f"--items={n_items}"), milliseconds()
    assert uneven > 1
    assert found == pytest.approx(even * uneven, rel=0.01)


def test_a_dataset_is_named_first_and_one_process_on_the_cpu_is_the_default(
    small_folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert plan(str(small_folder)) == 0
    named = capsys.readouterr().out
    assert "dmp on 1 x cpu" in named
    assert "item: 130 x 68 " in named
    shutil.copytree(small_folder, "data/small")
    assert plan() == 0
    found = {*capsys.readouterr().out.splitlines()}
    assert {line for line in named.splitlines() if "host memory: " not in line} < found  # what is free now may differ
    shutil.copytree(small_folder, "data/large")
    assert plan("--items=900") == 0  # which needs none
    assert "item: 900 x 68 " in capsys.readouterr().out
    assert plan() == 2
    assert "type: bert4rec plan data/large" in capsys.readouterr().err


def test_a_preparation_of_a_billion_users_is_planned_without_an_input(capsys: Capture) -> None:
    def planned(*arguments: str) -> dict[str, tuple[str, ...]]:
        assert plan("--rows=10e9", "--users=1_000_000_000", "--items=1e9", *arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        return {name: figures for name, *figures in (re.split(" {2,}", line.strip()) for line in lines) if figures}

    found = planned("--workers=1000")
    assert [*found] == [
        "stage", "read", "items", "shuffle", "order", "users", "split", "write", "the program", "all",
    ]  # fmt: skip
    assert found["order"][0] == "4,769"
    more = planned("--preprocessing.workers=1", "--preprocessing.min_item_interactions=5")
    assert more.keys() - found.keys() == {"limits, a round"}
    assert more["write"][:-1] == found["write"][:-1]
    assert len(more["write"][-1]) > len(found["write"][-1])  # hours, not seconds
    few = planned("--workers=1000", "--preprocessing.test_users=1000")
    assert few.keys() - found.keys() == {"tested"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rows=1000", "--users=10"], ["--rows=1000", "--items=10"], ["--workers=4", "--items=10"],
        ["--id-bytes=36", "--items=10"], ["--rows=10", "--users=100", "--items=10"],
        ["--rows=9e9", "--users=3e9", "--items=10"], ["--rows=1.5", "--users=1", "--items=1"],
        ["--rows=1e999", "--users=1", "--items=1"],
        *[["--rows=1000", "--users=10", "--items=10", other]
          for other in ("data/log", "--mode=ddp", "--world-size=2", "--device=cuda", "--memory-gb=40")],
    ],
)  # fmt: skip
def test_what_does_not_belong_to_the_plan_of_a_preparation_is_one_line(arguments: list[str], capsys: Capture) -> None:
    assert plan(*arguments) == 2
    shown = capsys.readouterr()
    assert (shown.out, len(shown.err.splitlines())) == ("", 1)
    assert any(argument.partition("=")[0] in shown.err for argument in arguments)
