# syntax=docker/dockerfile:1.7
# A worker of a fleet: `gristmill worker`, with torch. From the root of the repository:
#
#   docker build -f infra/docker/worker.Dockerfile -t gristmill-worker:cpu .
#   docker build -f infra/docker/worker.Dockerfile -t gristmill-worker:cuda \
#       --build-arg TORCH_INDEX_URL=https://pypi.org/simple .
#
# Build arguments
#   TORCH_INDEX_URL  where torch comes from, and with it what it computes on: the default has builds
#                    for CPUs; those of PyPI are for CUDA and bring its libraries with them. The
#                    driver is the host's, through the NVIDIA container toolkit
#   PYTHON_IMAGE     what both stages are built on, by digest
#   PIP_INDEX_URL    where all other Python packages come from, for a mirror of your own
#   REVISION         the commit, for the label
#
# The image runs as user 10001 and writes to /tmp and /var/cache/gristmill only, so that its root
# file system may be read-only. What lies in infra/docker/models is baked in as /models; a model
# may be mounted there as well.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d

FROM ${PYTHON_IMAGE} AS build
ARG PIP_INDEX_URL=https://pypi.org/simple
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
ENV PIP_INDEX_URL=${PIP_INDEX_URL} PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Also holds for what pip installs in order to build.
ENV PIP_CONSTRAINT=/src/constraints.txt
ENV PATH=/opt/gristmill/bin:${PATH}
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
# torch first and by itself, so that its index serves nothing else; what it asks for comes with the
# rest. The packages come before our code, in layers that change with their pins only.
RUN python -m venv /opt/gristmill \
    && pip install -c constraints.txt --no-deps --index-url "${TORCH_INDEX_URL}" torch
RUN mkdir -p producer/gristmill worker/gristmill_worker \
    && touch producer/gristmill/__init__.py worker/gristmill_worker/__init__.py \
    && pip install -c constraints.txt '.[worker,redis,aws,traces]'
COPY producer producer
COPY worker worker
RUN pip install -c constraints.txt --no-deps --force-reinstall .

FROM ${PYTHON_IMAGE}
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gristmill-worker" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"
# tini is process 1: it hands SIGTERM on from the first moment. Python as process 1 would ignore it
# until a handler is there. The compiler builds the kernels of a CPU for the very machine, and what
# Triton loads on a GPU. A tmpfs over the cache gets the mode of its folder here, whatever was
# asked for (moby#39466). (DL3008: Debian keeps one version of a package, so a pin would break.)
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libgomp1 tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin gristmill \
    && install -d -m 1777 -o 10001 -g 10001 /var/cache/gristmill
COPY --from=build /opt/gristmill /opt/gristmill
COPY infra/docker/healthy.py /opt/healthy.py
COPY infra/docker/models/ /models/
# The NVIDIA container toolkit reads its two; without it they mean nothing.
ENV PATH=/opt/gristmill/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    HF_HOME=/var/cache/gristmill/hub \
    TRITON_CACHE_DIR=/var/cache/gristmill/triton \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    GRISTMILL_CACHE_DIR=/var/cache/gristmill
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000
STOPSIGNAL SIGTERM
# `worker --health 0.0.0.0:8000` answers it; a model may take minutes to load.
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s --retries=3 \
    CMD ["python", "/opt/healthy.py", "http://127.0.0.1:8000/readyz"]
ENTRYPOINT ["tini", "--", "gristmill"]
CMD ["--help"]
