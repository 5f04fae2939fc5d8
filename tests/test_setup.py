"""`make setup`, run for real on a PATH that holds only stand-ins: nothing is installed and nothing is fetched."""

import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRED = [Requirement(text) for text in PROJECT["dependencies"]]
OF_EXTRAS = [Requirement(text) for texts in PROJECT["optional-dependencies"].values() for text in texts]
PINNED = {"torch": "2.13.0", "torchrec": "1.8.0", "fbgemm-gpu": "1.8.0", "torchx": "0.7.0"}
TOOLS = ["sh", "dirname", "cat", "cksum", "mkdir", "rm", "cp", "sed", "grep", "tail", "sleep"]

UNAME = """#!/bin/sh
case $1 in -s) echo "${FAKE_SYSTEM:-Linux}" ;; -m) echo "${FAKE_MACHINE:-x86_64}" ;; esac
"""

# The Python that runs this test, pretending: $FAKE_SETUP runs before each `-c` program.
PRETENDING_PYTHON = f"""#!/bin/sh
exec "{sys.executable}" -c "import sys; $FAKE_SETUP
$2"
"""

# Stands for the interpreter and for the one in .venv: `-m venv` makes .venv, `-m pip` writes down how it was called and
# fails where the test has put what it then says. Only the lock is real.
INSTALLING_PYTHON = f"""#!/bin/sh
case "$*" in
*_base_executable*) case $0 in .venv/*) cat .venv/base ;; *) command -v "$0" ;; esac ;;
*fcntl*) exec "{sys.executable}" "$@" ;;
*"-m venv"*)
    mkdir -p .venv && rm -rf .venv/* && mkdir .venv/bin
    cp "$0" .venv/bin/python && command -v "$0" >.venv/base ;;
*"-m pip"*install*)
    sleep "${{FAKE_SECONDS:-0}}"
    echo "$*" >>pip-calls
    case "$*" in *+cpu*) failure=cpu-build-fails ;; *) failure=other-build-fails ;; esac
    [ ! -e $failure ] || {{ cat $failure; exit 1; }}
    [ ! -e pip-says ] || cat pip-says ;;
esac
"""


class Clone:
    """A fresh clone, and a PATH of which the test decides what it holds."""

    def __init__(self, folder: Path):
        self.folder, self.bin = folder / "clone", folder / "bin"
        (self.folder / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        for name in ["requirements.lock", "pyproject.toml", "scripts/setup.sh", "scripts/stand_in.sh"]:
            shutil.copy(ROOT / name, self.folder / name)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)
        self.program("uname", UNAME)

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def setup(self, **environment: str) -> subprocess.CompletedProcess[str]:
        # The build is given, so that a GPU in the machine that runs the test changes nothing.
        environment = {"PATH": str(self.bin), "TORCH_BUILD": "cpu", **environment}
        command = [self.folder / "scripts/setup.sh"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1100)

    def pip_calls(self) -> list[str]:
        calls = self.folder / "pip-calls"
        return calls.read_text().splitlines() if calls.exists() else []

    @property
    def ready(self) -> bool:
        return (self.folder / ".venv/.stamp").exists()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


@pytest.fixture
def installing(clone: Clone) -> Clone:
    """A clone on a machine with a Python that installs."""
    clone.program("python3", INSTALLING_PYTHON)
    return clone


def refusal(result: subprocess.CompletedProcess[str]) -> str:
    """The one line that it ends with."""
    assert result.returncode == 1, result.stdout + result.stderr
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("python", "environment", "named"),
    [
        ("", {"FAKE_SYSTEM": "Darwin"}, "Darwin"), ("", {"FAKE_MACHINE": "riscv64"}, "riscv64"), ("", {}, "3.11"),
        *[(PRETENDING_PYTHON, {"FAKE_SETUP": f"sys.version_info = (3, {n}, 0)"}, "3.11") for n in (10, 14)],
        (PRETENDING_PYTHON, {"FAKE_SETUP": "sys.version_info = (3, 12, 1); sys.modules['ensurepip'] = None"}, "venv"),
        (INSTALLING_PYTHON, {"PYTHON": "python9"}, "PYTHON=python9"),
    ],
)  # fmt: skip
def test_a_machine_that_cannot_is_told_what_it_lacks(
    clone: Clone, python: str, environment: dict[str, str], named: str
):
    if python:
        clone.program("python3", python)
    assert named in refusal(clone.setup(**environment))


