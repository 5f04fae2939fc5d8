"""What `metadata.json` cannot say, and files that are not those that it lists."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.dataset.check.damages import (
    FIRST,
    Cases,
    Damage,
    FileCases,
    FileDamage,
    Sound,
    cases,
    damaged,
    damaged_files,
    flip,
    metadata,
    setting,
    truncate,
)
from tests.dataset.check.folders import accepted, load, refused

LEAVE_ONE_OUT: Cases = {
    "format_version": (metadata(format_version=99), r"json: format_version 99, this program reads \d"),
    "key missing": (lambda f: f.metadata.pop("train_positions"), r"json: train_positions = null: must be of type int"),
    "key of another type": (metadata(users="24"), r'json: users = "24": must be of type int'),
    "setting missing": (lambda f: f.metadata["preprocessing"].pop("split"), r"json: split = null: must be of type str"),
    "validation_users, neither number nor all": (
        setting(validation_users="some"),
        r'json: validation_users = "some": must',
    ),
    "max_len of 0": (metadata(max_len=0), r"json: max_len = 0: must be at least 1"),
    "too many users for ids": (metadata(users=2**31), r"json: more than \d+ users or items cannot have ids"),
    "unknown split": (setting(split="odd"), r'json: split = "odd": this program knows no such split'),
    "sliding_step above max_len": (setting(sliding_step=7), r"json: sliding_step = 7: must be from 0 to max_len = 6"),
}

BY_TIME: Cases = {
    "no instant": (lambda f: f.metadata.pop("split_instant"), r"json: split_instant = null: must be of type int"),
}


def edit(path: Path, change: Callable[[dict], object]) -> None:
    metadata = json.loads((path / "metadata.json").read_text())
    change(metadata)
    (path / "metadata.json").write_text(json.dumps(metadata))


FILES: FileCases = {
    "no folder": (shutil.rmtree, r"dataset: no dataset folder \(no metadata\.json\)"),
    "a file": (lambda p: (shutil.rmtree(p), p.write_text("x")), r"dataset: no dataset folder"),
    "no JSON": (lambda p: (p / "metadata.json").write_text("{"), r"metadata\.json: cannot be read"),
    "no table": (lambda p: (p / "metadata.json").write_text("[]"), r"metadata\.json: does not describe a dataset"),
    "fingerprint": (
        lambda p: edit(p, lambda m: m.update(fingerprint="0")),
        r"json: the fingerprint is not that of the",
    ),
    "checksum in the metadata": (
        lambda p: edit(p, lambda m: m["files"]["users.parquet"].update(sha256="0")),
        r"json: the fingerprint is not that",
    ),
    "entry without a checksum": (
        lambda p: edit(p, lambda m: m["files"]["users.parquet"].pop("sha256")),
        r"users\.parquet has no size and checksum",
    ),
    "a byte of a split": (lambda p: flip(p / FIRST, 900), r"train/data-0\S+: its checksum is not that of metadata"),
    "a byte of a table": (lambda p: flip(p / "items.parquet", 99), r"items\.parquet: its checksum is not that of"),
    "a byte of the card": (lambda p: flip(p / "README.md", 3), r"README\.md: its checksum is not that of"),
    "a byte more": (
        lambda p: (p / "README.md").write_text("Another text"),
        r"README\.md: has 12 bytes, metadata\.json says",
    ),
    "truncated": (lambda p: truncate(p / FIRST), r"train/data-0\S+: has \d+ bytes, metadata\.json says \d+"),
    "table missing": (lambda p: (p / "items.parquet").unlink(), r"items\.parquet: is missing"),
    "split missing": (lambda p: shutil.rmtree(p / "test"), r"test/data-00000-of-00002\.arrow: is missing"),
    "another file": (
        lambda p: (p / "test" / "cache.arrow").write_text("x"),
        r"test/cache\.arrow: is not listed in meta",
    ),
    "another folder": (
        lambda p: ((p / "old").mkdir(), (p / "old" / ".x").write_text("x")),
        r"old/\.x: is not listed in metadata\.json; move",
    ),
}

SEALED: FileCases = {
    "table missing": (lambda p: (p / "items.parquet").unlink(), r"items\.parquet: is missing"),
    "list of files missing": (lambda p: (p / "test" / "state.json").unlink(), r"test/state\.json: is missing"),
}


@pytest.mark.parametrize(("split", "damage", "words"), cases(leave_one_out=LEAVE_ONE_OUT, time=BY_TIME))
def test_metadata_that_no_dataset_has_are_refused(
    sound: Sound, tmp_path: Path, split: str, damage: Damage, words: str
) -> None:
    refused(damaged(sound[split], damage, tmp_path / "dataset"), words)


@pytest.mark.parametrize(("damage", "words"), FILES.values(), ids=FILES)
def test_damaged_files_are_refused(sound: Sound, tmp_path: Path, damage: FileDamage, words: str) -> None:
    refused(damaged_files(sound["leave_one_out"], damage, tmp_path / "dataset", sealed=False), words)


@pytest.mark.parametrize(("damage", "words"), SEALED.values(), ids=SEALED)
def test_a_file_that_must_be_there_is_missed_though_it_is_not_listed(
    sound: Sound, tmp_path: Path, damage: FileDamage, words: str
) -> None:
    refused(damaged_files(sound["leave_one_out"], damage, tmp_path / "dataset", sealed=True), words)


def test_a_folder_of_before_the_shares_were_counted_is_accepted(small_folder: Path, tmp_path: Path) -> None:
    folder = load(small_folder)
    del folder.metadata["repeated_targets"], folder.metadata["left_out"]
    accepted(folder.save(tmp_path / "dataset"))


def test_more_keys_in_the_metadata_do_not_matter(small_folder: Path, tmp_path: Path) -> None:
    folder = load(small_folder)
    folder.metadata["new"] = {"key": 1}
    accepted(folder.save(tmp_path / "dataset"))
