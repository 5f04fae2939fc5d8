"""The Dockerfile: what it says of itself, and, marked `image`, the image built and trained in, as its own user.

A builder is a Docker daemon, or buildah, which needs none. Where the base image cannot be pulled, the environment
variable BASE_IMAGE names one that is there.
"""

import ast
import configparser
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from torchx.workspace.api import walk_workspace

from bert4rec import __version__
from tests.conftest import SMALL
from tests.update.conftest import first_run, quick, shop

__all__ = ["first_run", "quick", "shop"]

ROOT = Path(__file__).parents[2]
TAG = "localhost/bert4rec-test"


def context() -> set[str]:
    """The files that .dockerignore lets through, as torchx reads it, which puts them over an image."""
    walked = walk_workspace(fsspec.filesystem("file"), str(ROOT), ".dockerignore")
    return {Path(folder, name).relative_to(ROOT).as_posix() for folder, _, names in walked for name in names}


def test_the_image_has_what_it_needs_and_nothing_else_and_a_user_without_rights() -> None:
    files, stages = context(), dict[str, dict[str, list[str]]]()
    for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        name, _, words = line.partition(" ")
        if name == "FROM":
            stages[words.split()[-1]] = instructions = defaultdict[str, list[str]](list)
        elif stages:
            instructions[name].append(words)
    *_, (last, instructions) = stages.items()
    assert last == "train"  # what is built if no target is named
    assert stages["serve"]["USER"] == instructions["USER"]
    assert "torchrec" not in str(stages["serve"])
    assert {path.partition("/")[0] for path in files} == {
        ".torchxconfig", "LICENSE", "README.md", "bert4rec", "config.toml", "configs", "preprocessing.py",
        "pyproject.toml", "requirements-serve.lock", "requirements.lock", "scripts", "train.py",
    }  # fmt: skip
    assert not [path for path in files if "__pycache__" in path]
    assert {path.relative_to(ROOT).as_posix() for path in ROOT.glob("bert4rec/**/*.py")} <= files
    assert "BASH_ENV=scripts/torchx_env.sh" in (ROOT / ".torchxconfig").read_text()
    *sources, everything = [source for line in instructions["COPY"] for source in line.split()[:-1]]
    assert everything == "."
    assert {"scripts/torchx_env.sh", "pyproject.toml", "requirements.lock", *sources} <= files
    assert instructions["WORKDIR"] == ["/app"]
    assert instructions["USER"] == ["1000:1000"]  # numbers, which Kubernetes needs for runAsNonRoot
    assert instructions["ENTRYPOINT"] == []  # torchx puts `bash` in its place
    assert instructions["VOLUME"] == ['["/app/data", "/app/runs"]']


SETTINGS = " ".join(f"--{key}={value}" for key, value in (SMALL | {"training.n_epochs": 1}).items())
INSIDE = f"""set -e
echo "user $(id -u), $(bert4rec --version)"
python preprocessing.py {SETTINGS}
torchx run -s local_cwd dist.ddp -j 1x2 --script train.py -- {SETTINGS} 2>&1
torchrun --standalone --nproc_per_node=2 -m bert4rec evaluate runs/synthetic
bert4rec report
[ ! -w train.py ] && ! command -v cc && ! command -v git && [ ! -s /run/secrets/pip ] && ! ls -d .git tests 2>/dev/null
echo nothing besides
"""


def output(*words: object) -> str:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


class Docker:
    """A daemon builds and runs."""

    def build(self, *options: str, mounts: list[str]) -> None:
        output("docker", "build", f"--tag={TAG}", *options, ROOT)

    def run(self, script: str, *options: str) -> str:
        return output("docker", "run", "--rm", "--shm-size=1g", *options, TAG, "bash", "-c", script)

    def remove(self) -> None:
        output("docker", "image", "rm", TAG)


