"""`make bench` with tiny sizes: each plain way does the same work as ours, and two runs are compared."""

import datetime
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.bench import plain_preparation
from benchmarks.bench.__main__ import main
from benchmarks.bench.arithmetic import SIZES, Network, needed_flops
from benchmarks.bench.loader import BATCH, our_batches, plain_batches
from benchmarks.bench.plain_model import IGNORED, MASK, Plain, padded
from benchmarks.bench.preparing import prepare, prepare_plainly
from benchmarks.bench.ranking import MAX_LEN, our_metrics, plain_metrics
from benchmarks.bench.recommending import plain_recommend, random_histories
from benchmarks.bench.step import Device, Shape, counts, our_model, random_batch, step_case
from benchmarks.bench.timing import OURS, WHOLE, Case, measure
from benchmarks.evaluation_speed import make_folder, open_folder, random_model
from benchmarks.preprocessing import write_goodreads
from benchmarks.recommend import random_network
from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.evaluation.scorers import ModelScorer
from bert4rec.models.sequence_model import Bert4Rec
from bert4rec.models.tables import is_of_table
from bert4rec.serving.histories import ItemIds
from bert4rec.serving.recommender import Recommender
from tests.fixture_types import Capture, Patch
from tests.folders import id_table

CPU = Device(torch.device("cpu"), "fp32")
TINY = Shape("tiny", 40, 8, 6, 12, lambda share: 2 + 10 * share, 2)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("bench") / "dataset"
    return open_folder(make_folder(folder, MAX_LEN, n_users=150, n_items=60, n_rows=3000))


@torch.no_grad()
def with_weights_of(model: Bert4Rec, *, everywhere: bool, linear_head: bool) -> Plain:
    """The plain model with the same weights, as far as its layers are named and joined otherwise."""
    ours = dict(model.named_parameters())
    n_items, width = TINY.n_items, TINY.width
    plain = Plain(n_items, width, TINY.max_len, dropout=0.0, everywhere=everywhere, linear_head=linear_head)
    rows = next(value for name, value in ours.items() if is_of_table(name))
    plain.items.weight[:-2] = rows[:, :width]
    plain.items.weight[MASK] = ours["mask_vector"]
    if linear_head:
        plain.head.load_state_dict(model.item_table.head.state_dict())
    else:
        plain.bias.copy_(rows[:, width])
    plain.positions.weight.copy_(ours["encoder.positions.weight"].flip(0))  # ours count from the end
    plain.encoder.norm.load_state_dict(model.encoder.norm.state_dict())
    for block, layer in zip(model.encoder.blocks, plain.encoder.layers, strict=True):
        layer.self_attn.in_proj_weight.copy_(torch.cat([block.query.weight, block.key_value.weight]))
        layer.self_attn.in_proj_bias.copy_(torch.cat([block.query.bias, block.key_value.bias]))
        theirs_of = {
            block.attention_out: layer.self_attn.out_proj, block.attention_norm: layer.norm1,
            block.ffn_norm: layer.norm2, block.ffn_in: layer.linear1, block.ffn_out: layer.linear2,
        }  # fmt: skip
        for own, theirs in theirs_of.items():
            theirs.load_state_dict(own.state_dict())
    return plain


@pytest.mark.parametrize(("everywhere", "linear_head"), [(False, False), (True, False), (True, True)])
def test_the_plain_models_have_the_same_loss(everywhere: bool, linear_head: bool) -> None:
    model, batch = our_model(TINY, dropout=0.0, head="linear" if linear_head else "tied"), random_batch(TINY, 3)
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():  # biases and norms too
        weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
    plain = with_weights_of(model, everywhere=everywhere, linear_head=linear_head)
    losses = [model(batch), plain(*padded(batch, TINY.max_len if linear_head else 0))]
    torch.testing.assert_close(losses[0], losses[1])
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(model.encoder.blocks[0].ffn_in.weight.grad, plain.encoder.layers[0].linear1.weight.grad)


def test_a_step_is_timed_by_its_parts() -> None:
    with step_case("tiny", TINY, CPU) as case:
        figures = measure(case, rounds=2, least_seconds=0, tell=lambda _: None)
    parts = ["encoder forward", "softmax", "backward", "optimizer", WHOLE]
    assert [figure.key[2:] for figure in figures] == [(who, part) for who in case.contestants for part in parts]
    for number in range(0, len(figures), len(parts)):
        *own, whole = (figure.seconds for figure in figures[number : number + len(parts)])
        assert [sum(parts) for parts in zip(*own, strict=True)] == pytest.approx(whole)


def test_needed_arithmetic_written_out() -> None:
    network = Network(n_items=50, width=4, n_layers=2, ffn_width=16)
    linear = 2 * 4 * 4  # an addition and a multiplication for each weight, of one position
    inner = 5 * (4 * linear + 2 * 2 * 4 * 16) + 2 * 2 * 4 * (2 * 2 + 3 * 3)
    last = 5 * 2 * linear + 3 * (2 * linear + 2 * 2 * 4 * 16) + 2 * 2 * 4 * (2 * 1 + 3 * 2)
    assert needed_flops(network, lengths=[2, 3], asked=[1, 2]) == 3 * (inner + last + 2 * 3 * 4 * 50)


def test_needed_arithmetic_is_that_of_torch_where_nothing_is_padded() -> None:
    network = Network(n_items=40, width=8, n_layers=2, ffn_width=32)
    plain = Plain(40, 8, 12, dropout=0.0, everywhere=True)
    items = torch.full((5, 12), 0)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        plain(items, torch.zeros_like(items)).backward()
    assert counter.get_total_flops() == needed_flops(network, lengths=[12] * 5, asked=[12] * 5)


