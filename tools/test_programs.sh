#!/usr/bin/env bash
# Looks for the programs that tests run and that pip does not have: says which line adds what is
# missing, or adds it where BATON_APT=1 lets it.
set -euo pipefail
cd "$(dirname "$0")/.."
has() { command -v "$1" >/dev/null; }

missing=()
{ has prometheus && has promtool; } || missing+=(prometheus)
has chromium || has chromium-browser || has google-chrome || missing+=(chromium)
if [ "${#missing[@]}" -gt 0 ]; then
    echo "Some tests need programs that are not there: ${missing[*]}"
    tools/apt.sh "${missing[@]}"
fi
