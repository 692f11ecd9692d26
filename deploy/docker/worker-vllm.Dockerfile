# Prefill and decode workers whose core runs vLLM's engine: an image of vLLM's with Baton's workers beside it. Each has
# an environment of its own: the front never imports vLLM, and the core gets Baton's code by its path.
# The same image serves both roles: the command is `python -m services.decode_worker` or `...prefill_worker`.
#
# For CPUs by default. vLLM's image for GPUs is docker.io/vllm/vllm-openai with the same tag, and its interpreter
# /usr/bin/python3; a worker starts there only when told to (docs/engines.md).
ARG BASE=docker.io/vllm/vllm-openai-cpu:v0.32.0

FROM ${BASE}
# The interpreter that has vLLM in the base image.
ARG ENGINE_PYTHON=/opt/venv/bin/python
# pip's own settings, for mirrors and for machines without an index.
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
# The package of NIXL, which is made for one CUDA: `nixl-cu13`, `nixl-cu12`; empty = none.
ARG NIXL=
USER root
WORKDIR /src
# Without code, so that a change of code installs nothing again; baton's version stays as metadata.
COPY pyproject.toml constraints.txt ./
# The core reads Baton's messages, too.
RUN touch README.md && \
    "${ENGINE_PYTHON}" -m venv --without-pip /opt/baton/venv && \
    "${ENGINE_PYTHON}" -m pip --python /opt/baton/venv/bin/python install --no-cache-dir --no-compile \
        --constraint constraints.txt ".[worker-front]" && \
    "${ENGINE_PYTHON}" -m pip install --no-cache-dir "protobuf>=7.34,<8"
# It names torch as what it needs, and imports it only for tensors, of which a front has none.
RUN if [ -n "${NIXL}" ]; then \
        "${ENGINE_PYTHON}" -m pip --python /opt/baton/venv/bin/python install --no-cache-dir --no-compile \
            --no-deps --constraint constraints.txt "${NIXL}" && \
        /opt/baton/venv/bin/python -c "import importlib; \
importlib.import_module('${NIXL}'.replace('-', '_') + '._api')"; \
    fi
WORKDIR /app
COPY . /src
RUN cd /src && cp -r --parents baton/__init__.py services/__init__.py \
        services/prefill_worker services/decode_worker baton/worker baton/engine baton/engines baton/model \
        baton/handoff baton/runtime baton/system baton/wire baton/demo_model /app && \
    cd /app && /opt/baton/venv/bin/python -m baton.handoff.page_copy && \
    /opt/baton/venv/bin/python /src/deploy/docker/compile_imported.py \
        services.prefill_worker services.decode_worker && \
    "${ENGINE_PYTHON}" -m compileall -q --invalidation-mode unchecked-hash baton && \
    cp /src/deploy/docker/health.py /opt/baton/health.py && rm -rf /src
# The version that the worker will ask for is in the base image.
RUN "${ENGINE_PYTHON}" -c "from baton.engines.vllm.core_main import VLLM_VERSION as wanted; \
from vllm.version import __version__ as has; assert has.partition('+')[0] == wanted, (has, wanted)"
ARG VERSION=dev
ARG REVISION=
ARG SOURCE=
LABEL org.opencontainers.image.title="baton-worker-vllm" \
    org.opencontainers.image.description="Baton, disaggregated LLM serving: workers with vLLM's engine" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.source="${SOURCE}"
# Nothing is written outside /tmp, /dev/shm and the folders that settings and these variables name: the root may be
# read-only. What is compiled at the first start is kept in /var/cache/baton: a volume spares the next start that.
RUN install -d -o 10001 -g 10001 /var/lib/baton /var/cache/baton
ENV BATON_WORKER_ENGINE=vllm \
    BATON_WORKER_ENGINE_PYTHON=${ENGINE_PYTHON} \
    VLLM_CACHE_ROOT=/var/cache/baton/vllm \
    TORCHINDUCTOR_CACHE_DIR=/var/cache/baton/torchinductor \
    TRITON_CACHE_DIR=/var/cache/baton/triton \
    HOME=/tmp \
    USER=baton \
    PATH=/opt/baton/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
HEALTHCHECK --interval=10s --timeout=6s --start-period=600s CMD ["python", "/opt/baton/health.py"]
# The base image's is `vllm serve`.
ENTRYPOINT []
CMD ["python", "-m", "services.decode_worker"]
