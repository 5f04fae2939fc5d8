"""Model packages and runs in a Python that can import few packages."""

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

from bert4rec import load
from bert4rec.serving.export import export
from bert4rec.serving.load import find_source

ENOUGH = ("torch", "numpy", "safetensors")
FOR_A_RUN = ("torch", "numpy", "pyarrow", "pydantic", "tomli", "tomli-w")
FOR_CONDITIONS = ("polars", "pyarrow")
ROOT = Path(__file__).parents[2]

REFUSE = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
is_refused = lambda name: name.partition(".")[0] in REFUSED
PathFinder.find_spec = classmethod(lambda cls, name, *rest: None if is_refused(name) else find(name, *rest))
"""

SERVE = """
import json, sys
from bert4rec import load

model = load(sys.argv[1])
history = model.items.ids[:3]
(found,) = model.recommend([history], k=5)
(denied,) = model.recommend([history], k=5, deny=[found[0].item])
(similar,) = model.similar(history[:1], k=5)
print(json.dumps([found, denied, similar, model.encode([history])[0].tolist()]))
"""

WITH_RULES = """
import json, sys
from bert4rec import load

for path in sys.argv[1:]:
    model = load(path)
    (found,) = model.recommend([model.items.ids[:3]], k=5, rules=model.rules(where="item <> 7", at_most=1, per="item"))
    (similar,) = model.similar(model.items.ids[:1], k=5, rules=model.rules(where="item <> 7"))
    print(json.dumps([[one.item for one in found], [one.item for one in similar]]))
print(json.dumps([one.user for one in model.users_for(model.items.ids[0], 3)]))
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


def run_without_others(script: str, enough: tuple[str, ...], *arguments: Path) -> tuple[str, set[str]]:
    """What the script prints in a process that imports only `enough` and what they need, and what it cannot import."""
    installed = needed(enough)
    normal = {
        name: {re.sub(r"[-_.]+", "-", one).lower() for one in packages}
        for name, packages in packages_distributions().items()
    }
    refused = {name for name, packages in normal.items() if not packages & installed and name != "bert4rec"}
    program = f"REFUSED = {refused!r}\n{REFUSE}\n{script}"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, refused


@pytest.fixture(scope="module")
def package(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    return export(find_source(made), folder, ["safetensors"], k=5, leaves_out_seen=True)


@pytest.mark.parametrize(
    ("enough", "is_package", "words"),
    [
        (ENOUGH, True, {"tomli", "tomli_w", "pyarrow", "polars", "torchrec", "pydantic", "datasets"}),
        (FOR_A_RUN, False, {"polars", "torchrec", "safetensors", "datasets"}),
    ],
)
def test_a_package_and_a_run_need_few_packages(
    package: Path, made: Path, enough: tuple[str, ...], is_package: bool, words: set[str]
) -> None:
    printed, refused = run_without_others(SERVE, enough, package if is_package else made)
    assert words <= refused
    model, (*lists, hidden) = load(made), json.loads(printed)
    history = model.items.ids[:3]
    (found,) = model.recommend([history], k=5)
    (denied,) = model.recommend([history], k=5, deny=[found[0].item])
    (similar,) = model.similar(history[:1], k=5)
    for printed_list, ours in zip(lists, (found, denied, similar), strict=True):
        assert [one[:2] for one in printed_list] == [[one.item, one.title] for one in ours]
        assert [one[2] for one in printed_list] == pytest.approx([one.score for one in ours])
    assert hidden == pytest.approx(model.encode([history])[0].tolist(), abs=1e-5)  # sums in another order


def test_a_run_needs_neither_torchrec_nor_datasets_and_conditions_need_polars(package: Path, made: Path) -> None:
    printed, refused = run_without_others(WITH_RULES, (*ENOUGH, *FOR_A_RUN, *FOR_CONDITIONS), package, made)
    assert {"torchrec", "fbgemm_gpu", "datasets", "pandas", "matplotlib", "tensorboard"} <= refused
    model = load(made)
    rules = {"where": "item <> 7", "at_most": 1, "per": "item"}
    (found,) = model.recommend([model.items.ids[:3]], k=5, rules=model.rules(**rules))
    (similar,) = model.similar(model.items.ids[:1], k=5, rules=model.rules(where="item <> 7"))
    lists = [[one.item for one in found], [one.item for one in similar]]
    users = [one.user for one in model.users_for(model.items.ids[0], 3)]
    assert [json.loads(line) for line in printed.splitlines()] == [lists, lists, users]
