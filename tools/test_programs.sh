#!/usr/bin/env bash
# Looks for programs that tests run and pip does not have. Prints the command that installs the
# missing ones, or runs it with BATON_APT=1.
set -euo pipefail
cd "$(dirname "$0")/.."
has() { command -v "$1" >/dev/null; }

missing=()
{ has prometheus && has promtool; } || missing+=(prometheus)
has chromium || has chromium-browser || has google-chrome || missing+=(chromium)
has redis-server || has valkey-server || missing+=(redis-server)
if [ "${#missing[@]}" -gt 0 ]; then
    echo "Some tests need programs that are not there: ${missing[*]}"
    tools/apt.sh "${missing[@]}"
fi