@pytest.mark.parametrize(("build", "more"), [("cpu", " torch==2.13.0+cpu ./.venv/fbgemm-gpu"), ("cuda", "")])
def test_the_cpu_build_is_asked_for_with_a_stand_in_for_fbgemm_gpu(installing: Clone, build: str, more: str):
    assert installing.setup(TORCH_BUILD=build).returncode == 0
    (call,) = installing.pip_calls()
    assert call.endswith(f"install -c requirements.lock -e .[dev,onnx,sql,lake,excel,serve,mcp,ann]{more}")
    alias = installing.folder / ".venv/fbgemm-gpu/pyproject.toml"
    wanted = 'name = "fbgemm-gpu"\nversion = "1.8.0+cpu"\ndependencies = ["fbgemm-gpu-cpu==1.8.0"]'
    assert build == "cuda" or wanted in alias.read_text()


def test_the_folder_behind_a_link_is_left_as_it_is(installing: Clone, tmp_path: Path):
    (tmp_path / "shared/bin").mkdir(parents=True)
    (installing.folder / ".venv").symlink_to(tmp_path / "shared")
    assert installing.setup().returncode == 0
    assert installing.ready
    assert [path.name for path in (tmp_path / "shared").rglob("*")] == ["bin"]


def test_a_second_call_does_nothing_until_a_pin_or_the_build_or_the_place_changes(installing: Clone):
    def n_installed(build: str = "cuda") -> int:
        installing.setup(TORCH_BUILD=build)
        return len(installing.pip_calls())

    assert n_installed("cpu") == 1
    second = installing.setup()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    with open(installing.folder / "requirements.lock", "a") as lock:
        lock.write("another==1.0\n")
    assert (n_installed("cpu"), n_installed()) == (2, 3)
    project = installing.folder / "pyproject.toml"
    project.write_text(project.read_text() + "[tool.another]\n")  # what pip does not read
    assert n_installed() == 3
    project.write_text(project.read_text().replace('bert4rec = "bert4rec', 'bert = "bert4rec'))
    assert n_installed() == 4
    installing.folder = installing.folder.rename(installing.folder.with_name("moved"))
    assert n_installed() == 5


def test_a_name_on_the_path_that_does_not_run_is_passed_over(clone: Clone):
    clone.program("python3", "#!/bin/sh\necho 'shim: version not installed' >&2\nexit 127\n")
    clone.program("python3.12", INSTALLING_PYTHON)
    assert (clone.setup().returncode, clone.ready) == (0, True)


def test_another_python_than_the_one_of_a_ready_environment_makes_it_anew(clone: Clone):
    for name in ("python3", "python3.12"):
        clone.program(name, INSTALLING_PYTHON)
    made_with = []
    for environment in ({}, {"PYTHON": "python3.12"}, {"PYTHON": "python3.12"}, {}, {"PYTHON": "python3"}):
        assert clone.setup(**environment).returncode == 0
        made_with.append(Path((clone.folder / ".venv/base").read_text().strip()).name)
    assert made_with == ["python3", "python3.12", "python3.12", "python3.12", "python3"]
    assert len(clone.pip_calls()) == 3
    assert "PYTHON=python9 does not run" in refusal(clone.setup(PYTHON="python9"))


