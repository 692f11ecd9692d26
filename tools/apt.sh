#!/usr/bin/env bash
# Installs Debian packages: tools/apt.sh PACKAGE... Only with BATON_APT=1; else it prints the
# command that would.
set -euo pipefail
if [ "${BATON_APT:-}" != 1 ]; then
    echo "    sudo apt-get install $*"
    exit
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo -n"
$sudo apt-get update -q
$sudo apt-get install -y -q --no-install-recommends "$@"
