# Locust with the scenarios of loadtest/, for the `locust` profile of docker-compose.yml and for load
# from another machine: the command is locust's, the key is in API_KEY.
ARG BASE=docker.io/library/python:3.12-slim-bookworm

FROM ${BASE} AS build
# pip's own settings, for mirrors and for machines without an index.
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
WORKDIR /src
COPY pyproject.toml constraints.txt ./
RUN touch README.md && \
    python3 -m venv --without-pip /opt/venv && \
    python3 -m pip --python /opt/venv/bin/python install --no-cache-dir --no-compile \
        --constraint constraints.txt ".[loadtest]"

FROM ${BASE}
LABEL org.opencontainers.image.title="baton-loadtest" \
    org.opencontainers.image.description="Load tests of Baton, with Locust" \
    org.opencontainers.image.licenses="Apache-2.0"
RUN install -d -o 10001 -g 10001 /var/lib/baton
COPY --from=build /opt/venv /opt/venv
COPY loadtest /app/loadtest
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/app \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
WORKDIR /app
USER 10001:10001
ENTRYPOINT ["locust", "-f", "loadtest/locustfile.py"]
CMD ["--help"]
