"""Runs, checkpoints and model packages: loaded with few packages, or refused in one line."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file

from bert4rec import Run, load, train
from bert4rec.__main__ import main
from bert4rec.checkpoint.run_folder import FACTS_FILE
from bert4rec.dataset.runs import CATALOGUE
from bert4rec.runtime import files
from bert4rec.runtime.errors import DataError
from bert4rec.serving.export import export
from bert4rec.serving.load import find_source, network_of
from bert4rec.serving.recommender import Recommendations, Recommender
from tests.checks import one_line
from tests.conftest import SMALL, spare
from tests.folders import files_of, id_table
from tests.runs import flip


def test_a_checkpoint_is_loaded_too(made: Path) -> None:
    best = load(made / "checkpoints" / "best").recommend([[1, 2, 3]], 3)
    assert load(made).recommend([[1, 2, 3]], 3) == best
    step = (made / "checkpoints" / "best").resolve()
    assert load(str(step)).recommend([[1, 2, 3]], 3) == best


def test_a_checkpoint_without_its_run_or_with_another_prior_is_refused(whole: Path, tmp_path: Path) -> None:
    prior = whole / "prior.safetensors"
    tensors = load_file(prior)
    names = [name for name in tensors if name.startswith(next(iter(load(whole).prior.weights)))]
    step = shutil.copytree(whole / "checkpoints" / "best", tmp_path / "step")
    with one_line(f"{step}: ", "prior.safetensors"):
        load(step)
    save_file({name: value[1:].clone() for name, value in tensors.items()}, prior)
    with one_line(f"{prior}: ", " 129 ", " 130"):
        load(whole)
    save_file({name: value for name, value in tensors.items() if name not in names}, prior)
    with one_line(f"{prior}: ", names[0].split(".")[0]):
        load(whole)
    prior.write_bytes(b"no tensors")
    with one_line(f"{prior}: "):
        load(whole)


def test_what_is_missing_damaged_or_foreign_is_named(whole: Path, tmp_path: Path, log_folder: Path) -> None:
    with pytest.raises(DataError, match="nothing"):
        load(tmp_path / "nothing")
    with pytest.raises(DataError, match=f"^{log_folder}: .*/whole "):
        load(whole, dataset=log_folder)
    with pytest.raises(DataError, match=f"^{tmp_path}: "):
        load(whole, dataset=tmp_path)
    best = (whole / "checkpoints" / "best").resolve()
    flip(next(best.glob("*.distcp")), 1000)
    with pytest.raises(DataError, match=r"\.distcp .*checksum"):
        load(whole)


def test_a_checkpoint_with_other_weights_is_refused_in_one_line(made: Path) -> None:
    source = find_source(made)
    config = dict(source.trained.metadata["config"])
    config["model"] = config["model"] | {"times": "history"}
    other = replace(source, trained=replace(source.trained, metadata={**source.trained.metadata, "config": config}))
    with pytest.raises(DataError, match=r"dates.weight") as caught:
        network_of(other)
    assert "\n" not in str(caught.value)


def test_a_finished_run_has_its_figures_and_records_and_loads_its_model(made: Path) -> None:
    run = Run(str(made))
    assert (run.folder, run.report) == (made, json.loads((made / "report.json").read_text()))
    assert run.metrics == run.report["test"]
    assert run.history == [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    dataset = re.findall(r'dataset_dir = "(.+)"', (made / "config.toml").read_text())
    assert run.load().dataset == Path(dataset[0])


def change(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    seal(file.parent)


def seal(folder: Path) -> None:
    names = [path.name for path in folder.iterdir() if path.name != files.MANIFEST]
    files.write_manifest(folder, files.describe(folder, names))


def test_a_relative_dataset_is_found_from_any_folder(
    made: Path, small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it was started: runs/… and data/… in one folder."""
    shutil.copytree(small_folder, tmp_path / "data/small")
    run = Path(shutil.copytree(made, tmp_path / "runs/whole", symlinks=True))
    checkpoint = (run / "checkpoints/best").resolve()
    config = json.loads((checkpoint / FACTS_FILE).read_text())["config"]
    config["data"]["dataset_dir"], config["run"]["dir"] = "data/small", "runs"
    change(checkpoint / FACTS_FILE, config=config)
    assert find_source(run).dataset == tmp_path / "data/small"
    monkeypatch.chdir(tmp_path)
    assert find_source(Path("runs/whole")).dataset == Path("data/small")


