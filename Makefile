# Everything runs in .venv, which scripts/setup.sh makes where it is missing or out of date. Its programs come first
# on PATH, so that the commands below are the documented ones.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export NO_MKDOCS_2_WARNING := 1
# Each worker of the tests and each process that they start would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

# $(call run,COMMAND): show a documented command and run it; make stops at the first that fails.
run = @echo '$$ $(1)'; $(1)

.PHONY: help setup demo test test-long test-nodes test-slurm test-image test-cuda test-stand-in test-pythons test-ray
.PHONY: lint docs lock wheel bench bench-large reproduce-ml-1m clean

help: ## list the targets (the default)
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1	/p' Makefile

setup: ## make .venv (PYTHON=python3.12 and TORCH_BUILD=cpu|cuda override what it finds)
	@./scripts/setup.sh

demo: setup ## end-to-end example with config.toml: prepare the data, train on two processes, show the report
	$(call run,python preprocessing.py)
	$(call run,torchx run -s local_cwd dist.ddp -j 1x2 --script train.py)
	$(call run,bert4rec report)

test: setup ## all tests, in parallel, one file a worker
	$(call run,python -m pytest --numprocesses=auto --dist=loadfile --no-loadscope-reorder)

test-long: setup ## the tests of minutes: processes killed ten times, each pair of a mode and a sharding, the wheel
	$(call run,python -m pytest -m long)

# Whoever is not root gets a user namespace, in which they are.
AS_ROOT = $(if $(filter 0,$(shell id -u)),,unshare --user --map-root-user --net)

test-nodes: setup ## two hosts as network namespaces: trained on, one late, one killed, one unreachable
	$(call run,$(strip $(AS_ROOT) python -m pytest -m nodes tests/clusters))

test-slurm: setup ## trainings on a Slurm of two nodes on this machine, as root; installs Slurm where it is missing (Debian, Ubuntu)
	$(call run,./scripts/install_slurm.sh)
	$(call run,python -m pytest -m slurm)

test-image: setup ## the image of the Dockerfile, built and trained in; BASE_IMAGE=… where its base cannot be pulled
	$(call run,python -m pytest -m image tests/clusters)

test-cuda: setup ## trainings on a GPU beside the same ones on the CPU; skipped where there is none
	$(call run,python -m pytest -m cuda -rs tests/cuda)

test-stand-in: setup ## the tests of test-cuda on GPUs made of host memory, also several; skipped without a C++ compiler or beside a CUDA build of torch
	$(call run,python -m pytest -p tests.stand_in.plugin -m cuda -rs --numprocesses=auto --dist=loadfile tests/cuda tests/stand_in)

test-pythons: setup ## data tests on Python 3.11–3.13, those of this machine
	$(call run,./scripts/test_pythons.sh)

test-ray: setup ## preparations on Ray, with killed workers, nodes and programs, in 5 minutes; skipped without the extra ray
	@if python -c 'import ray' 2>/dev/null; then set -x; python -m pytest -m 'ray and not long' tests/prepare; \
	else echo "skipped: the package ray is not installed; type .venv/bin/pip install -c requirements.lock -e '.[ray]'"; fi

lint: setup ## ruff, mypy, the import contracts of pyproject.toml, and plain names and docstrings
	$(call run,ruff check)
	$(call run,ruff format --check)
	$(call run,mypy)
	$(call run,lint-imports)
	$(call run,python -m scripts.check_language)

docs: setup ## the documentation as a site with search, in build/site/
	$(call run,mkdocs build --strict --quiet)

lock: ## make requirements.lock anew, from what pyproject.toml asks for; versions that it names are kept
	@[ -x .venv/bin/python ] || ./scripts/setup.sh
	$(call run,python -m scripts.lock)

wheel: setup ## dist/: the package, and a stub of fbgemm-gpu for a machine without a GPU
	$(call run,./scripts/wheel.sh)

BENCH =
bench: setup ## the speed of everything beside the plain way of writing it, in minutes; BENCH="--only=step --rounds=3"
	$(call run,$(strip python -m benchmarks.bench $(BENCH)))

bench-large: setup ## the two tables of large catalogues of the results: half an hour on two quiet cores, 12 GB of memory
	$(call run,python -m benchmarks.large_catalogue)
	$(call run,python -m benchmarks.large_catalogue --curve)

ML_1M = ml-1m.txt
SEEDS = 1,2,3
reproduce-ml-1m: setup ## docs/minutes.png: on the papers' file (ML_1M=…/ml-1m.txt), three seeds of SASRec and of Bert4Rec, 20 minutes each
	$(call run,python -m benchmarks.minutes SASRec --seeds=$(SEEDS) --config=configs/ml-1m-benchmark.toml --data.path=$(ML_1M) --model=sasrec)
	$(call run,python -m benchmarks.minutes Bert4Rec --seeds=$(SEEDS) --config=configs/ml-1m-benchmark.toml --data.path=$(ML_1M))

clean: ## delete .venv, .venvs, dist and caches; data/, runs/ and logs/ stay
	rm -rf .venv .venvs dist bert4rec_torchrec.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
