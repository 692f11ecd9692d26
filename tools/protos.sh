#!/usr/bin/env bash
# Generates the wire code: tools/protos.sh VENV OUTPUT_ROOT.
set -euo pipefail
cd "$(dirname "$0")/.."
"$1/bin/python" -m grpc_tools.protoc -I protos \
    --python_out="$2" --pyi_out="$2" --grpc_python_out="$2" protos/baton/wire/v1/*.proto
