#!/usr/bin/env bash
# Installs the clients that `make test-clients` runs, each into an environment of its own:
# tools/clients.sh FOLDER. Needs Python 3.11+, Node 20+ and a network (about 1 GB); never root.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
wanted=tests/clients/environments
python=${PYTHON:-python3}
mkdir -p "$folder/node"

for pins in "$wanted"/*.txt; do
    name=$(basename "$pins" .txt)
    cmp -s "$pins" "$folder/$name/installed.txt" && continue
    echo "Installing $(grep -o '^[a-z-]*' "$pins" | tr '\n' ' ')"
    "$python" -m venv "$folder/$name"
    "$folder/$name/bin/python" -m pip --disable-pip-version-check install -q -r "$pins"
    cp "$pins" "$folder/$name/installed.txt"
done

if ! cmp -s "$wanted/package.json" "$folder/node/installed.json"; then
    if ! command -v npm >/dev/null; then
        echo "npm is missing. On Debian or Ubuntu: sudo apt-get install nodejs npm" >&2
        exit 1
    fi
    echo "Installing the clients for Node"
    cp "$wanted/package.json" "$folder/node/package.json"
    npm --prefix "$folder/node" install --silent --no-audit --no-fund
    cp "$wanted/package.json" "$folder/node/installed.json"
fi
