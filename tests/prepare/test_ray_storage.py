"""On Ray, with all files of tasks in a bucket and no folder in common: the datasets of a local preparation."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert4rec.config.stored import dataset_folder
from tests.conftest import long
from tests.engines import end_driver, prepared, start_driver, write_inputs
from tests.folders import contents
from tests.launch import ROOT
from tests.preparation import small_parts, small_tasks
from tests.sources.storage import Storage

pytestmark = pytest.mark.ray
OPTIONS = ["--preprocessing.engine=ray", "--preprocessing.workers=2"]


@pytest.fixture(scope="module")
def cluster(storage: Storage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of a program that uses a cluster, whose processes have another cache."""
    pytest.importorskip("ray", reason="make test-long runs without it")
    from ray.cluster_utils import Cluster

    place = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("XDG_CACHE_HOME", str(place / "workers"))
        cluster: Any = Cluster()
        try:
            cluster.add_node(num_cpus=2, object_store_memory=75 << 20, include_dashboard=False)
            patch.setenv("XDG_CACHE_HOME", str(place / "driver"))
            yield {"RAY_ADDRESS": cluster.address, "XDG_CACHE_HOME": str(place / "driver")}
        finally:
            cluster.shutdown()


@pytest.mark.parametrize("name", ["text", long("features"), long("k-core"), long("late")])
def test_a_cluster_without_a_common_disk_makes_the_dataset_of_one_machine(
    tmp_path: Path, storage: Storage, cluster: dict[str, str], name: str
) -> None:
    with small_tasks(1000), small_parts(1500):
        options = write_inputs(tmp_path)[name]
        expected = prepared(tmp_path, "local", *options)
    (storage.folder / f"ray-{name}").mkdir()
    url = f"s3://ray-{name}/shop"
    driver = start_driver(url, *options, *OPTIONS, **cluster)
    try:
        before = set[str]()
        while driver.poll() is None and len(before) < 4:
            time.sleep(0.05)
            before = {key for key in storage.keys(f"ray-{name}") if key.endswith("/result.json")}
        end_driver(driver)
        put = len(storage.done)
        driver = start_driver(url, *options, *OPTIONS, **cluster)
        assert driver.wait(240) == 0
    finally:
        driver.kill()
        driver.wait()
    again = {line.partition(f"PUT ray-{name}/")[2] for line in storage.done[put:]}
    assert len(before) >= 4
    assert not before & again
    assert {key.partition("/")[0] for key in storage.keys(f"ray-{name}")} == {"shop"}
    assert any(line.startswith("COPY") and f"ray-{name}/shop/histories/part-" in line for line in storage.done)
    assert contents(dataset_folder(url)) == expected
