"""Aliases move in one step and back; versions are listed in order and removed unless an alias names them."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bert4rec.checkpoint.models_folder import (
    find_version,
    find_versions,
    is_models_folder,
    models_folder_of,
    new_version_name,
    prune,
    read_aliases,
    read_updates,
    roll_back,
    run_at,
    set_challenger,
    set_champion,
    write_aliases,
)
from bert4rec.checkpoint.run_folder import find_trained, named_run
from bert4rec.runtime.errors import SettingsError
from tests.checks import Patch, one_line

NAMES = [f"2026-11-{day:02}T03-00-00" for day in range(1, 8)]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A models folder of seven versions; the fifth is the champion."""
    folder = tmp_path / "shop"
    for name in NAMES:
        version = folder / "versions" / name
        version.mkdir(parents=True)
        (version / "version.json").write_text(json.dumps({"time": name, "decision": "blessed"}))
        (version / "weights").write_bytes(b"1234")
    write_aliases(folder, {"champion": NAMES[4], "previous": NAMES[1], "challenger": NAMES[6]})
    return folder


def test_a_models_folder_means_the_run_of_its_champion(models: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    champion = models / "versions" / NAMES[4]
    assert (run_at(models), run_at(champion), run_at(tmp_path)) == (champion, champion, tmp_path)
    assert [is_models_folder(path) for path in (models, champion, tmp_path)] == [True, False, False]
    assert [models_folder_of(path) for path in (champion, models, tmp_path)] == [models, None, None]
    monkeypatch.chdir(models / "versions")
    assert models_folder_of(Path(NAMES[4])) == models
    monkeypatch.chdir(tmp_path)
    assert models_folder_of(Path("shop/versions", NAMES[4])) == Path("shop")


def test_rolling_back_twice_changes_nothing(models: Path) -> None:
    before = (models / "aliases.json").read_bytes()
    assert roll_back(models) == {"champion": NAMES[1], "previous": NAMES[4], "challenger": NAMES[6]}
    assert read_aliases(models)["champion"] == NAMES[1]
    roll_back(models)
    assert (models / "aliases.json").read_bytes() == before


def test_a_new_champion_makes_the_old_one_the_previous_once(models: Path) -> None:
    for _ in range(2):
        set_champion(models, NAMES[6])
        assert read_aliases(models) == {"champion": NAMES[6], "previous": NAMES[4]}
    set_challenger(models, NAMES[5])
    assert read_aliases(models) == {"champion": NAMES[6], "previous": NAMES[4], "challenger": NAMES[5]}
    for change in (set_champion, set_challenger):
        with one_line(f"{models}: ", "2027-01-01T00-00-00", NAMES[6]):
            change(models, "2027-01-01T00-00-00")


@pytest.mark.parametrize(("keep", "left"), [(1, [1, 4, 6]), (4, [1, 3, 4, 5, 6]), (9, [0, 1, 2, 3, 4, 5, 6])])
def test_pruning_keeps_the_newest_and_what_an_alias_names(models: Path, keep: int, left: list[int]) -> None:
    removed = prune(models, keep=keep)
    assert [version.name for version in find_versions(models)] == [NAMES[place] for place in left]
    size = 4 + len(json.dumps({"time": NAMES[0], "decision": "blessed"}))
    assert removed == {name: size for place, name in enumerate(NAMES) if place not in left}
    assert sorted(path.name for path in (models / "versions").iterdir()) == [NAMES[place] for place in left]


def test_pruning_ends_what_a_killed_one_has_begun_and_leaves_all_else(models: Path) -> None:
    half, notes = models / "versions" / f"{NAMES[0]}.{'0a' * 16}", models / "versions" / "notes"
    (models / "versions" / NAMES[0]).rename(half)
    notes.mkdir()
    assert [version.name for version in find_versions(models)] == NAMES[1:]
    assert prune(models, keep=9) == {}
    assert (half.exists(), notes.exists()) == (False, True)
    with one_line("--keep=0: ", error=SettingsError):
        prune(models, keep=0)


def test_versions_are_in_the_order_of_their_updates(models: Path) -> None:
    names = []
    for _ in range(11):
        names.append(new_version_name(models, datetime(2026, 11, 7, 3, 0, 0, tzinfo=UTC)))
        (models / "versions" / names[-1]).mkdir()
        (models / "versions" / names[-1] / "version.json").write_text("{}")
    assert (names[0], names[-1]) == (f"{NAMES[6]}-2", f"{NAMES[6]}-12")
    assert [version.name for version in find_versions(models)] == [*NAMES, *names]
    assert find_version(models, "challenger").name == NAMES[6]
    assert find_version(models, names[-1]).folder.name == names[-1]


def test_an_update_in_the_second_of_one_that_was_stopped_has_a_name_of_its_own(models: Path) -> None:
    began = datetime(2026, 12, 24, 3, 0, 0, tzinfo=UTC)
    stopped = new_version_name(models, began)
    with (models / "updates.jsonl").open("a") as file:
        file.write(f'{{"time": "{stopped}"}}\n')
    assert new_version_name(models, began) == f"{stopped}-2"


def test_what_is_missing_or_damaged_is_one_line(models: Path, tmp_path: Path) -> None:
    with one_line(f"{tmp_path}: ", "aliases.json"):
        read_aliases(tmp_path)
    write_aliases(models, {"champion": NAMES[4]})
    with one_line(f"{models}: ", NAMES[4]):
        roll_back(models)
    with one_line(f"{models}: ", "../outside"):
        find_version(models, "../outside")
    for text in ("", "[]", "{}", '{"champion": 3}', '{"champion": "x"'):
        (models / "aliases.json").write_text(text)
        with one_line(f"{models / 'aliases.json'}: "):
            find_trained(models)
    write_aliases(models, {"champion": "2027-01-01T00-00-00"})
    with one_line(f"{models}: ", "2027-01-01T00-00-00", NAMES[6]):
        find_trained(models)
    assert read_updates(models) == []
    (models / "updates.jsonl").write_text('{"time": "a"}\n{"time": "b"}\n')
    assert [line["time"] for line in read_updates(models)] == ["a", "b"]
    (models / "updates.jsonl").write_text('{"time": "a"}\n{"time')
    with one_line(f"{models / 'updates.jsonl'}: "):
        read_updates(models)


def test_no_training_goes_on_in_a_version(models: Path) -> None:
    (models / "versions" / NAMES[4] / "checkpoints" / "step-000000007").mkdir(parents=True)
    for place in (models, models / "versions" / NAMES[4]):
        with one_line(
            f'run.resume = "{place}": ', f"--run.init_from={models}/versions/{NAMES[4]}", error=SettingsError
        ):
            named_run(str(place))


def test_it_is_read_without_torch_and_arrow(models: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from bert4rec.checkpoint.models_folder import run_at; "
        "assert not {'torch', 'pyarrow', 'polars'} & sys.modules.keys(); print(run_at(Path(sys.argv[1])).name)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(models)], capture_output=True, text=True, check=True)
    assert done.stdout == f"{NAMES[4]}\n"