class Buildah:
    """Without a daemon, in a change of the root folder: where this runs, nothing more may be allowed."""

    def build(self, *options: str, mounts: list[str]) -> None:
        volumes = [f"--volume={path}:{path}:ro" for path in mounts]
        output("buildah", "build", "--isolation=chroot", f"--tag={TAG}", *volumes, *options, ROOT)

    def run(self, script: str, *options: str) -> str:
        self.container = output("buildah", "from", "--pull-never", TAG).strip()
        own = ["--isolation=chroot", "--hostname=localhost"]  # or nothing would resolve the name of the host
        return output("buildah", "run", *own, *options, self.container, "bash", "-c", script)

    def remove(self) -> None:
        output("buildah", "rm", self.container)
        output("buildah", "rmi", TAG)


@pytest.fixture
def builder() -> Iterator[Docker | Buildah]:
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0:
        found: Docker | Buildah = Docker()
    elif shutil.which("buildah"):
        found = Buildah()
    else:
        pytest.skip("no Docker daemon and no buildah on this machine: install one (Debian: apt-get install buildah)")
    yield found
    found.remove()


def settings_of_pip(file: Path) -> list[str]:
    """Writes this machine's into `file`; the files and folders of the machine that they name."""
    settings = configparser.ConfigParser(interpolation=None)
    lines = [line.partition("=") for line in output(sys.executable, "-m", "pip", "config", "list").splitlines()]
    settings["global"] = {name.partition(".")[2]: ast.literal_eval(value) for name, _, value in lines}
    with file.open("w") as opened:
        settings.write(opened)
    words = [word for value in settings["global"].values() for word in value.split()]
    paths = [word.removeprefix("file://").removesuffix("/simple") for word in words]  # an index stands beside its files
    return sorted({path for path in paths if path.startswith("/") and os.path.exists(path)})


SERVES = """set -e
bert4rec serve /served/shop --port=8000 >&2 & server=$!
python - <<'END'
import json, time, urllib.request
def ask(path, body=None):
    headers = {"Content-Type": "application/json"}
    return json.load(urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8000" + path, body, headers)))
for _ in range(600):
    try:
        ask("/health/ready")
        break
    except OSError:
        time.sleep(0.1)
found = ask("/v1/recommend", json.dumps({"queries": [{"user": "u1"}], "k": 5}).encode())
print("answers", len(found["lists"][0]["items"]))
END
kill $server && wait $server
! command -v cc && ! python -c 'import torchrec' 2>/dev/null && [ ! -w /opt/venv ]
echo "user $(id -u), nothing besides"
"""


@pytest.mark.image
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("alone", "quick")
def test_the_small_image_serves(builder: Docker | Buildah, shop: Path, tmp_path: Path) -> None:
    mounts = settings_of_pip(tmp_path / "pip.conf")
    base = [f"--build-arg=BASE_IMAGE={os.environ['BASE_IMAGE']}"] if "BASE_IMAGE" in os.environ else []
    builder.build("--target=serve", f"--secret=id=pip,src={tmp_path / 'pip.conf'}", *base, mounts=mounts)
    for path in (shop, *shop.rglob("*")):
        os.chown(path, 1000, 1000)
    assert builder.run(SERVES, f"--volume={shop.parent}:/served") == "answers 5\nuser 1000, nothing besides\n"


@pytest.mark.image
@pytest.mark.timeout(3600)
def test_the_image_prepares_trains_evaluates_and_reports(builder: Docker | Buildah, tmp_path: Path) -> None:
    mounts = settings_of_pip(tmp_path / "pip.conf")
    base = [f"--build-arg=BASE_IMAGE={os.environ['BASE_IMAGE']}"] if "BASE_IMAGE" in os.environ else []
    secret = f"--secret=id=pip,src={tmp_path / 'pip.conf'}"
    builder.build("--build-arg=TORCH_BUILD=cpu", secret, *base, mounts=mounts)
    said = builder.run(INSIDE)
    assert said.startswith(f"user 1000, bert4rec {__version__}\n")
    for words in ("training on 2 processes (cpu)", "Job finished: SUCCEEDED", "Test of runs/synthetic"):
        assert words in said
    assert said.endswith("nothing besides\n")
