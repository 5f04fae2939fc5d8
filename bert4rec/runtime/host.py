"""The free memory of this host."""

import re
from collections.abc import Iterator
from pathlib import Path

import psutil

from bert4rec.runtime.startup import CGROUPS, group_folders

GROUP_FILES = {  # version of control groups → files of the limit and the usage, name of the reclaimable part
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def host_memory() -> int:
    """Return the available bytes of this host, by Linux and by the limits of control groups."""
    return min([psutil.virtual_memory().available, *_free_of_group()])


def _free_of_group(groups: str | None = None, root: Path = CGROUPS) -> Iterator[int]:
    """Yield the free bytes in each control group of this process: limit - (usage - inactive file pages).

    `groups` is the text of /proc/self/cgroup. Inactive file pages count as free, since Linux can reclaim them.
    """
    for version, folder in group_folders("memory", groups, root):
        limit_file, usage_file, inactive = GROUP_FILES[version]
        if not (folder / limit_file).is_file():
            continue
        limit = (folder / limit_file).read_text().strip()
        if limit != "max":
            reclaimable = re.search(rf"^{inactive} (\d+)", (folder / "memory.stat").read_text(), re.MULTILINE)
            usage = int((folder / usage_file).read_text()) - int(reclaimable[1] if reclaimable else 0)
            yield max(0, int(limit) - usage)