def test_the_plain_loader_has_the_same_windows(dataset: Dataset) -> None:
    """With every position masked: the targets are the windows."""
    train = dataset.windows(max_len=MAX_LEN, step=MAX_LEN)
    ours: Counter[tuple[int, ...]] = Counter()
    for batch in our_batches(train, dataset.n_items, n_epochs=1, mask_prob=1.0).batches():
        parts = [part for part, n in zip(batch.targets.split(counts(batch)[1]), counts(batch)[0], strict=True) if n > 1]
        ours.update(tuple(part.tolist()) for part in parts if len(part) > 1)  # not those with only the last masked
    assert len(train) > BATCH
    rows = train.read(np.arange(len(train)))
    all_windows = Counter(tuple(part.tolist()) for part in np.split(rows.items, rows.lengths.cumsum()[:-1]))
    plain: Counter[tuple[int, ...]] = Counter()
    for items, targets in plain_batches(train, 0, n_epochs=1, mask_prob=1.0):
        assert ((items == NO_ITEM) == (targets != IGNORED)).all()
        kept = ((row[row != IGNORED]).tolist() for row in targets)
        plain.update(tuple(row) for row in kept if len(row) > 1)
    for found in (ours, plain):
        assert not found - all_windows
        assert 0.75 < found.total() / sum(n for window, n in all_windows.items() if len(window) > 1) < 1


def test_the_plain_ranking_has_the_same_metrics(dataset: Dataset) -> None:
    scorer = ModelScorer(random_model(dataset.n_items, MAX_LEN), device=CPU.device, max_len=MAX_LEN)
    found = our_metrics(scorer, dataset.splits["test"])
    assert plain_metrics(scorer, dataset.splits["test"]) == pytest.approx(found)
    assert 0 < found["NDCG@10"] < found["HR@10"] < 1


def test_the_plain_recommendations_are_the_same() -> None:
    names = [f"item-{number}" for number in range(500)]
    network, histories = random_network(len(names)), random_histories(300, names)
    ours = Recommender(network, ItemIds(pa.array(names))).recommend(histories)
    for own, found in zip(ours, plain_recommend(network, names, histories), strict=True):
        assert [one.item for one in own] == [item for item, _ in found]
        assert [one.score for one in own] == pytest.approx([score for _, score in found], rel=1e-4)


@pytest.mark.long
def test_the_plain_preparation_has_the_same_windows_and_targets(tmp_path: Path) -> None:
    write_goodreads(tmp_path / "log.csv", 30_000)
    prepare(tmp_path / "log.csv", tmp_path / "ours")
    prepare_plainly(tmp_path / "log.csv", tmp_path / "plain")
    books = id_table(tmp_path / "ours", "items").select("item", "original")
    original = dict(books.rows())
    theirs = {path.stem: pickle.loads(path.read_bytes()) for path in (tmp_path / "plain").glob("*.pkl")}

    ours = open_dataset(tmp_path / "ours")
    windows = ours.windows(max_len=plain_preparation.MAX_LEN, step=plain_preparation.STEP)

    def originals(rows: Rows) -> list[tuple[object, ...]]:
        return [tuple(original[item] for item in part) for part in np.split(rows.items, rows.lengths.cumsum()[:-1])]

    assert Counter(originals(windows.read(np.arange(len(windows))))) == Counter(
        tuple(theirs["items"][item] for item in items) for items in theirs["train"]
    )
    for split in ("validation", "test"):
        rows = ours.splits[split].read(np.arange(len(ours.splits[split])))
        targets = [original[item] for item in rows.targets]
        assert Counter(zip(originals(rows), targets, strict=True)) == Counter(
            (tuple(theirs["items"][item] for item in seen), theirs["items"][target])
            for seen, target, *_ in theirs[split]
        )
        for seen, target, *negatives in theirs[split]:
            for drawn in negatives:
                assert (
                    len(set(drawn)) == len(drawn) == (100 if len(theirs["items"]) - len({*seen, target}) >= 100 else 0)
                )
                assert not {*seen, target} & {*drawn}


@contextmanager
def counting_case(n: int) -> Iterator[Case]:
    def work(times: int) -> Callable[[], dict[str, float]]:
        return lambda: {WHOLE: times * n * 1e-6}

    yield Case("counting", f"{n:,} numbers", "numbers", n, {OURS: work(1), "plain, ten times": work(10)}, flops=n)


@pytest.mark.long
def test_a_run_leaves_its_figures_and_is_compared_with_the_one_before(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("benchmarks.bench.__main__.LEAST_SECONDS", 0.01)
    monkeypatch.setitem(SIZES, "cpu", (64, 128))

    def cases(*_: object, quick: bool) -> dict[str, Any]:
        return {"counting": partial(counting_case, 10 if quick else 20_000), "other": partial(counting_case, 1)}

    for words in (["--quick"], [], []):
        assert main(["--only=count", "--rounds=3", *words], tmp_path, cases) == 0
        while (tmp_path / datetime.datetime.now().isoformat("_", "seconds").replace(":", "-")).exists():
            time.sleep(0.05)  # folders are named by the second
    folders = sorted(tmp_path.iterdir())
    assert (folders[-1] / "bench.png").read_bytes().startswith(b"\x89PNG")
    _, second, third = capsys.readouterr().out.split("getting ready\n")[1:]
    assert "nothing to compare" in second  # with other sizes it is another figure
    assert f"compared with {folders[1]}:" in third
    assert "of 2 figures changed by more than their spread" in third
    plain = (folders[-1] / "bench.md").read_text().splitlines()[-1]
    assert plain.startswith("|  | plain, ten times | ")
    assert float(plain.split(" | ")[3].split()[0]) == 10
