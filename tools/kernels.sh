#!/usr/bin/env bash
# Compiles the CPU kernels for a virtual environment: tools/kernels.sh FOLDER. They are optional:
# without a compiler one line says what would add it. BATON_APT=1 has apt-get install it.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1

has_compiler() { [ -n "${CXX:-}" ] || command -v g++ >/dev/null || command -v clang++ >/dev/null; }

if [ "${BATON_APT:-}" = 1 ] && ! has_compiler && command -v apt-get >/dev/null; then
    sudo=""
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    { $sudo apt-get update -q && $sudo apt-get install -y -q --no-install-recommends g++; } || true
fi
"$venv/bin/python" -m baton.engine.model.build_native || true
"$venv/bin/python" -m baton.handoff.page_copy || true
touch "$venv/.kernels"
