# A light service: SERVICE is gateway, quota, tokenizer, router, edge or envoy. The image has the folders that
# the service's import contract allows, the packages of its extras of pyproject.toml, and no pip. The gateway's
# has the page of a release as well, which needs the same packages: `python -m services.page`.
ARG BASE=docker.io/library/python:3.12-slim-bookworm

FROM ${BASE} AS build
ARG SERVICE
# pip's own settings, for mirrors and for machines without an index.
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
WORKDIR /src
# Without code, so that a change of code installs nothing again; baton's version stays as metadata.
COPY pyproject.toml constraints.txt ./
RUN touch README.md && \
    case "${SERVICE}" in \
        router) extras=router,kubernetes ;; \
        edge) extras=edge,kubernetes ;; \
        gateway) extras=gateway,kubernetes ;; \
        *) extras=${SERVICE} ;; \
    esac && \
    python3 -m venv --without-pip /opt/venv && \
    python3 -m pip --python /opt/venv/bin/python install --no-cache-dir --no-compile \
        --constraint constraints.txt ".[${extras}]" && \
    find /opt/venv -type d -name tests -prune -exec rm -r {} +
# 12 of uvloop's 14 MB are debug symbols.
RUN command -v strip >/dev/null || \
    (apt-get update -q && apt-get install -y -q --no-install-recommends binutils && \
        rm -rf /var/lib/apt/lists/*); \
    strip --strip-debug /opt/venv/lib/python3*/site-packages/uvloop/*.so
# The package imports its blocking half, which is never called: 34 MB of generated classes.
RUN find /opt/venv/lib -path '*/kubernetes/client/*' \( -path '*/api/*' -o -path '*/models/*' \) \
        -name '*.py' ! -name __init__.py -delete
WORKDIR /app
COPY . /src
RUN cd /src && cp -r --parents baton/__init__.py services/__init__.py "services/${SERVICE}" \
        baton/runtime baton/system baton/wire /app && \
    if [ "${SERVICE}" = quota ]; then cp -r --parents baton/keys /app; fi && \
    if [ "${SERVICE}" = gateway ]; then cp -r --parents baton/page services/page /app; page=services.page; fi && \
    cd /app && /opt/venv/bin/python /src/deploy/docker/compile_imported.py "services.${SERVICE}" ${page:-}

FROM ${BASE}
ARG SERVICE
ARG VERSION=dev
ARG REVISION=
ARG SOURCE=
LABEL org.opencontainers.image.title="baton-${SERVICE}" \
    org.opencontainers.image.description="Baton, disaggregated LLM serving: ${SERVICE}" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.source="${SOURCE}"
COPY --from=build /opt/venv /opt/venv
COPY --from=build /app /app
COPY deploy/docker/health.py /opt/baton/health.py
# Nothing is written outside /tmp and the folders that settings name: the root may be read-only. A
# new volume that is mounted here belongs to the service.
RUN install -d -o 10001 -g 10001 /var/lib/baton
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    BATON_SERVICE=${SERVICE}
WORKDIR /app
USER 10001:10001
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s CMD ["python", "/opt/baton/health.py"]
CMD ["/bin/sh", "-c", "exec python -m services.${BATON_SERVICE}"]
