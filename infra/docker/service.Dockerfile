# syntax=docker/dockerfile:1.7
# The control side of a fleet: `gristmill api`, `gristmill control`, and the commands that manage it
# (`keys`, `tenants`, `ledger`). No torch, no compiler. From the root of the repository:
#
#   docker build -f infra/docker/service.Dockerfile -t gristmill-service .
#
# Build arguments
#   PYTHON_IMAGE    what both stages are built on, by digest
#   PIP_INDEX_URL   where Python packages come from, for a mirror of your own
#   REVISION        the commit, for the label
#
# The image runs as user 10001 and writes to /tmp and /var/cache/gristmill only, so that its root
# file system may be read-only. What lies in infra/docker/models is baked in as /models.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d

FROM ${PYTHON_IMAGE} AS build
ARG PIP_INDEX_URL=https://pypi.org/simple
ENV PIP_INDEX_URL=${PIP_INDEX_URL} PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Also holds for what pip installs in order to build.
ENV PIP_CONSTRAINT=/src/constraints.txt
ENV PATH=/opt/gristmill/bin:${PATH}
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
# The packages come before our code, in a layer that changes with their pins only.
RUN python -m venv /opt/gristmill \
    && mkdir -p producer/gristmill worker/gristmill_worker \
    && touch producer/gristmill/__init__.py worker/gristmill_worker/__init__.py \
    && pip install -c constraints.txt '.[server,traces]'
COPY producer producer
COPY worker worker
RUN pip install -c constraints.txt --no-deps --force-reinstall .

FROM ${PYTHON_IMAGE}
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gristmill-service" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"
# tini is process 1: it hands SIGTERM on from the first moment. Python as process 1 would ignore it
# until a handler is there. A tmpfs over the cache gets the mode of its folder here,
# whatever was asked for (moby#39466). (DL3008: Debian keeps one version of a package, so a pin would
# break.)
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin gristmill \
    && install -d -m 1777 -o 10001 -g 10001 /var/cache/gristmill
COPY --from=build /opt/gristmill /opt/gristmill
COPY infra/docker/healthy.py /opt/healthy.py
COPY infra/docker/models/ /models/
ENV PATH=/opt/gristmill/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    HF_HOME=/var/cache/gristmill/hub \
    GRISTMILL_CACHE_DIR=/var/cache/gristmill
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000
STOPSIGNAL SIGTERM
# Both `api` (--port 8000) and `control` (--health 0.0.0.0:8000) answer it.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "/opt/healthy.py", "http://127.0.0.1:8000/readyz"]
ENTRYPOINT ["tini", "--", "gristmill"]
CMD ["--help"]
