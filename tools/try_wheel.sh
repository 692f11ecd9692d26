#!/usr/bin/env bash
# Installs Baton as `pip install baton-serving` would, and asks it something: tools/try_wheel.sh.
# The wheels are built from this folder; what they need comes from pip's index, or from the packages of
# VENV (an environment of `make setup`), which saves gigabytes.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'cd "$folder"; [ ! -x venv/bin/baton ] || venv/bin/baton down >/dev/null 2>&1 || true; rm -rf "$folder"' EXIT
python=${PYTHON:-${VENV:+$VENV/bin/python}}
python=${python:-python3}
"$python" -m pip --disable-pip-version-check wheel -q --no-deps -w "$folder/wheels" . deploy/pypi
"$python" -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip --disable-pip-version-check -q "$@"; }
if [ -n "${VENV:-}" ]; then
    site=$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    "$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' >"$site/others.pth"
    pip install --no-deps "$folder"/wheels/*.whl
else
    pip install --find-links "$folder/wheels" -c constraints.txt baton-serving
fi
cd "$folder"
XDG_CACHE_HOME=$folder/cache BATON_PORT=0 venv/bin/baton up --detach | tee up.log
# shellcheck disable=SC1091
. .baton/dev.env
answer=$(curl -sf "$BASE_URL/chat/completions" -H "Authorization: Bearer $API_KEY" \
    -H 'Content-Type: application/json' \
    -d '{"model": "baton-demo", "messages": [{"role": "user", "content": "What is TTFT?"}]}')
echo "$answer" | grep -q 'time to first token' || { echo "it answered: $answer" >&2; exit 1; }
venv/bin/baton down
echo "ok: an installed package serves"
