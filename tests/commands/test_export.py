"""`bert4rec export`."""

import re
from pathlib import Path

import pytest

from bert4rec.__main__ import main
from tests.fixture_types import Capture


def test_vectors_are_exported_beside_the_run_unless_told_otherwise(
    whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["export", str(whole), "--format=vectors"]) == 0
    folder = whole / "export"
    assert f"{folder}/README.md" in capsys.readouterr().out
    assert (folder / "vectors.npy").is_file()
    assert main(["export", str(whole), "--format=safetensors", f"--output={tmp_path}/model"]) == 0
    capsys.readouterr()
    assert main(["recommend", f"{tmp_path}/model", "--items=1,2,3", "--top=2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--format=vector"], "--format=vector: .* vectors"),
        (["--format=pt2,pickle"], "--format=pt2,pickle: .*safetensors, vectors, pt2, onnx"),
        (["--top=0"], "--top=0: "),
    ],
)
def test_one_line_for_what_cannot_be(made: Path, options: list[str], error: str, capsys: Capture) -> None:
    assert main(["export", str(made), *options]) == 2
    assert re.fullmatch(f"error: {error}.*\n", capsys.readouterr().err)


def test_users_of_a_package_need_their_dataset(made: Path, small_folder: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["export", str(made), "--format=safetensors", f"--output={tmp_path}/model"]) == 0
    capsys.readouterr()
    assert main(["recommend", f"{tmp_path}/model", "--all"]) == 2
    assert "--dataset=FOLDER" in capsys.readouterr().err
    assert main(["recommend", f"{tmp_path}/model", "--user", "1", f"--dataset={small_folder}"]) == 0
