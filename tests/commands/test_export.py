"""`bert4rec export`."""

from pathlib import Path

from bert4rec.__main__ import main
from tests.fixture_types import Capture


def test_vectors_are_exported_beside_the_run_unless_told_otherwise(
    whole: Path, small_folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Users of a package need their dataset."""
    assert main(["export", str(whole), "--format=vectors"]) == 0
    folder, model = whole / "export", f"{tmp_path}/model"
    assert f"{folder}/README.md" in capsys.readouterr().out
    assert (folder / "vectors.npy").is_file()
    assert main(["export", str(whole), "--format=safetensors", f"--output={model}"]) == 0
    capsys.readouterr()
    assert main(["recommend", model, "--items=1,2,3", "--top=2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["recommend", model, "--all"]) == 2
    assert "--dataset=FOLDER" in capsys.readouterr().err
    assert main(["recommend", model, "--user", "1", f"--dataset={small_folder}"]) == 0
