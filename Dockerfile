# Two images: one that trains, for CPUs (TORCH_BUILD=cpu) or NVIDIA GPUs (TORCH_BUILD=cuda), and a small one that serves:
#
#   docker build --tag=bert4rec --build-arg=TORCH_BUILD=cuda .
#   docker build --tag=bert4rec-serve --target=serve .
#
# docs/clusters.md says how to run the first, docs/serve.md the second. torchx starts `bash` itself, in this WORKDIR: so there is no ENTRYPOINT that
# anything depends on.

# Or any other Linux with CPython 3.11 to 3.13, its venv module and bash. All tests run on 3.11.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS wheel
WORKDIR /build
RUN --mount=type=secret,id=pip python3 -m venv venv && \
    PIP_CONFIG_FILE=/run/secrets/pip venv/bin/pip --disable-pip-version-check install --no-cache-dir 'setuptools>=77'
COPY pyproject.toml README.md LICENSE ./
COPY bert4rec bert4rec
RUN venv/bin/pip --disable-pip-version-check wheel --no-deps --no-build-isolation --no-index --wheel-dir=dist .

# Without TorchRec, compiler and root; it writes to /models alone, and to /tmp with several workers.
FROM ${BASE_IMAGE} AS serve
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --uid=1000 --no-create-home bert4rec && install -d -o 1000 -g 1000 /models
COPY requirements-serve.lock /tmp/
RUN --mount=type=secret,id=pip \
    python3 -m venv /opt/venv && \
    PIP_CONFIG_FILE=/run/secrets/pip pip --disable-pip-version-check --no-input install --no-cache-dir \
        -r /tmp/requirements-serve.lock "$(grep '^torch==' /tmp/requirements-serve.lock)+cpu"
RUN --mount=type=bind,from=wheel,source=/build/dist,target=/dist \
    pip --disable-pip-version-check install --no-cache-dir --no-deps --no-index /dist/*.whl
WORKDIR /models
VOLUME ["/models"]
USER 1000:1000
EXPOSE 8000
HEALTHCHECK --interval=10s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health/ready', timeout=3)"]
CMD ["bert4rec", "serve", "/models/shop", "--host=0.0.0.0"]

FROM ${BASE_IMAGE} AS train

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
