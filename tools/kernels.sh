#!/usr/bin/env bash
# Compiles the CPU kernels for a virtual environment: tools/kernels.sh FOLDER. They are optional:
# without a compiler it prints the command that installs one. With BATON_APT=1 it runs that command.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1

has_compiler() { [ -n "${CXX:-}" ] || command -v g++ >/dev/null || command -v clang++ >/dev/null; }

if [ "${BATON_APT:-}" = 1 ] && ! has_compiler; then
    tools/apt.sh g++
fi
"$venv/bin/python" -m baton.model.cpu.build_native || true
"$venv/bin/python" -m baton.handoff.page_copy || true
touch "$venv/.kernels"
