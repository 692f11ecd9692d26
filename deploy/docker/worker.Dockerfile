# Prefill and decode workers, for CPUs or for NVIDIA GPUs, as the index of torch decides. The same
# image serves both roles: the command is `python -m services.decode_worker` or `...prefill_worker`.
ARG BASE=docker.io/library/python:3.12-slim-bookworm

FROM ${BASE} AS build
# The source of torch: PyTorch's index of CPU wheels, or that of a CUDA version.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG EXTRAS=worker
# pip's own settings, for mirrors and for machines without an index.
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
RUN command -v g++ >/dev/null || \
    (apt-get update -q && apt-get install -y -q --no-install-recommends g++ && \
        rm -rf /var/lib/apt/lists/*)
WORKDIR /src
# Without code, so that a change of code installs nothing again; baton's version stays as metadata.
COPY pyproject.toml constraints.txt ./
RUN python3 -m venv --without-pip /opt/venv && \
    python3 -m pip --python /opt/venv/bin/python install --no-cache-dir --no-compile \
        --index-url "${TORCH_INDEX_URL}" "$(grep '^torch==' constraints.txt)"
RUN touch README.md && \
    python3 -m pip --python /opt/venv/bin/python install --no-cache-dir --no-compile \
        --constraint constraints.txt ".[${EXTRAS}]"
# Only compiling against torch needs these.
RUN rm -rf /opt/venv/lib/python3*/site-packages/torch/include \
        /opt/venv/lib/python3*/site-packages/torch/share
WORKDIR /app
COPY . /src
RUN cd /src && cp -r --parents baton/__init__.py services/__init__.py \
        services/prefill_worker services/decode_worker baton/worker baton/engine baton/model baton/handoff \
        baton/runtime baton/system baton/wire baton/demo_model /app && \
    cd /app && /opt/venv/bin/python -m baton.model.cpu.build_native && \
    /opt/venv/bin/python -m baton.handoff.page_copy && \
    /opt/venv/bin/python /src/deploy/docker/compile_imported.py \
        services.prefill_worker services.decode_worker baton.worker

FROM ${BASE}
# libgomp: the kernels' threads. On GPUs also gcc and libc6-dev, with which Triton compiles launchers.
ARG SYSTEM_PACKAGES=libgomp1
RUN dpkg -s $(echo "${SYSTEM_PACKAGES}" | tr , ' ') >/dev/null 2>&1 || \
    (apt-get update -q && \
        apt-get install -y -q --no-install-recommends $(echo "${SYSTEM_PACKAGES}" | tr , ' ') && \
        rm -rf /var/lib/apt/lists/*)
ARG VERSION=dev
ARG REVISION=
ARG SOURCE=
LABEL org.opencontainers.image.title="baton-worker" \
    org.opencontainers.image.description="Baton, disaggregated LLM serving: prefill and decode workers" \
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
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /app
USER 10001:10001
HEALTHCHECK --interval=10s --timeout=6s --start-period=600s CMD ["python", "/opt/baton/health.py"]
CMD ["python", "-m", "services.decode_worker"]
