"""The packages: which versions, and whether torch, torchrec and fbgemm-gpu fit together and load."""

import platform
import re
from collections.abc import Iterator
from importlib import import_module, metadata

from bert4rec.doctor.finding import Finding
from bert4rec.runtime.installation import importing

DISTRIBUTION = "bert4rec-torchrec"
MATCHING = ("torch", "torchrec", "fbgemm_gpu")  # compiled against one another: modules, in the order of their imports
PIN = re.compile(r"([\w.-]+)==([\w.]+)")
ADVICE = "`make setup` installs what fits together"


def installation() -> Iterator[Finding]:
    """Python, the pinned packages, and those that must match."""
    yield Finding("Python", f"{platform.python_version()}, {platform.machine()}")
    pinned = dict(_pins())
    differing = [f"{name} {found} in place of {pinned[name]}" for name, found in _others(pinned)]
    if differing:
        yield Finding("packages", ", ".join(differing), ADVICE)
    else:
        yield Finding("packages", f"{len(pinned)}, of the pinned versions")
    yield matching()


def matching() -> Finding:
    """Whether torch, torchrec and fbgemm-gpu load, one after another."""
    versions = []
    for name in MATCHING:
        try:
            with importing():
                module = import_module(name)
        except (ImportError, OSError, AttributeError, RuntimeError) as error:  # a library that was built for another
            first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
            return Finding("torch, torchrec, fbgemm", f"{name} does not load: {first_line}", ADVICE)
        versions.append(f"{name} {getattr(module, '__version__', '')}".strip())
    return Finding("torch, torchrec, fbgemm", f"load together: {', '.join(versions)}")


def _pins() -> Iterator[tuple[str, str]]:
    """Name and version of each package that this one pins."""
    for requirement in metadata.requires(DISTRIBUTION) or []:
        if (pin := PIN.match(requirement)) and "extra ==" not in requirement:
            yield pin[1], pin[2]


def _others(pinned: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Those that are there in another version, or not at all."""
    for name, version in pinned.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "missing"
        if found.partition("+")[0] != version:
            yield name, found
