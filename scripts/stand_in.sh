#!/bin/sh
# Makes a stand-in for the distribution fbgemm-gpu: ./scripts/stand_in.sh FOLDER. It is what pip installs from FOLDER.
#
# torchrec asks for fbgemm-gpu, the CUDA build, which does not load without a GPU and overwrites the files of
# fbgemm-gpu-cpu. So an empty distribution of that name stands in for it and brings the CPU build. Its version is that of
# the pin with +cpu behind it, as torch's is: what asks for the pin takes it, and pip takes it rather than the CUDA build.
set -eu
version=$(sed -n 's/^ *"fbgemm-gpu==\(.*\)",$/\1/p' "$(dirname "$0")/../pyproject.toml")
mkdir -p "$1"
cat >"$1/pyproject.toml" <<END
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "fbgemm-gpu"
version = "$version+cpu"
dependencies = ["fbgemm-gpu-cpu==$version"]
[tool.setuptools]
packages = []
END
