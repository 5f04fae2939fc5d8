"""A folder and its manifest: whatever is changed is found, and said in one line."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from bert4rec.runtime import manifest

OF_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # SHA-256, from the standard


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A folder of files like those of a checkpoint, and their manifest."""
    folder, draw = tmp_path / "sound", np.random.default_rng(1)
    folder.mkdir()
    sizes = {".metadata": 700, "__0_0.distcp": 50_000, "facts.json": 3000}
    for name, size in sizes.items():
        (folder / name).write_bytes(draw.bytes(size))
    manifest.seal(folder, manifest.describe(folder, sizes))
    return folder


def test_a_hundred_damages_are_recognised(sound: Path, tmp_path: Path) -> None:
    assert manifest.problem_of(sound) == ""
    rng = np.random.default_rng(1)
    names = sorted(path.name for path in sound.iterdir())
    assert names == [".metadata", "__0_0.distcp", "facts.json", "manifest.json"]
    for number in range(100):
        folder, name = tmp_path / f"damaged-{number}", names[number % len(names)]
        shutil.copytree(sound, folder)
        path = folder / name
        content = path.read_bytes()
        how = number // len(names) % 3
        if how == 0:
            place = int(rng.integers(len(content)))
            path.write_bytes(
                content[:place] + bytes([content[place] ^ int(rng.integers(1, 256))]) + content[place + 1 :]
            )
        elif how == 1:
            path.write_bytes(content[: int(rng.integers(len(content)))])
        else:
            path.unlink()
        assert manifest.problem_of(folder) != ""
        shutil.rmtree(folder)


def test_the_manifest_of_a_file_to_the_letter(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("abc")
    (tmp_path / "b").write_text("")
    files = manifest.describe(tmp_path, ["b", "a"])
    assert files["a"] == {"bytes": 3, "sha256": OF_ABC}
    manifest.seal(tmp_path, {"a": files["a"]})
    assert (tmp_path / "manifest.json").read_text() == (
        f'{{\n "a": {{\n  "bytes": 3,\n  "sha256": "{OF_ABC}"\n }}\n}}\n'
    )
    texts = []
    for order in (files, dict(reversed(files.items()))):
        manifest.seal(tmp_path, order)
        texts.append((tmp_path / "manifest.json").read_text())
    assert texts[0] == texts[1]


def test_what_is_wrong_is_one_line(sound: Path) -> None:
    with (sound / "facts.json").open("a") as file:
        file.write("\n")
    assert manifest.problem_of(sound) == "facts.json has 3,001 bytes, not 3,000"
    (sound / "facts.json").write_bytes(bytes(3000))
    assert manifest.problem_of(sound) == "facts.json has another checksum"
    (sound / "facts.json").unlink()
    assert manifest.problem_of(sound) == "facts.json is missing"
    assert manifest.problem_of(sound, looks_at=lambda number: number == 2) == "facts.json is missing"
    assert manifest.problem_of(sound, looks_at=lambda number: number != 2) == ""
    (sound / "manifest.json").write_text("{}")
    assert manifest.problem_of(sound) == "manifest.json is damaged"
    (sound / "manifest.json").unlink()
    assert manifest.problem_of(sound) == "manifest.json is missing"
