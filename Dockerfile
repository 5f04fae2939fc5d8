# An image that trains, for CPUs (TORCH_BUILD=cpu) or NVIDIA GPUs (TORCH_BUILD=cuda):
#
#   docker build --tag=bert4rec --build-arg=TORCH_BUILD=cuda .
#
# docs/clusters.md says how to run it. torchx starts `bash` itself, in this WORKDIR: so there is no ENTRYPOINT that
# anything depends on.

# Or any other Linux with CPython 3.11 to 3.13, its venv module and bash. All tests run on 3.11.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}

# HOME and USER also for whoever is no user of this image: docker run --user=…, OpenShift.
ENV PATH=/opt/venv/bin:$PATH HOME=/home/bert4rec USER=bert4rec PYTHONUNBUFFERED=1
RUN useradd --uid=1000 --no-create-home bert4rec && install -d -m 1777 $HOME
WORKDIR /app
RUN install -d -m 1777 data runs logs

# The packages, a layer of their own that a change of the code leaves as it is. The secret `pip` is a pip.conf: the
# index of torch's CPU builds, a mirror. It stays out of the image. fbgemm's CUDA build does not load without a GPU, so
# nothing is imported here.
ARG TORCH_BUILD=cpu
COPY pyproject.toml requirements.lock ./
COPY scripts/requirements.py scripts/stand_in.sh scripts/
RUN --mount=type=secret,id=pip \
    python3 scripts/requirements.py onnx >/tmp/requirements.txt && \
    case $TORCH_BUILD in \
    cuda) ;; \
    cpu) scripts/stand_in.sh /tmp/fbgemm-gpu && set -- "$(grep '^torch==' /tmp/requirements.txt)+cpu" /tmp/fbgemm-gpu ;; \
    *) echo "TORCH_BUILD is cpu or cuda, not '$TORCH_BUILD'" >&2 && exit 1 ;; \
    esac && \
    python3 -m venv /opt/venv && \
    PIP_CONFIG_FILE=/run/secrets/pip pip --disable-pip-version-check --no-input install --no-cache-dir \
        -c requirements.lock -r /tmp/requirements.txt 'setuptools>=77' "$@" || \
    { echo "pip failed. TORCH_BUILD=cpu needs the index of torch's CPU builds: see docs/clusters.md" >&2 && exit 1; } && \
    pip check && \
    rm -rf /tmp/fbgemm-gpu /tmp/requirements.txt

# From where it stands, so that code put over it later (a mount, torchx's workspace) is what all commands run.
COPY . .
RUN pip --disable-pip-version-check install --no-cache-dir --no-deps --no-build-isolation --no-index -e . && \
    python -m compileall -q bert4rec

VOLUME ["/app/data", "/app/runs"]
USER 1000:1000
CMD ["bert4rec", "--help"]
