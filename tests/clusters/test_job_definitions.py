"""The job definitions that docs/clusters.md leads to, field by field; no cluster is asked.

torchx is started as the page types it, with --dryrun; the manifests are those of examples/kubernetes/.
"""

import shlex
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bert4rec.config.load import load_config, parse_command_line
from tests.conftest import SMALL
from tests.launch import ROOT, Launched, start

MANIFESTS = ROOT / "examples/kubernetes"
TRAINING = "train.py shared/data/synthetic --mode=dmp --resume=auto --run.dir=shared/runs"
TORCHRUN = "torchrun --rdzv_backend c10d --rdzv_endpoint ${{{host}:=localhost}}:29500 --rdzv_id '{name}' --nnodes 2"
IN_A_SHELL = TORCHRUN + " --nproc_per_node 8 --tee 3 --role '' " + TRAINING
VARIABLES = {"OMP_NUM_THREADS": "1", "BASH_ENV": "scripts/torchx_env.sh"}


def definition(scheduler: str) -> dict[str, Any]:
    """What torchx would send for the line of docs/clusters.md that names `scheduler`."""
    text = (ROOT / "docs/clusters.md").read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = [line for line in text.splitlines() if line.startswith("torchx run") and f" -s {scheduler} " in line]
    done = start([sys.executable, "-m", "torchx.cli.main", "run", "--dryrun", *shlex.split(line)[2:]])
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = yaml.safe_load(done.stdout.partition("=== SCHEDULER REQUEST ===")[2])
    return found


def variables(listed: list[dict[str, Any]]) -> dict[str, Any]:
    return {variable["name"]: variable.get("value") for variable in listed}


def test_kubernetes() -> None:
    pytest.importorskip("kubernetes", reason="torchx needs the package kubernetes: `make setup`")
    job = definition("kubernetes")
    name, spec = job["metadata"]["name"], job["spec"]
    assert (job["kind"], spec["maxRetry"], spec["schedulerName"]) == ("Job", 3, "volcano")
    # The first pod has the rendezvous, and the second finds it by the name that Volcano gives it.
    for task, host in zip(spec["tasks"], ("TORCHX_RANK0_HOST", "VC_TRAIN_0_HOSTS"), strict=True):
        (container,) = task["template"]["spec"]["containers"]
        assert container["command"] == ["bash", "-c", IN_A_SHELL.format(host=host, name=name)]
        assert variables(container["env"]).items() >= VARIABLES.items()
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
        places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert places == {"dshm": "/dev/shm", "mount-0": "/app/shared"}


def test_aws_batch() -> None:
    request = definition("aws_batch")
    name, job = request["name"], request["job_def"]
    assert (request["queue"], job["type"], job["retryStrategy"]["attempts"]) == ("training", "multinode", 3)
    nodes = job["nodeProperties"]
    (both,) = nodes["nodeRangeProperties"]
    assert (nodes["numNodes"], both["targetNodes"]) == (2, "0:1")
    container, host = both["container"], "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
    assert container["command"] == ["bash", "-c", IN_A_SHELL.format(host=host, name=name)]
    assert variables(container["environment"]).items() >= VARIABLES.items()
    (mount,) = container["mountPoints"]
    assert mount == {"containerPath": "/app/shared", "readOnly": False, "sourceVolume": "mount_0"}


def pod() -> dict[str, Any]:
    (job,) = manifest("pytorchjob.yaml")
    found: dict[str, Any] = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    return found


def manifest(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / name).read_text(encoding="utf-8")))


def test_pytorchjob_starts_the_same_pod_on_both_hosts_with_time_to_save() -> None:
    (job,) = manifest("pytorchjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas, (container,) = job["spec"]["pytorchReplicaSpecs"], pod()["containers"]
    assert replicas["Master"] == replicas["Worker"]
    assert (replicas["Master"]["replicas"], replicas["Master"]["restartPolicy"]) == (1, "OnFailure")
    assert container["name"] == "pytorch"
    launcher, (program, *options) = container["command"][:9], container["command"][9:]
    assert launcher == [
        "torchrun", "--nnodes=2", "--nproc-per-node=8", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=bert4rec",
        "--rdzv-endpoint=$(MASTER_ADDR):$(MASTER_PORT)", "--local-addr=$(POD_IP)",
        "--rdzv-conf=join_timeout=3600,read_timeout=600",
    ]  # fmt: skip
    assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in container["env"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert program == "train.py"
    config = load_config(*parse_command_line(options))
    assert config.run.resume == "auto"
    # Until processes leave without saving, until torchrun kills them, until the pod is killed.
    torchrun_limit = float(variables(container["env"])["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
    assert config.checkpoint.seconds_on_signal < torchrun_limit < pod()["terminationGracePeriodSeconds"]


@pytest.mark.long
def test_pytorchjob_command_trains_on_two_pods(small_folder: Path, tmp_path: Path) -> None:
    """Two torchruns on this machine, with one process each instead of eight."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    by_kubernetes = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "POD_IP": "127.0.0.1"}
    (container,) = pod()["containers"]
    command = " ".join(container["command"]).replace("--nproc-per-node=8", "--nproc-per-node=1")
    for name, value in by_kubernetes.items():
        command = command.replace(f"$({name})", value)
    small = {**SMALL, "training.n_epochs": 1, "data.dataset_dir": small_folder, "run.dir": tmp_path}
    words = [*shlex.split(command), *(f"--{key}={value}" for key, value in small.items())]
    of_pod = {name: value for name, value in variables(container["env"]).items() if value} | by_kubernetes
    pods = [Launched(words, **of_pod, RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    assert [each.end(1100) for each in pods] == [0, 0], [each.output for each in pods]
    assert "training on 2 processes (cpu)" in "".join(each.output for each in pods)
    assert (tmp_path / "small/report.json").exists()


def test_pytorchjob_volumes() -> None:
    (container,), (claim, preparation) = pod()["containers"], manifest("prepare.yaml")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    shared = {"name": "shared", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}
    assert pod()["volumes"] == [shared, shm]
    data, runs = ({"name": "shared", "mountPath": f"/app/{name}", "subPath": name} for name in ("data", "runs"))
    assert container["volumeMounts"] == [data, runs, {"name": "shm", "mountPath": "/dev/shm"}]
    prepares = preparation["spec"]["template"]["spec"]
    assert prepares["volumes"] == [shared]
    (before,) = prepares["containers"]
    assert (before["volumeMounts"], before["image"]) == ([data], container["image"])
    assert before["command"][:2] == ["bert4rec", "prepare"]
    load_config(*parse_command_line(before["command"][2:]))


def test_rayjob_prepares_on_the_volume_with_the_locked_version_of_ray() -> None:
    (job,) = manifest("prepare-ray.yaml")
    claim, _ = manifest("prepare.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster, words = job["spec"]["rayClusterSpec"], shlex.split(job["spec"]["entrypoint"])
    assert f"ray=={cluster['rayVersion']}\n" in (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert words[:2] == ["bert4rec", "prepare"]
    config = load_config(*parse_command_line(words[3:]))
    assert (config.preprocessing.engine, config.preprocessing.workers) == ("ray", "auto")
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,), (volume,) = group["template"]["spec"]["containers"], group["template"]["spec"]["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        (mount,) = container["volumeMounts"]
        assert mount["name"] == volume["name"]
        assert all(Path(path).is_relative_to(mount["mountPath"]) for path in (words[2], config.data.dataset_dir))
