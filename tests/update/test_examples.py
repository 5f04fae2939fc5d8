"""The files of examples/nightly: what they run, run once; and what their own programs say of them."""

import shutil
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from bert4rec.__main__ import Parser
from bert4rec.checkpoint.models_folder import read_updates
from bert4rec.commands.serve import add_arguments
from bert4rec.server.app import make_app
from bert4rec.server.parts import Settings
from tests.launch import ROOT
from tests.update.conftest import day_of

NIGHTLY = ROOT / "examples/nightly"
pytestmark = [pytest.mark.usefixtures("alone", "quick"), pytest.mark.filterwarnings("ignore::FutureWarning")]


def of_cron() -> str:
    (line,) = [line for line in (NIGHTLY / "crontab").read_text().splitlines() if line and not line.startswith("#")]
    assert line.split()[:5] == ["15", "3", "*", "*", "*"]
    folder, _, command = line.split(maxsplit=5)[5].partition(" && ")
    assert folder == "cd /srv/shop"
    return command.replace(r"\%", "%")


def of_systemd() -> str:
    lines = (NIGHTLY / "bert4rec-update.service").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("ExecStart=")]
    assert "WorkingDirectory=/srv/shop" in lines
    return line.partition(" -c '")[2].removesuffix("'").replace("$$", "$").replace("%%", "%")


def of_kubernetes() -> str:
    job = yaml.safe_load((NIGHTLY / "cronjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"], job["spec"]["schedule"]) == ("batch/v1", "CronJob", "15 3 * * *")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (container["workingDir"], container["command"]) == ("/srv/shop", ["sh", "-c"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    (command,) = container["args"]
    return f".venv/bin/{command}"


def test_cron_systemd_and_kubernetes_run_the_same_command() -> None:
    assert of_cron() == of_systemd() == of_kubernetes()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_its_units() -> None:
    units = [str(NIGHTLY / f"bert4rec-{name}") for name in ("update.service", "update.timer", "serve.service")]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_kubernetes_and_compose_serve_with_options_and_paths_that_there_are() -> None:
    unit = (NIGHTLY / "bert4rec-serve.service").read_text()
    deployment, service = yaml.safe_load_all((NIGHTLY / "serve.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    compose = yaml.safe_load((NIGHTLY / "compose.yaml").read_text())["services"]
    parser = Parser()
    add_arguments(parser)
    for words in (
        unit.partition(".venv/bin/bert4rec ")[2].splitlines()[0].removesuffix("'").split(), container["command"][1:],
    ):  # fmt: skip
        assert words[0] == "serve"
        assert parser.parse_args(words[1:]).model.name == "shop"
    paths = {route.path for route in make_app(Settings(Path("none"))).app.routes}
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")]
    assert {probe["path"] for probe in probes} <= paths
    assert {probe["port"] for probe in probes} == {port["name"] for port in container["ports"]}
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    volumes = {volume["name"] for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert set(compose) == {"serve", "update"}
    assert "bert4rec update /models/shop --data=events" in compose["update"]["command"][-1]


@pytest.mark.long  # half a minute
def test_the_command_updates_the_model_with_the_rows_of_yesterday(shop: Path) -> None:
    place = shop.parents[1]
    program = place / ".venv" / "bin" / "bert4rec"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m bert4rec "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (place / "logs").mkdir()
    yesterday = datetime.now(UTC).astimezone() - timedelta(days=1)
    day_of(3).write_csv(place / "logs" / f"{yesterday:%Y-%m-%d}.csv")
    done = subprocess.run(["sh", "-c", of_cron()], cwd=place, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == read_updates(shop)[0]["reasons"][0]
