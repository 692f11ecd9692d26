#!/usr/bin/env bash
# Builds the documentation's site in .site: tools/site.sh [serve]. The first time it makes .venv-site.
# A link to a page or heading that is not there is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-site
if [ ! -x "$venv/bin/mkdocs" ]; then
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip --disable-pip-version-check install -q "mkdocs-material==9.7.6"
fi
export NO_MKDOCS_2_WARNING=1
if [ "${1:-}" = serve ]; then
    exec "$venv/bin/mkdocs" serve
fi
exec "$venv/bin/mkdocs" build --quiet