def test_large_downloads_are_shown_while_they_last(installing: Clone):
    said = "Collecting torch\n  Downloading torch-2.13.0.whl (187.3 MB)\n  Downloading idna.whl (0.1 MB)\n"
    (installing.folder / "pip-says").write_text(said + "Installing collected packages: idna, torch\n")
    first, *shown, last = installing.setup().stdout.splitlines()
    assert first.startswith("setup: making .venv with ")
    assert shown == ["setup: downloading torch-2.13.0.whl (187.3 MB)", "setup: installing: a minute or two"]
    assert last == "setup: .venv is ready"
    assert said in (installing.folder / "logs/setup.log").read_text()


def test_two_at_once_install_once(installing: Clone):
    with ThreadPoolExecutor() as threads:
        both = list(threads.map(lambda _: installing.setup(FAKE_SECONDS="0.5"), range(2)))
    assert [result.returncode for result in both] == [0, 0]
    assert "waiting for another one to finish" in both[0].stdout + both[1].stdout
    assert len(installing.pip_calls()) == 1


NO_CPU_BUILD = """ERROR: Could not find a version that satisfies torch==2.13.0+cpu (from versions: 2.12.0, 2.13.0)
ERROR: No matching distribution found for torch==2.13.0+cpu
"""


def test_without_a_cpu_build_the_cuda_build_is_taken_and_its_size_told(installing: Clone):
    (installing.folder / "cpu-build-fails").write_text(NO_CPU_BUILD)
    result = installing.setup()
    assert result.returncode == 0
    assert "CUDA" in result.stdout
    first, second = installing.pip_calls()
    assert "torch==2.13.0+cpu" in first
    assert second.endswith("requirements.lock -e .[dev,onnx,sql,lake,excel,serve,mcp,ann] ./.venv/fbgemm-gpu")


@pytest.mark.parametrize(
    ("pip_says", "told"),
    [
        ("WARNING: Retrying (Retry(total=0)) after connection broken by 'X'\n" + NO_CPU_BUILD, "network"),
        (NO_CPU_BUILD.replace("2.12.0, 2.13.0", "none"), "network"),
        ("ERROR: [Errno 28] No space left on device\n", "ERROR: [Errno 28] No space left on device"),
    ],
    ids=["retried", "no versions", "full disk"],
)
def test_a_failure_of_pip_is_told_and_is_not_ready(installing: Clone, pip_says: str, told: str):
    (installing.folder / "cpu-build-fails").write_text(pip_says)
    assert told in refusal(installing.setup())
    assert len(installing.pip_calls()) == 1
    assert pip_says in (installing.folder / "logs/setup.log").read_text()
    assert not installing.ready

    (installing.folder / "cpu-build-fails").unlink()
    assert installing.setup().returncode == 0
    assert installing.ready


def locked() -> dict[str, str]:
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def test_the_pinned_torch_torchrec_and_fbgemm_match_and_all_else_has_a_range():
    exact = {need.name: str(need.specifier) for need in REQUIRED if "==" in str(need.specifier)}
    assert exact == {name: f"=={version}" for name, version in PINNED.items()}
    ranges = [need for need in (*REQUIRED, *OF_EXTRAS) if need.name not in PINNED]
    assert [need for need in ranges if {part.operator for part in need.specifier} != {">=", "<"}] == []


def test_the_lock_has_a_fitting_version_of_all_that_is_asked_for():
    versions = locked()
    asked = [need for need in (*REQUIRED, *OF_EXTRAS) if need.name not in PINNED]
    assert [need for need in asked if versions.get(need.name, "0") not in need.specifier] == [], "type `make lock`"
    assert [name for name in versions if name in PINNED or name.startswith(("torch-", "fbgemm", "nvidia"))] == []


def test_the_requirements_of_an_extra_are_printed_for_pip():
    printed = [sys.executable, ROOT / "scripts/requirements.py"]
    plain, with_onnx = (
        subprocess.run([*printed, *extras], capture_output=True, text=True, check=True).stdout.splitlines()
        for extras in ([], ["onnx"])
    )
    assert plain == PROJECT["dependencies"]
    assert with_onnx == [*plain, *PROJECT["optional-dependencies"]["onnx"]]