HISTORIES = [[1, 2, 3], [7], [999]]


def test_a_run_needs_its_dataset_for_the_histories_of_users_alone(
    made: Path, small_folder: Path, log_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load(made)
    run = Path(shutil.copytree(made, tmp_path / "elsewhere" / "run", symlinks=True))
    for place, problem in ((tmp_path / "gone", "the dataset of "), (log_folder, f"{log_folder}: is not the dataset ")):
        monkeypatch.setattr("bert4rec.checkpoint.run_folder.Trained.dataset", place)
        model = load(run)
        assert model.recommend(HISTORIES, 5) == before.recommend(HISTORIES, 5)
        assert model.similar([1, 7], 5) == before.similar([1, 7], 5)
        with one_line(problem, str(run), str(place), "--dataset=FOLDER"):
            model.users_for(1)
        assert load(run, dataset=small_folder).users_for(1, 3) == before.users_for(1, 3)
    export(find_source(run), tmp_path / "of-links", ["safetensors", "vectors"], k=10, leaves_out_seen=True)
    shutil.rmtree(run / CATALOGUE)  # as in a run of an earlier version
    with pytest.raises(DataError, match=f"^{log_folder}: is not the dataset that {run} was trained on; "):
        load(run)
    monkeypatch.undo()
    assert load(run).recommend(HISTORIES, 5) == before.recommend(HISTORIES, 5)
    export(find_source(run), tmp_path / "of-dataset", ["safetensors", "vectors"], k=10, leaves_out_seen=True)
    links, copies = (files_of(tmp_path / name) for name in ("of-links", "of-dataset"))
    assert {name: links[name][0] for name in links} == {name: copies[name][0] for name in copies}


@pytest.fixture(scope="module")
def packed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "model"
    export(find_source(made), folder, ["safetensors"], k=10, leaves_out_seen=True)
    return folder


def test_a_package_recommends_what_its_run_recommends_and_a_dataset_gives_it_users(
    made: Path, packed: Path, small_folder: Path, log_folder: Path
) -> None:
    assert load(packed).prior
    assert load(packed).recommend(HISTORIES, 5) == load(made).recommend(HISTORIES, 5)
    assert load(packed, dataset=small_folder).users_for(1, 3) == load(made).users_for(1, 3)
    with pytest.raises(DataError, match=f"^{log_folder}: .*/model "):
        load(packed, dataset=log_folder)


def test_parts_that_do_not_fit_are_refused(packed: Path, tmp_path: Path) -> None:
    package = Path(shutil.copytree(packed, tmp_path / "model"))
    weights = load_file(package / "model.safetensors")

    def change_settings() -> None:
        change(package / "settings.json", n_items=151)

    def drop_norms() -> None:
        kept = {name: value for name, value in weights.items() if "norm" not in name}
        save_file(kept, package / "model.safetensors")

    lines = (package / "items.jsonl").read_text()
    for damage, words in (
        (lambda: (package / "items.jsonl").write_text('{"id": 1, "train_count": 1}\n'), ["items.jsonl", " 1 item"]),
        (lambda: (package / "items.jsonl").write_text(lines), []),
        (change_settings, ["item_table.embeddings.item.weight", "151"]),
        (drop_norms, ["model.safetensors", "settings.json"]),
        (lambda: (package / "model.safetensors").write_bytes(b"no tensors"), ["model.safetensors: "]),
    ):
        damage()
        seal(package)
        if words:
            with one_line("", *words):
                load(package)


@pytest.fixture(scope="module", params=[("bert4rec", 1_000_000), ("sasrec", 4)])
def run(request: Any, featured_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    small = {key: value for key, value in SMALL.items() if not key.startswith(("data.", "preprocessing."))}
    kind, tables_from = request.param
    settings = small | {"model.kind": kind, "model.feature_tables_from": tables_from, "run.dir": str(place)}
    settings |= {"training.n_epochs": 2, "model.prior": ["transitions", "neighbours", "ease"]}
    settings["model.max_len"] = 6  # most histories are longer, and all are shorter than what EASE reads
    with pytest.MonkeyPatch.context() as patch:
        spare(patch)
        return train({**settings, "evaluation.seen_items": "leave_out"}, dataset=featured_folder).folder


def assert_equal_scores(
    model: Recommender, known: list[list[int]], lists: list[Recommendations], brands: list[str | None]
) -> None:
    """Lists of few items, and with one item of a brand, have the same scores, as have the users for an item."""
    assert model.prior
    for few, best in zip(model.recommend(known, 28, allow=[3, 25, 9]), lists, strict=True):
        wanted = [one for one in best if one.item in (3, 25, 9)]
        assert [one.item for one in few] == [one.item for one in wanted]
        assert [one.score for one in few] == pytest.approx([one.score for one in wanted], abs=1e-5)
    brand_of = dict(zip(model.items.ids, brands, strict=True))
    rules = model.rules(at_most=1, per="brand")
    for k in (3, 28):
        for found, best in zip(model.recommend(known, k, rules=rules), lists, strict=True):
            first = {brand_of[one.item]: one for one in reversed(best)}
            assert found == [one for one in best if first[brand_of[one.item]] is one or not brand_of[one.item]][:k]
    users = model.users_for(3, 60, histories=[[*enumerate(known)]], leave_out_seen=False)
    for user, whole in enumerate(model.recommend(known, 28, leave_out_seen=False)):
        scores = torch.tensor([one.score for one in whole])
        share = torch.log_softmax(scores, 0)[[one.item for one in whole].index(3)].item()
        assert {one.user: one.score for one in users}[user] == pytest.approx(share, abs=1e-5)


def test_it_recommends_what_it_has_ranked(
    run: Path, featured_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = export(find_source(run), tmp_path / "package", ["safetensors"], k=5, leaves_out_seen=True)
    table = id_table(featured_folder, "items")
    originals = table["original"].to_list()
    file = next((featured_folder / "histories").glob("*.arrow"))
    histories = {row["user"]: row for row in pl.read_ipc_stream(file).iter_rows(named=True)}
    ranks = pl.read_parquet(run / "ranks-test.parquet")
    known = [
        [originals[item] for item in histories[user]["items"][: histories[user]["test"]]] for user in ranks["user"]
    ]
    lists = load(run).recommend(known, 28)
    found = [
        1 + [each.item for each in best].index(originals[target])
        for best, target in zip(lists, ranks["target"], strict=True)
    ]
    assert found == ranks["full"].to_list()
    assert load(package).recommend(known, 28) == lists
    assert_equal_scores(load(run), known, lists, table["brand"].to_list())
    cold = set(table.filter(pl.col("count") == 0)["original"])
    assert len(cold) == 3
    assert cold <= {each.item for best in lists for each in best}
    assert {each.item for each in load(run).similar([27], 27)[0]} == {*originals} - {27}
    monkeypatch.setattr("bert4rec.checkpoint.run_folder.Trained.dataset", tmp_path / "gone")
    assert load(run).recommend(known, 28) == lists


def test_an_evaluation_reads_the_features_again(run: Path, tmp_path: Path) -> None:
    assert main(["evaluate", str(run), f"--output={tmp_path / 'again'}"]) == 0
    reports = [json.loads((folder / "report.json").read_text()) for folder in (run, tmp_path / "again")]
    assert reports[0]["test"] == reports[1]["test"]


# What a package needs, and what is needed beside it: for a run, and for conditions.
STAGES = (
    ("torch", "numpy", "safetensors"),
    ("pyarrow", "pydantic", "tomli", "tomli-w"),
    ("polars",),
)
ROOT = Path(__file__).parents[2]

SERVE = """
import json, sys
from importlib.machinery import PathFinder

find, refused, (package, run) = PathFinder.find_spec, set(), sys.argv[2:]
is_refused = lambda name: name.partition(".")[0] in refused
PathFinder.find_spec = classmethod(lambda cls, name, *rest: None if is_refused(name) else find(name, *rest))
stages = iter(json.loads(sys.argv[1]))
refused |= {*next(stages)}

from bert4rec import load

def serve(model):
    history = model.items.ids[:3]
    (found,) = model.recommend([history], k=5)
    (denied,) = model.recommend([history], k=5, deny=[found[0].item])
    (similar,) = model.similar(history[:1], k=5)
    print(json.dumps([found, denied, similar, model.encode([history])[0].tolist()]))

def serve_by_rules(model):
    (found,) = model.recommend([model.items.ids[:3]], k=5, rules=model.rules(where="item <> 7", at_most=1, per="item"))
    (similar,) = model.similar(model.items.ids[:1], k=5, rules=model.rules(where="item <> 7"))
    print(json.dumps([[one.item for one in found], [one.item for one in similar]]))

serve(load(package))
refused &= {*next(stages)}
serve(load(run))
refused &= {*next(stages)}
for path in (package, run):
    serve_by_rules(load(path))
print(json.dumps([one.user for one in load(run).users_for(load(run).items.ids[0], 3)]))
"""


def needed(enough: tuple[str, ...]) -> set[str]:
    """The packages that `enough` need, their own ones included."""
    found, left = set[str](), [*enough]
    while left:
        if (name := re.sub(r"[-_.]+", "-", left.pop()).lower()) in found:
            continue
        found.add(name)
        try:
            lines = [line for line in requires(name) or [] if "extra ==" not in line]
        except PackageNotFoundError:  # of another platform
            continue
        left += [match[0] for line in lines if (match := re.match(r"[\w.-]+", line))]
    return found


def refused_by_stage() -> list[set[str]]:
    """The packages that are not needed, by the `STAGES`."""
    normal = {
        name: {re.sub(r"[-_.]+", "-", one).lower() for one in packages}
        for name, packages in packages_distributions().items()
    }
    installed = [needed(sum(STAGES[: n + 1], ())) for n in range(len(STAGES))]
    return [
        {name for name, packages in normal.items() if not packages & enough and name != "bert4rec"}
        for enough in installed
    ]


@pytest.mark.long
def test_a_package_a_run_and_conditions_need_few_packages(made: Path, tmp_path: Path) -> None:
    refused = refused_by_stage()
    assert {"tomli", "tomli_w", "pyarrow", "polars", "torchrec", "pydantic", "datasets"} <= refused[0]
    assert {"polars", "torchrec", "datasets"} <= refused[1]
    assert {"torchrec", "fbgemm_gpu", "datasets", "pandas", "matplotlib", "tensorboard"} <= refused[2]
    package = export(find_source(made), tmp_path / "model", ["safetensors"], k=5, leaves_out_seen=True)
    stages = json.dumps([sorted(names) for names in refused])
    done = subprocess.run(
        [sys.executable, "-c", SERVE, stages, package, made], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    *served, of_package, of_run, users = [json.loads(line) for line in done.stdout.splitlines()]
    model = load(made)
    history = model.items.ids[:3]
    (found,) = model.recommend([history], k=5)
    (denied,) = model.recommend([history], k=5, deny=[found[0].item])
    (similar,) = model.similar(history[:1], k=5)
    assert len(served) == 2
    for *lists, hidden in served:
        for printed, ours in zip(lists, (found, denied, similar), strict=True):
            assert [one[:2] for one in printed] == [[one.item, one.title] for one in ours]
            assert [one[2] for one in printed] == pytest.approx([one.score for one in ours])
        assert hidden == pytest.approx(model.encode([history])[0].tolist(), abs=1e-5)  # sums in another order
    rules = model.rules(where="item <> 7", at_most=1, per="item")
    (found,) = model.recommend([history], k=5, rules=rules)
    (similar,) = model.similar(history[:1], k=5, rules=model.rules(where="item <> 7"))
    assert of_package == of_run == [[one.item for one in found], [one.item for one in similar]]
    assert users == [one.user for one in model.users_for(history[0], 3)]
