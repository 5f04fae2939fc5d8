"""A new champion takes over without a pause; one that cannot be loaded does not."""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert4rec import load
from bert4rec.__main__ import main
from bert4rec.checkpoint.models_folder import ALIASES, read_aliases, write_aliases
from bert4rec.server import watch
from bert4rec.server.served import Served
from tests.conftest import leave_group
from tests.fixture_types import Patch
from tests.server.conftest import Asking, Serve, figure, items_in
from tests.update.conftest import hurry, make_shop

pytestmark = pytest.mark.usefixtures("alone", "quick")

HISTORY = [1, 2, 3, 4]


@pytest.fixture(scope="module")
def made_versions(first_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder with two versions."""
    place = tmp_path_factory.mktemp("versions")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.device_count", lambda: 0)
        hurry(patch)
        shop = make_shop(place, first_run)
        assert main(["update", str(shop), f"--data={place / 'day-3.csv'}", "--full"]) in (0, 3)
    leave_group()
    return shop


@pytest.fixture
def two_versions(made_versions: Path, tmp_path: Path, monkeypatch: Patch) -> Path:
    """A copy of it."""
    monkeypatch.setattr(watch, "SECONDS_OF_PAUSE", 0.02)
    return Path(shutil.copytree(made_versions, tmp_path / "models" / "shop", symlinks=True))


def wait(what: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def version(client: Asking) -> str:
    name: str = client.read("GET", "/v1/version")["version"]
    return name


def test_each_answer_is_of_the_version_that_it_names(two_versions: Path, serve: Serve) -> None:
    names = [one.name for one in (two_versions / "versions").iterdir()]
    lists = {
        name: [[one.item for one in load(two_versions / "versions" / name).recommend([HISTORY], 8)[0]]]
        for name in names
    }
    assert lists[names[0]] != lists[names[1]]
    client, seen = serve(two_versions), list[str]()
    for switch in range(6):
        write_aliases(two_versions, {**read_aliases(two_versions), "champion": names[switch % 2]})
        wait(lambda: version(client) == read_aliases(two_versions)["champion"])
        for _ in range(3):
            answer = client.recommend([{"items": HISTORY}] * 2, k=8)
            assert items_in(answer) == lists[answer["version"]] * 2
            seen.append(answer["version"])
    assert {*seen} == {*names}
    assert figure(client, "bert4rec_switches_total") >= 5


@pytest.mark.long
def test_a_hundred_switches_under_load_cost_no_request_its_answer(two_versions: Path, serve: Serve) -> None:
    names = [one.name for one in (two_versions / "versions").iterdir()]
    histories = [[item, item + 1, item + 2] for item in range(20)]
    lists = {
        name: [[one.item for one in found] for found in load(two_versions / "versions" / name).recommend(histories, 8)]
        for name in names
    }
    client, answers, ending = serve(two_versions), list[Any](), threading.Event()

    def load_it() -> None:
        while not ending.is_set():
            answers.append(client.recommend([{"items": history} for history in histories], k=8))

    clients = [threading.Thread(target=load_it) for _ in range(4)]
    for one in clients:
        one.start()
    for switch in range(100):
        write_aliases(two_versions, {"champion": names[switch % 2], "previous": names[1 - switch % 2]})
        wait(lambda: client.app.app.state.parts.scorer.served.version == read_aliases(two_versions)["champion"])  # type: ignore[attr-defined]
    ending.set()
    for one in clients:
        one.join()
    assert figure(client, "bert4rec_switches_total") in (99, 100)
    assert {answer["version"] for answer in answers} == {*names}
    assert all(items_in(answer) == lists[answer["version"]] for answer in answers)
    print(f"{len(answers):,} requests of 20 queries during 100 switches, none failed")


def test_a_version_that_cannot_be_loaded_or_fails_its_test_is_not_taken(
    two_versions: Path, serve: Serve, monkeypatch: Patch
) -> None:
    champion = read_aliases(two_versions)["champion"]
    other = next(one.name for one in (two_versions / "versions").iterdir() if one.name != champion)
    client = serve(two_versions)
    before = client.recommend([{"items": HISTORY}], k=8)
    shutil.move(two_versions / "versions" / other / "checkpoints", two_versions / "away")
    write_aliases(two_versions, {"champion": other})
    wait(lambda: figure(client, "bert4rec_switches_total") == 1)
    assert client.recommend([{"items": HISTORY}], k=8) == before
    assert client.get("/health/ready").status_code == 200
    shutil.move(two_versions / "away", two_versions / "versions" / other / "checkpoints")
    examples = two_versions / "versions" / other / "examples.json"
    text = examples.read_text()
    examples.write_text(text.replace('"score": ', '"score": 9'))
    write_aliases(two_versions, {"champion": other, "previous": champion})
    wait(lambda: figure(client, "bert4rec_switches_total") == 2)
    assert version(client) == champion
    examples.write_text(text)
    (two_versions / ALIASES).touch()
    wait(lambda: version(client) == other)


def test_a_forgotten_item_is_in_no_list_from_then_on(two_versions: Path, serve: Serve) -> None:
    client = serve(two_versions)
    query = [{"items": [], "times": []}, {"items": HISTORY}]
    before = client.recommend(query, k=5)
    item = items_in(before)[1][0]
    assert main(["models", "forget", str(two_versions), f"--item={item}"]) == 0
    wait(lambda: item not in items_in(client.recommend(query, k=5))[1])
    assert client.recommend(query, k=5)["version"] == before["version"]
    wait(lambda: str(item) not in [str(one["item"]) for one in client.read("GET", "/v1/items?limit=100")["items"]])


def test_the_examples_of_a_report_are_its_test(two_versions: Path) -> None:
    assert Served.load(two_versions).test() > 0
