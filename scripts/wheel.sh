#!/bin/sh
# Makes dist/: the wheel of the package, and for machines without a GPU a stub of fbgemm-gpu.
#
#   with a GPU     pip install dist/bert4rec*.whl
#   without one    pip install dist/*.whl
set -eu
cd "$(dirname "$0")/.."
# Not what an earlier one has left: setuptools would put modules that are no more into the wheel.
rm -rf build dist
./scripts/stand_in.sh build/fbgemm-gpu
.venv/bin/python -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir dist . ./build/fbgemm-gpu
rm -rf build
ls dist/*.whl
